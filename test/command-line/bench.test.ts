import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { SseParser } from '../../core/answers/openai-events.ts'
import { randomEncoder } from '../../scripts/random-models.ts'
import { type Corral, DEMO, endless, startCorral, until } from '../support/corral.ts'
import { thorough } from '../support/thorough.ts'
import { corral } from './command.ts'
import { onTerminal } from './terminal.ts'

const SMALL = ['--context', '128', '--repeat', '2']
const ask = (server: Corral, options: object) =>
  server.json('/api/generate', { model: DEMO, prompt: 'Hi', stream: false, options: { max_tokens: 1, ...options } })
const loaded = async (server: Corral) => (await server.json('/api/ps')).body.models[0]
/** The original state: a context of 768, unloaded after five minutes. */
const isBefore = async (server: Corral) => {
  const { options, expires_at } = (await loaded(server)) ?? {}
  return options?.num_ctx === 768 && options.num_parallel === 4 && Date.parse(expires_at) < Date.now() + 400_000
}

/** Everyday tests share this server. */
const server = await startCorral(t)
const { home } = server

t.test('bench measures a loaded model and restores it', async t => {
  await ask(server, { num_ctx: 768 })
  t.ok(await isBefore(server))
  const { code, stdout, stderr } = await corral(['bench', DEMO, ...SMALL, '--slots', '1,2', '--json'], { home })
  t.equal(code, 0, stderr)
  const report = JSON.parse(stdout)
  t.match(report, { model: DEMO, label: 'F16', mode: 'chat', engine: /^llama-server ./, load: { values: [Number] } })
  t.same(
    report.rows.map((row: any) => [row.context, row.slots, row.prompt.values.length]),
    [
      [128, 1, 2],
      [128, 2, 2]
    ]
  )
  for (const { prompt_tokens, answer_tokens, prompt, answer, first } of report.rows) {
    t.ok(prompt_tokens > 60 && prompt_tokens + answer_tokens <= 128, `${prompt_tokens} + ${answer_tokens}`)
    for (const { median, least, most } of [prompt, answer, first]) t.ok(least > 0 && least <= median && median <= most)
  }
  await until('the model is restored', () => isBefore(server))
  t.match(await corral(['bench', 'no/model'], { home }), { code: 4, stderr: /no\/model/ })
})

t.test('bench restores the model after Ctrl-C, and waits for other clients', thorough, async t => {
  await ask(server, { num_ctx: 768 })
  const stopped = await corral(['bench', DEMO, ...SMALL], { home, interruptAt: 'loading' })
  t.match(stopped, { code: 130, stdout: '' })
  t.notMatch(stopped.stderr, 'error')
  await until('the model is restored', () => isBefore(server))

  const answering = await server.send('/api/chat', { ...endless(DEMO) })
  const lines = answering.body![Symbol.asyncIterator]()
  await lines.next()
  const waiting = await corral(['bench', DEMO, ...SMALL], { home, interruptAt: '1 other request' })
  t.match(waiting, { code: 130, stderr: /--anyway/ })
  t.match(await loaded(server), { running: 1 }, "another client's answer continues")
  await lines.return!()
})

t.test('bench measures an embedding model on a narrow terminal', thorough, async t => {
  const server = await startCorral(t)
  const { home } = server
  writeFileSync(join(home, 'encoder.gguf'), randomEncoder('embedding'))
  t.match(await corral(['import', join(home, 'encoder.gguf'), 'me/encoder'], { home }), { code: 0 })
  const terminal = onTerminal(t, ['bench', 'me/encoder', '--context', '64', '--repeat', '2'], home, { columns: 40 })
  t.equal(await terminal.ended(), 0, terminal.screen())
  const lines = await terminal.lines()
  t.match(lines.join('\n'), /CONTEXT +SLOTS +PROMPT\/s ANSWER\/s FIRST\n +64 +1 +\d\S* ±\d+% +- +-/)
  for (const line of lines) t.ok(line.length <= 40, line)
  await until('it was not loaded before', async () => (await loaded(server)) === undefined)
})

/** The last event of a trial's load. The connection stays open until `close`. */
async function trial(server: Corral, body: object) {
  const controller = new AbortController()
  const response = await server.send(
    '/api/trials',
    { model: DEMO, ...body },
    { local: true, signal: controller.signal }
  )
  const close = () => controller.abort()
  if (response.status !== 200) return { status: response.status, event: (await response.json()) as any, close }
  const lines = new SseParser()
  const chunks = response.body![Symbol.asyncIterator]()
  for (;;) {
    const { value } = await chunks.next()
    const events = lines.push(value).map(payload => JSON.parse(payload))
    const event = events.find(({ status }) => status === 'ready' || status === 'failed')
    if (event) return { status: 200, event, close }
  }
}

t.test('trial settings apply until the connection closes', async t => {
  // A smaller context alone would not reload the model.
  await server.json('/api/stop', { model: DEMO })
  await ask(server, { num_ctx: 768 })
  const overTcp = await server.json('/api/trials', { model: DEMO, session: 'a' })
  t.match(overTcp, { status: 403, body: { code: 'forbidden_role' } }, 'only admins may set engine flags')

  const first = await trial(server, {
    session: 'a',
    settings: { ngram: true, options: { num_ctx: 256, num_parallel: 1 } }
  })
  t.match(first.event, { status: 'ready', context_length: 256, slots: 1, options: { num_ctx: 256, num_parallel: 1 } })
  t.match(await trial(server, { session: 'b' }), { status: 409, event: { code: 'trial_running' } })
  t.match(await ask(server, {}), { status: 200 }, 'other clients get answers')
  t.equal((await loaded(server)).context_length, 256, 'with the settings of the trial')

  const broken = await trial(server, { session: 'a', settings: { arguments: ['--no-such-flag'] } })
  t.match(broken.event, { status: 'failed', code: 'load_failed', reason: /no-such-flag/ })
  first.close()
  t.match(await ask(server, {}), { status: 200 }, 'other clients are not affected by settings that fail')
  t.equal((await loaded(server)).context_length, 4096)

  const next = await trial(server, { session: 'a', settings: { options: { num_ctx: 300 } } })
  t.match(next.event, { status: 'ready', context_length: 512 })
  broken.close()
  t.match(await server.json('/api/trials/activity'), { body: { running: 0, waiting: 0, requests: Number } })
  const { body } = await server.json('/api/trials/tunables', { model: DEMO, settings: {} }, { local: true })
  t.match(body, { file: join(server.home, 'config.yaml') })
  t.ok(body.tunables.some(({ name }: { name: string }) => name === 'threads'))
  next.close()
  await until('the model is restored', () => isBefore(server))
})

t.test('a trial loads a model that was not loaded, and unloads it afterwards', async t => {
  await server.json('/api/stop', { model: DEMO })
  const { event, close } = await trial(server, { session: 'c', settings: { options: { num_ctx: 256 } } })
  t.match(event, { status: 'ready', context_length: 256 })
  close()
  await until('it is unloaded', async () => (await loaded(server)) === undefined)
})
