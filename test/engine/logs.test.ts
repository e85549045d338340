import t from 'tap'
import { formatLogs } from '../../command-line/commands/loaded-models.ts'
import type { EngineLogRecord } from '../../core/contracts/engine-log.ts'
import { CorralError } from '../../core/errors.ts'
import { createLogEvents } from '../../plugins/api-native/log-routes.ts'
import { createEngineLogBook } from '../../runtimes/llama-server/log-book.ts'

const engine = (id: string, variant = 'a/b:q8', paths: string[] = []) => ({ id, variant, build: 'build', paths })
const EXIT = { code: 1, signal: null }

t.test('the log book', t => {
  const book = createEngineLogBook()
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

t.test('the log book is bounded; engines that run stay', t => {
  const book = createEngineLogBook({ perVariant: 3, characters: 1000 })
  const running = book.open(engine('running'))
  running.push('r'.repeat(400))
  for (let n = 1; n <= 10; n++) book.open(engine(`${n}`)).end(EXIT, undefined)
  t.same(
    book.records('a/b:q8').map(record => record.engine),
    ['10', '9', '8', 'running']
  )
  for (const variant of ['v1', 'v2', 'v3']) {
    const page = book.open(engine(variant, variant))
    page.push('x'.repeat(500))
    page.end(EXIT, undefined)
  }
  t.same(
    ['v1', 'v2', 'v3'].map(variant => book.records(variant).length),
    [0, 1, 1],
    'the oldest go when all are too long together'
  )
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

t.test('what a follower of the log gets', t => {
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
  t.same(news([record({ lines: ['z'], dropped: 9 }), old]), [{ engine: 'e1', line: 'z' }], 'lines that were missed')
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

t.test('logs for people', t => {
  t.equal(formatLogs({ model: 'a/b', engines: [] }), 'No engine of a/b has run since the server started.')
  const failure = { code: 'load_failed', cause: 'not_gguf', message: 'It is a page.' }
  const engines = [
    record({ engine: 'new', lines: ['x'] }),
    record({ engine: 'old', lines: ['y'], dropped: 3, endedAt: 'now', exit: { code: 1, signal: null }, failure })
  ]
  t.equal(
    formatLogs({ model: 'a/b', engines }),
    `== engine old, started then on b ==
(3 earlier lines)
y
== ended now, exit code 1 == load_failed (not_gguf): It is a page.

== engine new, started then on b ==
x`
  )
  t.end()
})
