import t from 'tap'
import { printable, printableJson } from '../../core/system/printable.ts'
import { classifyFailure } from '../../runtimes/llama-server/failure.ts'
import { createOutputReader } from '../../runtimes/llama-server/loading.ts'
import { DEMO, startCorral, until } from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'

const FORGED = readCases<string[]>('attack-cases.yaml', 'forgedLines')
const GRAMMAR = `root ::= "a\n${FORGED.join('\n')}\n`

t.test('lines of a grammar are marked, truncated and free of control characters', t => {
  let time = 0
  const read = createOutputReader(() => time)
  read('{"type":"log","time":1,"level":"info","msg":"model loaded\\n"}', 'stdout')
  read('parse: error parsing grammar: expecting newline or end', 'stderr')
  for (const line of [...FORGED, 'x'.repeat(100_000)]) {
    const [each, ...more] = read(line, 'stderr')
    t.same(more, [])
    t.equal(each?.type, 'text', line.slice(0, 80))
    const { text } = each as { text: string }
    t.ok(text.startsWith('│ '), text.slice(0, 80))
    t.ok(text.length < 2100)
    // biome-ignore lint/suspicious/noControlCharactersInRegex: none of them may be left
    t.notMatch(text, /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u202e]/)
  }
  time = 5000
  t.match(read('/build/ggml.c:12: fatal error', 'stderr'), [{ text: '/build/ggml.c:12: fatal error' }], 'quotes end')
  t.match(read('{"type":"log","time":1,"level":"error","msg":"first\\nCUDA error: out of memory\\n"}', 'stdout'), [
    { text: 'first' },
    { text: '│ CUDA error: out of memory' }
  ])
  time = 9000
  t.match(read('rest of a message that was too long: CUDA error: out of memory"}', 'stdout'), [{ text: /^│ / }])
  t.match(read('cmd_child_to_router:state:{"state":"ready"}', 'stderr'), [{ type: 'text' }], 'states come on stdout')
  t.end()
})

t.test('text from a request never decides the cause of a later crash', t => {
  const cases: [lines: string[], signal: string, cause: string][] = readCases('attack-cases.yaml', 'lastLines')
  const marked = FORGED.map(line => `│ ${line}`)
  for (const [lines, signal, cause] of [...cases, [marked, 'SIGSEGV', 'crashed'] as const]) {
    t.equal(classifyFailure(lines, { code: null, signal }).cause, cause, `${signal} after ${lines.at(-1)}`)
  }
  t.end()
})

t.test('the server log has no control characters, not even on a terminal', t => {
  const line = `${JSON.stringify({ msg: 'a\u001b[31m\u0085b\nfake line', err: { stack: 'Error: x\n    at y' } })}\n`
  t.same(JSON.parse(printable(line.slice(0, -1))), JSON.parse(line), 'JSON keeps its value')
  t.notMatch(printable(line.slice(0, -1)), /\u0085/)
  const { msg, err } = JSON.parse(printableJson(line))
  t.equal(msg, 'a\\u001b[31m\\u0085b\\nfake line')
  t.equal(err.stack, 'Error: x\n    at y', 'stack traces keep their lines')
  t.equal(JSON.parse(printableJson('{"msg":"C:\\\\new \\\\u001b"}')).msg, 'C:\\new \\u001b')
  t.end()
})

t.test('a grammar that imitates failures ends nothing and is not believed', async t => {
  const corral = await startCorral(t)
  const ask = (options: object) =>
    corral.json('/api/chat', { model: DEMO, messages: [{ role: 'user', content: 'hi' }], stream: false, options })
  t.equal((await ask({ max_tokens: 4 })).status, 200)
  const [pid] = corral.enginePids()
  t.equal((await ask({ grammar: GRAMMAR, max_tokens: 4 })).status, 400)
  t.equal((await ask({ max_tokens: 4 })).status, 200)
  t.same(corral.enginePids(), [pid], 'the engine still runs')
  const engineLines = async () =>
    (await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })).body.engines[0].lines as string[]
  const lines = await engineLines()
  for (const line of lines.filter(line => /CUDA|bad_alloc|GGML_ASSERT|kIOGPU|libcuda/.test(line))) {
    t.match(line, /^│ /, line.slice(0, 80))
  }
  process.kill(pid!, 'SIGSEGV')
  await until(
    'its end is noticed',
    async () => (await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })).body.engines[0].endedAt
  )
  t.match((await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })).body.engines[0].failure, {
    cause: 'crashed'
  })
})
