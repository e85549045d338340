import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import type { Progress, Waiting } from '../../../core/contracts/progress.ts'
import type { CorralError } from '../../../core/errors.ts'
import { processStartTime } from '../../../core/system/processes.ts'
import { readJson, readText } from '../../../core/system/response-body.ts'
import { KNOWN_OPTIONS } from '../../../runtimes/llama-server/answer-fields.ts'
import type { LlamaServerEngine } from '../../../runtimes/llama-server/engine.ts'
import { createLlamaServerEngine, type EngineDeps } from '../../../runtimes/llama-server/engine.ts'
import { createEngineLogs } from '../../../runtimes/llama-server/engine-logs.ts'
import type { LaunchSpec } from '../../../runtimes/llama-server/launch-spec.ts'
import { failure } from '../../support/failure.ts'
import { thorough } from '../../support/thorough.ts'
import { trialCount } from '../../support/trial-count.ts'
import { buildOf, engineDeps, engineSpec, MODEL, realBuild } from './support.ts'

// Settings that an engine must ignore, see "surroundings" below.
const strayConfig = t.testdir({ 'llama.cpp': { 'config.ini': 'metrics = 1\nn-predict = 3\n' } })
process.env.XDG_CONFIG_HOME = strayConfig
process.env.LLAMA_ARG_ENDPOINT_METRICS = '1'
process.env.LLAMA_ARG_N_PREDICT = '3'

const BUILD = realBuild()
const NEVER = new AbortController().signal
const QUESTION = { messages: [{ role: 'user', content: 'What is the capital of France?' }], temperature: 0 }
const ANSWER = 'The capital of France is Paris.'
/** Keeps an engine busy for many seconds. */
const ENDLESS = { prompt: 'Once', n_predict: -1, ignore_eos: true }

/** Room for endless generation on one slot. */
const LONG: Partial<LaunchSpec> = { options: { ...engineSpec().options, num_ctx: 32768, num_parallel: 1 } }

const load = (run: string, spec: Partial<LaunchSpec> = {}, deps: Partial<EngineDeps> = {}, waiting: Waiting = {}) =>
  createLlamaServerEngine(BUILD, engineSpec(spec), engineDeps(run, deps), waiting)

/** Starts an engine and stops it at the end of the test. */
async function start(
  t: { teardown(end: () => Promise<void>): void },
  spec: Partial<LaunchSpec> = {},
  deps: Partial<EngineDeps> = {}
): Promise<{ engine: LlamaServerEngine; run: string }> {
  const run = mkdtempSync(join(tmpdir(), 'corral-test-'))
  const engine = await load(run, spec, deps)
  t.teardown(async () => {
    await engine.stop()
    rmSync(run, { recursive: true })
  })
  return { engine, run }
}

function post(engine: LlamaServerEngine, path: string, body: unknown, signal = NEVER) {
  return engine.request({ method: 'POST', path, body: JSON.stringify(body), signal })
}

async function ask(engine: LlamaServerEngine): Promise<string> {
  const { status, body } = await post(engine, '/v1/chat/completions', QUESTION)
  const reply = (await readJson(body)) as { choices: { message: { content: string } }[] }
  return status === 200 ? reply.choices[0]!.message.content : JSON.stringify(reply)
}

/** Starts an endless stream and waits for its first bytes. */
async function endlessStream(engine: LlamaServerEngine, signal = NEVER) {
  const { body } = await post(engine, '/completion', { ...ENDLESS, stream: true }, signal)
  let begun = () => {}
  const first = new Promise<void>(resolve => {
    begun = resolve
  })
  const end = body.consume(() => void begun())
  end.catch(() => {
    // Callers that wait for the end handle the error.
  })
  await Promise.race([first, end])
  return { end, cancel: () => body.cancel() }
}

/** Starts an endless request without a stream, and waits until the engine works on it. */
async function endlessReply(engine: LlamaServerEngine, signal = NEVER): Promise<{ error: Promise<CorralError> }> {
  const error = failure(post(engine, '/completion', ENDLESS, signal))
  while (!(await isBusy(engine))) await sleep(10)
  return { error }
}

