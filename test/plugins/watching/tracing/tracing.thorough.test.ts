import { createServer, type IncomingHttpHeaders } from 'node:http'
import t, { type Test } from 'tap'
import { CAPITAL_QUESTION, DEMO, startCorral, until } from '../../../support/corral.ts'
import { listen } from '../../../support/listen.ts'
import { thorough } from '../../../support/thorough.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const SPAN = '00f067aa0ba902b7'
const SECRET = 'xyzzy-secret-words'

interface Span {
  name: string
  traceId: string
  spanId: string
  parentSpanId: string
  from: bigint
  to: bigint
  attributes: Record<string, unknown>
}

/** Accepts spans under /v1/traces, and answers OpenAI chat under /v1/chat/completions. */
async function startCollector(t: Test) {
  const spans: Span[] = []
  const asked: IncomingHttpHeaders[] = []
  let text = ''
  const server = createServer(async (request, response) => {
    let body = ''
    for await (const chunk of request.setEncoding('utf8')) body += chunk
    if (request.url === '/v1/chat/completions') {
      asked.push(request.headers)
      const choice = { index: 0, delta: { content: 'Yes.' }, finish_reason: 'stop' }
      const usage = { prompt_tokens: 3, completion_tokens: 1 }
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.end(`data: ${JSON.stringify({ choices: [choice], usage })}\n\ndata: [DONE]\n\n`)
      return
    }
    if (request.url === '/v1/traces') {
      text += body
      for (const { scopeSpans } of JSON.parse(body).resourceSpans) {
        for (const one of scopeSpans.flatMap(({ spans }: any) => spans)) {
          const values = one.attributes.map(({ key, value }: any) => [key, Object.values(value)[0]])
          const [from, to] = [BigInt(one.startTimeUnixNano), BigInt(one.endTimeUnixNano)]
          spans.push({ ...one, from, to, attributes: Object.fromEntries(values) })
        }
      }
    }
    response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
  })
  return { address: `http://127.0.0.1:${await listen(t, server)}`, spans, asked, text: () => text }
}

const chat = (model = DEMO) => ({
  model,
  messages: [CAPITAL_QUESTION, { role: 'user', content: SECRET }],
  stream: false
})

t.test('each request to a model has a span below the span of its caller', async t => {
  const { address, spans, asked, text } = await startCollector(t)
  const remote = `remote: { models: { far/one: { model: one, servers: [{ url: "${address}/v1" }] } } }`
  const corral = await startCorral(t, { config: `tracing: { endpoint: "${address}" }\n${remote}` })
  const traced = (flags: string) => ({ headers: { traceparent: `00-${TRACE}-${SPAN}-${flags}` } })
  t.equal((await corral.json('/api/chat', chat(), traced('01'))).status, 200)
  t.equal((await corral.json('/api/chat', chat(), traced('00'))).status, 200)
  t.equal((await corral.json('/v1/chat/completions', chat())).status, 200)
  t.equal((await corral.json('/api/chat', chat('far/one'), traced('01'))).status, 200)
  t.equal((await corral.json('/api/chat', { ...chat(), options: { num_parallel: 256 } })).status, 400)
  t.equal((await corral.json('/api/tags')).status, 200)
  const requests = () => spans.filter(({ attributes }) => 'http.route' in attributes)
  await until('the spans arrive', () => requests().length >= 4)

  t.equal(requests().length, 4, 'unsampled callers and requests without a model are not traced')
  const [first] = requests().filter(
    ({ traceId, attributes }) => traceId === TRACE && attributes['gen_ai.request.model'] === DEMO
  )
  t.match(first, { name: `chat ${DEMO}`, parentSpanId: SPAN })
  t.match(first!.attributes, {
    'gen_ai.operation.name': 'chat',
    'gen_ai.provider.name': 'corral',
    'http.request.method': 'POST',
    'http.route': '/api/chat',
    'corral.surface': 'api-native'
  })
  t.equal(Number(first!.attributes['http.response.status_code']), 200)
  t.ok(Number(first!.attributes['gen_ai.usage.output_tokens']) > 0)
  const parts = spans.filter(({ parentSpanId }) => parentSpanId === first!.spanId)
  t.same(parts.map(({ name }) => name).sort(), ['engine', 'load', 'wait'])
  for (const { name, from, to, traceId } of parts) {
    t.equal(traceId, TRACE)
    t.ok(first!.from <= from && from <= to && to <= first!.to, `${name} is within the request`)
  }
  const own = requests().find(({ attributes }) => attributes['corral.surface'] === 'api-openai')
  t.notOk(own!.parentSpanId)
  t.not(own!.traceId, TRACE)
  t.match(requests().find(({ attributes }) => attributes['error.type'] === 'over_limit')!.attributes, {
    'gen_ai.request.model': DEMO
  })

  const far = requests().find(({ attributes }) => attributes['gen_ai.request.model'] === 'far/one')
  t.equal(asked[0]?.traceparent, `00-${TRACE}-${far!.spanId}-01`, "the remote server's span is below this one")
  t.notMatch(text(), SECRET)
  t.notMatch(text(), '127.0.0.1', 'no addresses')
})

t.test('an unreachable collector is logged once and does not delay requests or shutdown', thorough, async t => {
  const corral = await startCorral(t, { env: { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:9' } })
  for (let count = 0; count < 3; count++) t.equal((await corral.json('/api/chat', chat())).status, 200)
  await until('the log says so', () => corral.log().includes('Traces cannot be sent'))
  t.equal((await corral.json('/api/chat', chat())).status, 200)
  t.equal(await corral.end(), 0)
  t.equal(corral.log().split('Traces cannot be sent').length, 2)
})
