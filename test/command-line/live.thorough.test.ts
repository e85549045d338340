import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import t from 'tap'
import { type LiveState, liveLines, Rates } from '../../command-line/live-view.ts'
import { type Corral, DEMO, startCorral, until } from '../support/corral.ts'
import { commandEnvironment, MAIN, newHome } from './command.ts'
import { loadingModel, pullReply, runningModel } from './records.ts'
import { CTRL_C, onTerminal } from './terminal.ts'

const root = t
const home = newHome(t)
/** The server of the last tests. */
let restarted: Corral
const NOW = performance.now()
const GB = 1e9

const STATE: LiveState = {
  address: 'http://127.0.0.1:11435',
  reply: {
    models: [{ ...runningModel('corral/tiny-chat'), running: 3, queued: 2, generated_tokens: 500 }],
    loading: [{ ...loadingModel('someone/a-model-with-a-rather-long-name-GGUF:Q4_K_M'), status: 'loading 42%' }],
    memory: [{ pool: 'host', reserved: 3 * GB, budget: 12 * GB, free: 9 * GB, used: 5 * GB, total: 16 * GB }],
    pulls: [pullReply('Qwen/Qwen3-0.6B-GGUF:Q8_0', {})]
  }
}

t.test('liveLines fits every width', async t => {
  const rates = new Rates()
  rates.add([{ ...runningModel('corral/tiny-chat'), generated_tokens: 400 }], NOW - 4000)
  rates.add([{ ...runningModel('corral/tiny-chat'), generated_tokens: 500 }], NOW)
  const wide = liveLines(STATE, rates, { columns: 100, rows: 24 }, NOW)
  t.equal(wide[0], 'http://127.0.0.1:11435  3 running, 2 waiting, 25.0 tokens/s')
  t.match(wide[1], /^host: 3\.0 GB reserved, 9\.0 GB free, 5\.0 GB used of 16\.0 GB$/)
  t.match(wide.join('\n'), /corral\/tiny-chat +3\/4 +2 +25\.0 /)
  t.match(wide.join('\n'), /loading 42%/)
  t.match(wide.join('\n'), /Qwen3-0\.6B-GGUF:Q8_0 {2}downloading 50%, 10 MB\/s, 30 s left/)
  for (const columns of [20, 40, 64, 65, 80, 200]) {
    const lines = liveLines(STATE, rates, { columns, rows: 50 }, NOW)
    t.ok(
      lines.every(line => line.length < columns),
      `${columns} columns: ${lines.find(line => line.length >= columns)}`
    )
    const text = lines.join(' ').replace(/\s+/g, ' ')
    for (const word of ['3/4', 'loading 42%', 'downloading 50%', '3 running'])
      t.match(text, word, `${columns}: ${word}`)
  }
  t.equal(liveLines(STATE, rates, { columns: 40, rows: 5 }, NOW).length, 4, 'no more lines than the terminal has')
  t.equal(
    liveLines({ waiting: 'No server is running.' }, rates, { columns: 40, rows: 9 }, NOW)[0],
    'waiting for the server'
  )
  const empty = { address: 'http://a', reply: { models: [], loading: [] } }
  t.match(liveLines(empty, rates, { columns: 60, rows: 9 }, NOW), [
    'http://a  0 running, 0 waiting, 0.0 tokens/s',
    '',
    /No model/
  ])
})

t.test('Rates starts over when a model is reloaded', async t => {
  const rates = new Rates()
  const model = runningModel('a/b')
  const add = (generated_tokens: number, at: number) => rates.add([{ ...model, generated_tokens }], at)
  add(1000, 0)
  t.equal(rates.of(model, 0), undefined)
  add(1100, 2000)
  t.equal(rates.of(model, 2000), 50)
  add(10, 3000)
  t.equal(rates.of(model, 3000), undefined)
  add(30, 5000)
  t.equal(rates.of(model, 5000), 10)
  rates.add([], 6000)
  t.equal(rates.of(model, 6000), undefined)
})

t.test('top and ps --watch survive a restart of the server and end cleanly', async t => {
  const server = await startCorral(t, { home })
  const top = onTerminal(t, ['top'], home, { columns: 100 })
  const narrow = onTerminal(t, ['ps', '--watch'], home, { columns: 40 })
  await top.sees('No model is loaded.')
  await narrow.sees('No model is loaded.')
  const piped = spawn(process.execPath, [MAIN, 'ps', '--watch'], { cwd: home, env: commandEnvironment({ home }) })
  const lines = collectLines(piped)
  const answer = await server.json('/api/chat', {
    model: DEMO,
    messages: [{ role: 'user', content: 'Hi' }],
    stream: false
  })
  t.equal(answer.status, 200)
  await top.sees(/corral\/tiny-chat +\d\/\d/)
  await narrow.sees(/SLOTS \d\/\d/)
  const { models } = (await server.json('/api/ps')).body
  // The last token of an answer has no text.
  t.ok([0, 1].includes(answer.body.eval_count - models[0].generated_tokens), `${models[0].generated_tokens} tokens`)
  await until('the pipe has the model', () => lines().some(line => JSON.parse(line).models[0]?.name === DEMO))

  await server.end('SIGKILL')
  await top.sees('waiting for the server')
  await narrow.sees('waiting for the server')
  await until('the pipe waits', () => JSON.parse(lines().at(-1)!).waiting !== undefined)
  restarted = await startCorral(root, { home })
  await top.press('', 'No model is loaded.')
  await until('the pipe continues', () => JSON.parse(lines().at(-1)!).waiting === undefined)

  await top.press('q')
  t.equal(await top.ended(), 0)
  t.match(top.screen(), '\x1b[?1049l', "the shell's screen is restored")
  t.match(top.screen(), '\x1b[?25h', 'with its cursor')
  await narrow.press(CTRL_C)
  t.equal(await narrow.ended(), 130)
  piped.kill('SIGINT')
  t.equal((await once(piped, 'close'))[0], 130)
})

t.test('top ends when its terminal or pipe closes, and at Ctrl-C with a full pipe', async t => {
  const env = commandEnvironment({ home })
  const closed = onTerminal(t, ['top'], home)
  await closed.sees('No model is loaded.')
  closed.close()
  const reader = spawn(process.execPath, [MAIN, 'top', '--json'], { cwd: home, env })
  await once(reader.stdout, 'data')
  const ended = once(reader, 'close')
  reader.stdout.destroy()
  await restarted.json('/api/load', { model: DEMO })
  t.equal((await ended)[0], 0, 'the reader has gone')

  // Nobody reads the pipe, and the shell fills it first.
  const script = `exec 3>&1; (head -c 65536 /dev/zero >&3 &) ; sleep 1; exec '${process.execPath}' '${MAIN}' top --json`
  const full = spawn('bash', ['-c', script], { cwd: home, env, stdio: ['ignore', 'pipe', 'ignore'] })
  await until('it handles signals', () => handlesHangup(full.pid!))
  full.kill('SIGINT')
  t.equal((await once(full, 'exit'))[0], 130, 'a full pipe does not block Ctrl-C')
})

function collectLines(child: ChildProcess): () => string[] {
  let text = ''
  child.stdout!.setEncoding('utf8').on('data', piece => (text += piece))
  return () => text.split('\n').slice(0, -1)
}

/** Whether a process handles SIGHUP, which commands register last of all signals (Linux only). */
function handlesHangup(pid: number): boolean {
  const caught = /^SigCgt:\s*([0-9a-f]+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))
  return (BigInt(`0x${caught![1]}`) & 1n) === 1n
}