async function isBusy(engine: LlamaServerEngine): Promise<boolean> {
  const { body } = await engine.request({ method: 'GET', path: '/slots', signal: NEVER })
  return ((await readJson(body)) as { is_processing: boolean }[]).some(slot => slot.is_processing)
}

t.test('every setting that the build reports is known', async t => {
  const engine = await load(t.testdir({}))
  t.teardown(() => engine.stop())
  const { body } = await engine.request({ method: 'GET', path: '/props', signal: NEVER })
  const { default_generation_settings: settings } = (await readJson(body)) as any
  const names = Object.keys(settings.params)
  t.ok(names.length > 30)
  // Startup parameters, which no request can change.
  const reported = ['speculative.types']
  t.same(
    names.filter(name => !KNOWN_OPTIONS.includes(name) && !reported.includes(name)),
    []
  )
})

t.test('an engine loads with progress, answers, and leaves nothing behind', async t => {
  const run = t.testdir({})
  const progress: Progress[] = []
  const engine = await load(run, {}, {}, { onProgress: step => progress.push(step) })
  t.match(progress[0], { phase: 'loading', subject: '' })
  t.equal(progress.at(-1)?.fraction, 1)
  const fractions = progress.map(step => step.fraction ?? 0)
  t.same(fractions, [...fractions].sort())

  t.equal(engine.contextSize, 4096)
  t.equal(engine.slots, 2)
  t.ok(engine.memory!.host! > 2 ** 20)
  t.same(Object.keys(engine.memory!), ['host'])
  t.ok(engine.logTail().some(line => line.includes('loading model')))
  const listening = engine.logTail().find(line => line.includes('listening on'))
  t.match(listening, 'unix:///')
  t.equal(await ask(engine), ANSWER)

  const [record] = readdirSync(run)
  const { folder, pid } = JSON.parse(readFileSync(join(run, record!), 'utf8'))
  t.equal(pid, engine.pid)
  t.ok(existsSync(join(folder, 'engine.sock')))

  const stops = [engine.stop(), engine.stop()]
  await Promise.all(stops)
  t.same(await engine.exited, { code: 0, signal: null, expected: true })
  await engine.stop()
  t.notOk(existsSync(folder), 'its private folder is gone')
  t.same(readdirSync(run), [], 'its record is gone')
  t.equal(await processStartTime(pid), undefined)
  t.equal((await failure(ask(engine))).code, 'model_stopped')
})

t.test('the engine uses TCP with a key when a socket is impossible', async t => {
  const deep = t.testdir({ ['d'.repeat(100)]: {} })
  const { engine } = await start(t, {}, { socketRoot: join(deep, 'd'.repeat(100)) })
  t.equal(await ask(engine), ANSWER)
  const address = /http:\/\/127\.0\.0\.1:\d+/.exec(engine.logTail().join('\n'))![0]
  const stranger = await fetch(`${address}/v1/chat/completions`, { method: 'POST', body: JSON.stringify(QUESTION) })
  t.equal(stranger.status, 401)
  t.notMatch(readFileSync(`/proc/${engine.pid}/cmdline`, 'utf8'), /key/i, 'the key is not on the command line')
})

t.test('surroundings do not change an engine', async t => {
  const { engine } = await start(t)
  // Only engines for conversations get the flag.
  const { engine: other } = await start(t, { mode: 'embedding' })
  const { status } = await other.request({ method: 'GET', path: '/metrics', signal: NEVER })
  t.equal(status, 501, 'neither a variable nor a configuration file enabled metrics')
  t.equal(await ask(engine), ANSWER, 'or truncated the answer')
})

t.test('the engine embeds and ranks', async t => {
  const { engine } = await start(t, { mode: 'embedding' })
  for (const input of ['Paris', 'word '.repeat(1500)]) {
    const { status, body } = await post(engine, '/v1/embeddings', { input })
    const reply = (await readJson(body)) as { data: { embedding: number[] }[] }
    t.equal(status, 200, `${input.length} letters`)
    t.equal(reply.data[0]!.embedding.length, 256)
    t.ok(reply.data[0]!.embedding.some(value => value !== 0))
  }
  const { engine: ranker } = await start(t, { mode: 'rerank' })
  const { status } = await post(ranker, '/v1/rerank', { query: 'Paris', documents: ['France', 'cheese'] })
  t.equal(status, 200)
})

