import { Worker } from 'node:worker_threads'
import { culpritNow, pluginAtFault } from '../core/plugins/running-plugin.ts'

/** How long plugins may block the process: until signals end it at once, until that is reported, until it is ended. */
const TICK_MS = 1000
export const BLOCKED_TICKS = { signals: 2, report: 5, end: 60 }

/** Name of the function by which the watching thread asks the blocked main thread. */
const ASK = Symbol.for('corral.blocked')
const SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

/**
 * What the watching thread runs. A blocked main thread handles no messages and no signals, but the inspector can interrupt
 * it, and calls the function there.
 */
const WATCHER = `
const { workerData: { beats, tick, ticks } } = require('node:worker_threads')
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
  session.once('Debugger.paused', ({ params: { callFrames: [{ callFrameId }] } }) => {
    const expression = 'globalThis[Symbol.for("corral.blocked")]("' + stage + '")'
    session.post('Debugger.evaluateOnCallFrame', { callFrameId, expression }, (error, reply) => {
      session.post('Debugger.resume')
      session.disconnect()
      if (stage === 'end' && reply?.result.value === true) process.kill(process.pid, 'SIGKILL')
    })
  })
  session.post('Debugger.enable')
  session.post('Debugger.pause')
}`

let report = (message: string): void => console.error(message)
let isWatching = false

/** Has what plugins do wrong reported otherwise than on standard error. */
export function reportPluginsBy(log: (message: string) => void): void {
  report = log
}

/**
 * Watches from another thread whether code of plugins blocks the process. After two seconds SIGTERM, SIGINT and SIGHUP end
 * it at once, since nothing can handle them; after five the plugin is named; after a minute the process is ended, so that
 * whoever supervises it starts it again. Blocks of corral's own code are left alone.
 * @param ticks and tick (milliseconds) only for tests
 */
export function watchPlugins(ticks = BLOCKED_TICKS, tick = TICK_MS): void {
  if (isWatching) return
  isWatching = true
  const beats = new Int32Array(new SharedArrayBuffer(4))
  let handlers: (() => void) | undefined
  Object.assign(globalThis, {
    [ASK](stage: keyof typeof BLOCKED_TICKS) {
      const culprit = culpritNow()
      if (culprit === undefined) return false
      handlers ??= withoutHandlers()
      if (stage === 'report') report(`${culprit} blocks the server: nothing is answered. SIGTERM ends it at once.`)
      if (stage === 'end') report(`${culprit} still blocks the server, which is ended now.`)
      return true
    }
  })
  const beat = () => {
    Atomics.add(beats, 0, 1)
    handlers?.()
    handlers = undefined
  }
  setInterval(beat, tick).unref()
  new Worker(WATCHER, { eval: true, execArgv: [], workerData: { beats, tick, ticks } }).unref()
}

/** Lets signals do what they do by default. @returns gives them back to those that handled them */
function withoutHandlers(): () => void {
  const handled = SIGNALS.map(signal => [signal, process.rawListeners(signal)] as const)
  for (const signal of SIGNALS) process.removeAllListeners(signal)
  return () => {
    for (const [signal, listeners] of handled) {
      for (const listener of listeners) process.on(signal, listener as NodeJS.SignalsListener)
    }
  }
}

const reported = new Set<string>()

/** Reports an error that nobody caught, if it is a plugin's. @returns whether the server can go on without it */
export function survivesFault(error: unknown): boolean {
  const plugin = pluginAtFault(error)
  if (!plugin) return false
  const why = error instanceof Error ? (error.stack ?? error.message) : String(error)
  const outcome = plugin.optional ? 'The server goes on, since the plugin is optional' : 'The server stops'
  const message = `Plugin "${plugin.name}" threw an error that nobody caught. ${outcome}. ${why}`
  // One that fails at each tick of a timer would fill the log.
  if (!reported.has(message) && reported.size < 1000) report(message)
  reported.add(message)
  return plugin.optional === true
}

/** Reports the plugin that has called `process.exit`, if one has. Call it in a handler of "exit". */
export function reportExit(code: number): void {
  const plugin = pluginAtFault()
  if (!plugin) return
  report(`Plugin "${plugin.name}" ended the server by process.exit(${code}).`)
  process.exitCode = code === 0 ? 1 : code
}
