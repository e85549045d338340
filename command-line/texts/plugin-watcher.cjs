/*
 * The thread that watches whether a plugin blocks the main thread. A blocked thread handles no messages or signals, but
 * the inspector can interrupt it and call a function there.
 */
const {
  workerData: { beats, tick, ticks }
} = require('node:worker_threads')
const { Session } = require('node:inspector')
let last = -1
let blocked = 0
setInterval(() => {
  const now = Atomics.load(beats, 0)
  blocked = now === last ? blocked + 1 : 0
  last = now
  const stage = Object.keys(ticks).find(name => ticks[name] === blocked)
  if (stage) ask(stage)
}, tick)
function ask(stage) {
  const session = new Session()
  session.connectToMainThread()
  session.once(
    'Debugger.paused',
    ({
      params: {
        callFrames: [{ callFrameId }]
      }
    }) => {
      const expression = `globalThis[Symbol.for("corral.blocked")]("${stage}")`
      session.post('Debugger.evaluateOnCallFrame', { callFrameId, expression }, (_error, reply) => {
        session.post('Debugger.resume')
        session.disconnect()
        if (stage === 'end' && reply?.result.value === true) process.kill(process.pid, 'SIGKILL')
      })
    }
  )
  session.post('Debugger.enable')
  session.post('Debugger.pause')
}