t.test('the engine serves many requests, parallel and in sequence, streamed or not', async t => {
  const { engine } = await start(t)
  const answers = await Promise.all(Array.from({ length: trialCount(20) }, () => ask(engine)))
  t.same([...new Set(answers)], [ANSWER])
  for (let n = 0; n < trialCount(10); n++) {
    const { body } = await post(engine, '/v1/chat/completions', { ...QUESTION, stream: true })
    const all = await readText(body)
    if (!all.trimEnd().endsWith('data: [DONE]')) t.fail(`stream ${n} ended early: ${all.slice(-200)}`)
  }
})

t.test('an abort frees the slot at once', async t => {
  const { engine } = await start(t, LONG)
  const reason = new Error('The client left.')

  const first = new AbortController()
  const stream = await endlessStream(engine, first.signal)
  first.abort(reason)
  t.equal(await failure(stream.end), reason)
  t.equal(await ask(engine), ANSWER)

  const second = new AbortController()
  const reply = await endlessReply(engine, second.signal)
  second.abort(reason)
  t.equal(await reply.error, reason)
  t.equal(await ask(engine), ANSWER)

  const dropped = await endlessStream(engine)
  dropped.cancel()
  t.equal(await ask(engine), ANSWER)

  t.equal(await failure(post(engine, '/completion', ENDLESS, AbortSignal.abort(reason))), reason)
})

t.test('an engine stops during an answer', async t => {
  const { engine: streaming } = await start(t, LONG)
  const cut = failure((await endlessStream(streaming)).end)
  await streaming.stop()
  t.equal((await cut).code, 'model_stopped')
  t.ok((await streaming.exited).expected)

  const { engine: replying } = await start(t, LONG)
  const reply = await endlessReply(replying)
  await replying.stop()
  t.equal((await reply.error).code, 'model_stopped')
  // llama-server checks for broken connections only once a second, so a busy machine may need to kill it.
  t.ok((await replying.exited).expected)
})

t.test('a stream without a reader ends without an unhandled error', async t => {
  const { engine } = await start(t, LONG)
  const { body } = await post(engine, '/completion', { ...ENDLESS, stream: true })
  await engine.stop()
  t.equal((await failure(readText(body))).code, 'model_stopped')
})

t.test('a stream reports that its engine was killed', async t => {
  const { engine, run } = await start(t, LONG)
  const stream = await endlessStream(engine)
  const waiting = failure(post(engine, '/completion', ENDLESS))
  process.kill(engine.pid!, 'SIGKILL')
  for (const error of [await failure(stream.end), await waiting]) {
    t.equal(error.code, 'engine_crashed')
    t.match(error.message, /corral\/tiny-chat.*killed from outside \(SIGKILL\)/)
    t.match(error.details, { cause: 'killed', signal: 'SIGKILL' })
  }
  t.match(await engine.exited, { code: null, signal: 'SIGKILL', expected: false, failure: { code: 'engine_crashed' } })
  t.equal((await failure(ask(engine))).code, 'engine_crashed')
  await engine.stop()
  t.same(readdirSync(run), [])
})

t.test('a stopped process is reported as hanging, but a long prefill is not', thorough, async t => {
  const run = t.testdir({})
  const spec = engineSpec({ options: { ...engineSpec().options, num_ctx: 8192, num_parallel: 1 } })
  const prompt = 'one two three four five six seven eight nine ten '.repeat(200)
  /** Returns the milliseconds of a long prefill, during which nothing is sent. */
  const readLongPrompt = async (engine: LlamaServerEngine) => {
    const began = performance.now()
    const { status, body } = await post(engine, '/completion', { prompt, n_predict: 1, cache_prompt: false })
    await readText(body)
    t.equal(status, 200)
    return performance.now() - began
  }
  const measuring = await load(run, spec)
  const usual = await readLongPrompt(measuring)
  await measuring.stop()

  const hangTimeout = Math.max(300, usual / 4)
  const engineLogs = createEngineLogs()
  const engine = await load(run, spec, { hangTimeout, engineLogs })
  t.ok((await readLongPrompt(engine)) > hangTimeout, `no hang is detected in it within ${Math.round(hangTimeout)} ms`)
  const waiting = failure(readLongPrompt(engine))
  process.kill(engine.pid!, 'SIGSTOP')
  const error = await waiting
  t.equal(error.code, 'engine_crashed')
  t.equal(error.details?.cause, 'hung')
  t.ok(error.retryable)
  t.match(await engine.exited, { signal: 'SIGKILL', expected: false, failure: { details: { cause: 'hung' } } })
  await engine.stop()
  t.match(engineLogs.records(spec.variant.key)[0], { failure: { cause: 'hung' }, exit: { signal: 'SIGKILL' } })
  t.same(readdirSync(run), [])
})

