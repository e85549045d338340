import t from 'tap'
import { DEMO, startCorral } from '../support/corral.ts'

const SIZE = 8 * 2 ** 20
const filled = (piece: string, before = '', after = '') =>
  `${before}${piece.repeat(Math.floor(SIZE / piece.length))}${after}`
const listed = (piece: string, count: number) => `[${Array(count).fill(piece).join(',')}]`
const keys = (count: number, name: (index: number) => string) =>
  `{${Array.from({ length: count }, (_, index) => `"${name(index)}":1`).join(',')}}`

/** Bodies that blocked the gateway's thread for seconds, or might, and the code that refuses them. */
const BODIES: [string, () => string, string][] = [
  ['lists that begin', () => '['.repeat(60 * 2 ** 20), 'over_limit'],
  ['lists that begin and end', () => `${'['.repeat(SIZE / 2)}${']'.repeat(SIZE / 2)}`, 'over_limit'],
  ['objects in objects', () => filled('{"a":'), 'over_limit'],
  ['lists far behind', () => `{"model":"${'x'.repeat(SIZE / 2)}","messages":${'['.repeat(1000)}`, 'over_limit'],
  ['lists behind a string with quotes', () => `{"model":"\\"\\\\","messages":${'['.repeat(1000)}`, 'over_limit'],
  ['many lists', () => listed(`${'['.repeat(150)}${']'.repeat(150)}`, 20_000), 'body_too_large'],
  ['many objects', () => listed('{"a":{}}', 500_000), 'body_too_large'],
  ['many keys', () => keys(500_000, index => `k${index}`), 'body_too_large'],
  ['many keys that are numbers', () => keys(500_000, index => String(index * 7919)), 'body_too_large'],
  ['one key', () => keys(500_000, () => 'a'), 'body_too_large'],
  ['dangerous keys', () => keys(500_000, () => '__proto__'), 'body_too_large'],
  ['digits', () => filled('7'), 'invalid_request'],
  ['a long number', () => filled('7', '{"model":', '}'), 'invalid_request'],
  ['escapes', () => filled('\\u0000', '{"model":"', '"}'), 'invalid_request'],
  ['quotation marks', () => filled('\\"', '{"model":"', '"}'), 'invalid_request'],
  ['a string that does not end', () => filled('\\u0000', '{"model":"'), 'invalid_json'],
  ['whitespace', () => filled(' '), 'missing_body'],
  ['line ends, then a mistake', () => filled('\n', '{', 'x'), 'invalid_json'],
  ['numbers', () => listed('1e308', 500_000), 'invalid_request']
]

const corral = await startCorral(t)

t.test('no body blocks other clients', async t => {
  let stopped = false
  let answered = 0
  const asking = (async () => {
    while (!stopped) {
      const { status } = await corral.json('/api/health')
      if (status !== 200) throw new Error(`health answered ${status}`)
      answered++
    }
  })()
  await corral.json('/v1/chat/completions', '{}')
  for (const [what, body, code] of BODIES) {
    const { status, body: reply } = await corral.json('/v1/chat/completions', body())
    t.equal(status, code === 'body_too_large' ? 413 : 400, what)
    t.equal(reply.error.code, code, `${what}: ${reply.error.message}`)
  }
  const invalid = await corral.send('/v1/chat/completions', undefined, { method: 'POST' })
  t.equal(invalid.status, 400)
  stopped = true
  await asking
  t.ok(answered > BODIES.length, 'health was answered in the meantime')
})

t.test('the nesting depth of bodies is limited on every API by the configuration', async t => {
  await corral.reload('limits: { body_depth: 12 }')
  const nested = (depth: number) => `${'['.repeat(depth)}${']'.repeat(depth)}`
  for (const path of ['/api/chat', '/ollama/api/generate', '/v1/responses', '/v1/embeddings', '/api/pull']) {
    const { status, body } = await corral.json(path, `{"model":"${DEMO}","x":${nested(12)}}`)
    t.equal(status, 400, path)
    t.match(JSON.stringify(body), /limits\.body_depth/, path)
    t.match(JSON.stringify(body), /12 levels/, path)
  }
  const { status, body } = await corral.json('/v1/messages', `{"model":"${DEMO}","x":${nested(12)}}`)
  t.equal(status, 400)
  t.equal(body.type, 'error', "in the API's error format")
  const fits = await corral.json('/api/chat', `{"model":"${DEMO}","messages":[],"x":${nested(11)}}`)
  t.equal(fits.status, 200, 'one level less is allowed')
})
