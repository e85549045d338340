import t from 'tap'
import { formatLogs } from '../../../command-line/commands/loaded-models.ts'
import type { EngineLogRecord } from '../../../core/contracts/engine-log.ts'
import { CorralError } from '../../../core/errors.ts'
import { createLogEvents } from '../../../plugins/apis/native/log-routes.ts'
import { createEngineLogs } from '../../../runtimes/llama-server/engine-logs.ts'

const engine = (id: string, variant = 'a/b:q8', paths: string[] = []) => ({ id, variant, build: 'build', paths })
const EXIT = { code: 1, signal: null }

t.test('engine logs store the output of engines', t => {
  const book = createEngineLogs()
  t.same(book.records('a/b:q8'), [])
  const first = book.open(engine('first', 'a/b:q8', ['/srv/my models/x.gguf']))
  first.push("E gguf_init: failed to open '/srv/my models/x.gguf' in /opt/llama/src/gguf.cpp:12")
  const failure = new CorralError('load_failed', 'No.', { details: { cause: 'file_missing' } })
  first.end(EXIT, failure)
  book.open(engine('second'))
  book.open(engine('other', 'c/d:f16'))
  const [newest, oldest] = book.records('a/b:q8')
  t.match(newest, { engine: 'second', build: 'build', lines: [], dropped: 0 })
  t.equal(newest!.endedAt, undefined)
  t.match(oldest, {
    engine: 'first',
    endedAt: /Z$/,
    exit: EXIT,
    failure: { code: 'load_failed', cause: 'file_missing', message: 'No.' },
    lines: ["E gguf_init: failed to open 'x.gguf' in gguf.cpp:12"]
  })
  t.end()
})

t.test('engine logs drop old records but none of running engines', t => {
  const book = createEngineLogs({ perVariant: 3, characters: 1000 })
  const running = book.open(engine('running'))
  running.push('r'.repeat(400))
  for (let n = 1; n <= 10; n++) book.open(engine(`${n}`)).end(EXIT, undefined)
  const engines = book.records('a/b:q8').map(record => record.engine)
  t.same(engines, ['10', '9', '8', 'running'])
  for (const variant of ['v1', 'v2', 'v3']) {
    const page = book.open(engine(variant, variant))
    page.push('x'.repeat(500))
    page.end(EXIT, undefined)
  }
  const counts = ['v1', 'v2', 'v3'].map(variant => book.records(variant).length)
  t.same(counts, [0, 1, 1], 'the oldest are dropped when all are too long together')
  t.equal(book.records('a/b:q8').at(-1)?.engine, 'running')
  t.end()
})

const record = (more: Partial<EngineLogRecord>): EngineLogRecord => ({
  engine: 'e1',
  build: 'b',
  startedAt: 'then',
  dropped: 0,
  lines: [],
  ...more
})

t.test('a follower of the log gets all lines in order', t => {
  const news = createLogEvents(1)
  const old = record({ engine: 'e0', lines: ['old'], endedAt: 'long ago' })
  t.same(news([record({ lines: ['a', 'b'] }), old]), [
    { engine: 'e1', build: 'b', startedAt: 'then' },
    { engine: 'e1', line: 'b' }
  ])
  t.same(news([record({ lines: ['a', 'b'] }), old]), [])
  t.same(news([record({ lines: ['b', 'c', 'd'], dropped: 1 }), old]), [
    { engine: 'e1', line: 'c' },
    { engine: 'e1', line: 'd' }
  ])
  t.same(news([record({ lines: ['z'], dropped: 9 }), old]), [{ engine: 'e1', line: 'z' }], 'missed lines')
  const failure = { code: 'engine_crashed', cause: 'hung', message: 'It hung.' }
  const ended = record({ lines: ['z'], dropped: 9, endedAt: 'now', exit: { code: null, signal: 'SIGKILL' }, failure })
  t.same(news([record({ engine: 'e2', lines: ['new'] }), ended, old]), [
    { engine: 'e1', endedAt: 'now', exit: { code: null, signal: 'SIGKILL' }, failure },
    { engine: 'e2', build: 'b', startedAt: 'then' },
    { engine: 'e2', line: 'new' }
  ])
  t.same(createLogEvents(5)([]), [])
  t.end()
})

t.test('corral logs prints human-readable lines', t => {
  t.equal(formatLogs({ model: 'a/b', engines: [] }, false), 'No engine has run a/b since the server started.')
  const failure = { code: 'load_failed', cause: 'not_gguf', message: 'It is a page.' }
  const engines = [
    record({ engine: 'new', lines: ['x'] }),
    record({ engine: 'old', lines: ['y'], dropped: 3, endedAt: 'now', exit: { code: 1, signal: null }, failure })
  ]
  t.equal(
    formatLogs({ model: 'a/b', engines }, true),
    `== engine old, started then on b ==
(3 earlier lines)
y
== ended now, exit code 1 == load_failed (not_gguf): It is a page.

== engine new, started then on b ==
x`
  )
  t.end()
})

t.test('corral logs explains logs in plain words', t => {
  const lines = [
    'I srv  llama_server: initializing ...',
    "I srv    load_model: loading model 'tiny-chat-f16.gguf'",
    'I cmn          init: llama threadpool init, n_threads = 2',
    "I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 4096, kv_unified = 'false'",
    'I srv  llama_server: model loaded',
    '│ E srv  say: a client cannot write events',
    'I slot print_timing: id  3 | task 0 | prompt eval time =     167.34 ms /    12 tokens (   13.94 ms per token,    71.71 tokens per second)',
    'I slot print_timing: id  3 | task 0 |        eval time =      29.49 ms /    17 tokens (    1.84 ms per token,   542.48 tokens per second)',
    'I slot      release: id  3 | task 0 | stop processing: n_tokens = 28, truncated = 1',
    'E srv    send_error: something is wrong'
  ]
  const said = [
    'loads tiny-chat-f16.gguf',
    'computes with 2 threads',
    'answers 4 requests at once, each with a context of 4096 tokens',
    'is loaded and takes requests',
    'request 0: read 12 tokens (72 tokens/s), wrote 17 tokens (542 tokens/s)',
    'request 0: the context was full',
    'error: something is wrong'
  ]
  const book = createEngineLogs()
  const log = book.open({ id: 'e', variant: 'a/b', build: 'b', paths: [] })
  for (const line of lines) log.push(line)
  const [engine] = book.records('a/b')
  const texts = engine!.events?.map(({ text }) => text)
  t.same(texts, said)
  t.same(
    createLogEvents(500)([engine!])
      .map(event => ('line' in event ? event.plain : undefined))
      .filter(text => text !== undefined),
    said,
    'each event follows its line'
  )
  log.end({ code: null, signal: 'SIGKILL' } as Parameters<typeof log.end>[0], undefined)
  const text = formatLogs({ model: 'a/b', engines: book.records('a/b') }, false, 2)
  t.match(
    text,
    /^Engine e, started at \d{4}-.* on b\n {2}request 0: the context was full\n {2}error: .*\n {2}ended at .* with SIGKILL$/
  )
  t.end()
})