t.test('a load can be aborted', async t => {
  const run = t.testdir({})
  const reason = new Error('Not wanted any more.')
  const control = new AbortController()
  let pid: number | undefined
  const given = load(
    run,
    {},
    {},
    {
      signal: control.signal,
      onProgress({ fraction }) {
        if (fraction === undefined) return
        pid = JSON.parse(readFileSync(join(run, readdirSync(run)[0]!), 'utf8')).pid
        control.abort(reason)
      }
    }
  )
  t.equal(await failure(given), reason)
  t.same(readdirSync(run), [])
  if (pid !== undefined) t.equal(await processStartTime(pid), undefined)
  t.equal(await failure(load(run, {}, {}, { signal: AbortSignal.abort(reason) })), reason)
})

t.test('failed loads explain the reason', async t => {
  const model = readFileSync(MODEL)
  const files = t.testdir({ 'page.gguf': '<html>no model here</html>', 'empty.gguf': '' })
  writeFileSync(join(files, 'cut-header.gguf'), model.subarray(0, 2000))
  writeFileSync(join(files, 'cut-data.gguf'), model.subarray(0, 1_000_000))
  writeFileSync(join(files, 'other.gguf'), Buffer.from(model.toString('latin1').replace('llama', 'lamma'), 'latin1'))
  const quantized = { ...engineSpec().options, cache_type_v: 'q8_0' as const }

  const file = (name: string) => ({ modelPath: join(files, `${name}.gguf`) })
  const cases: [cause: string, Partial<LaunchSpec>, string[]?][] = [
    ['file_missing', file('absent')],
    ['not_gguf', file('page')],
    ['file_damaged', file('empty')],
    ['file_damaged', file('cut-header')],
    ['file_damaged', file('cut-data')],
    ['unsupported_architecture', file('other')],
    ['projector_mismatch', { projectorPath: MODEL }],
    ['unknown_flag', {}, ['--no-such-flag']],
    ['bad_flag_value', {}, ['--ctx-size', 'many']],
    ['flash_attention_required', { options: quantized }, ['-fa', 'off']]
  ]
  for (const [cause, spec, extraArguments = []] of cases) {
    const run = join(files, 'run')
    const error = await failure(load(run, spec, { extraArguments }))
    t.same([error.code, error.details?.cause], ['load_failed', cause], error.message)
    t.match(error.message, 'corral/tiny-chat')
    t.type(error.details?.line, 'string')
    const shown = `${error.message} ${error.details?.line}`
    t.notMatch(shown, /[\\/](?:tap|dist|plugins|fixtures)[\\/]/, 'no folder is shown')
    t.same(readdirSync(run), [], 'nothing is left')
  }
})

t.test('a build that cannot start is blamed', async t => {
  const files = t.testdir({ 'llama-server': 'not a program' })
  mkdirSync(join(files, 'folder'))
  const plain = join(files, 'llama-server')
  chmodSync(plain, 0o644)
  for (const server of [join(files, 'absent'), plain, join(files, 'gone', 'llama-server')]) {
    const started = createLlamaServerEngine(buildOf(server), engineSpec(), engineDeps(join(files, 'run')), {})
    const error = await failure(started)
    t.same([error.code, error.details?.cause], ['runtime_missing', 'executable_missing'], server)
    t.same(readdirSync(join(files, 'run')), [])
  }
})
