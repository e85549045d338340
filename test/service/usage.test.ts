import t from 'tap'
import { CAPITAL_QUESTION, DEMO, startCorral } from '../support/corral.ts'

const corral = await startCorral(t)
const messages = [CAPITAL_QUESTION]
const system = 'You are Leo.'
const options = { temperature: 0 }

interface Counts {
  prompt: number
  completion: number
}

const native = (body: any): Counts => ({ prompt: body.prompt_eval_count, completion: body.eval_count })
const hosted = ({ usage }: any): Counts => {
  t.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
  return { prompt: usage.prompt_tokens, completion: usage.completion_tokens }
}
const responses = ({ usage }: any): Counts => {
  t.equal(usage.total_tokens, usage.input_tokens + usage.output_tokens)
  return { prompt: usage.input_tokens, completion: usage.output_tokens }
}
// Anthropic counts cached tokens separately.
const anthropic = ({ usage }: any): Counts => ({
  prompt: usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens,
  completion: usage.output_tokens
})

const chat = [{ role: 'system', content: system }, ...messages]
const inLast = (events: any[]) => events.at(-1)
/** Every API with one system message and one question, how it counts, and which event of a stream has the counts. */
const ways: [path: string, body: object, count: (body: any) => Counts, ending: (events: any[]) => any][] = [
  ['/api/chat', { messages: chat, options }, native, inLast],
  ['/api/generate', { system, prompt: CAPITAL_QUESTION.content, options }, native, inLast],
  ['/ollama/api/chat', { messages: chat, options }, native, inLast],
  [
    '/v1/chat/completions',
    { messages: chat, temperature: 0, stream_options: { include_usage: true } },
    hosted,
    events => events.findLast(event => event.usage)
  ],
  [
    '/v1/responses',
    { instructions: system, input: messages, ...options },
    responses,
    events => inLast(events).response
  ],
  [
    '/v1/messages',
    { system, messages, temperature: 0, max_tokens: 100 },
    anthropic,
    events => {
      const begun = events.find(event => event.type === 'message_start').message.usage
      return { usage: { ...begun, ...events.find(event => event.type === 'message_delta').usage } }
    }
  ]
]

async function readEvents(path: string, body: object): Promise<any[]> {
  const response = await corral.send(path, { model: DEMO, stream: true, ...body })
  const lines = (await response.text()).split('\n').map(line => line.replace(/^data: /, ''))
  return lines.filter(line => line.startsWith('{')).map(line => JSON.parse(line))
}

t.test('every API counts the same tokens, streamed and whole', async t => {
  const counted: Record<string, Counts> = {}
  for (const [path, body, count, ending] of ways) {
    const reply = await corral.json(path, { model: DEMO, stream: false, ...body })
    t.equal(reply.status, 200, `${path}: ${JSON.stringify(reply.body)}`)
    counted[path] = count(reply.body)
    counted[`${path} streamed`] = count(ending(await readEvents(path, body)))
  }
  const expected = counted['/api/chat']!
  t.ok(expected.prompt > 20 && expected.completion === 9, JSON.stringify(expected))
  for (const [way, counts] of Object.entries(counted)) t.same(counts, expected, way)
})

t.test('tokens counted beforehand equal those of the answer', async t => {
  const { body } = await corral.json('/v1/messages', { model: DEMO, ...ways.at(-1)![1] })
  const expected = anthropic(body).prompt
  const counts = await corral.json('/v1/messages/count_tokens', { model: DEMO, system, messages })
  t.match(counts, { status: 200, body: { input_tokens: expected } })
  const input = await corral.json('/v1/responses/input_tokens', { model: DEMO, instructions: system, input: messages })
  t.match(input, { status: 200, body: { input_tokens: expected } })
})

t.test("token counts equal the engine's", async t => {
  const chat = { model: DEMO, messages, temperature: 0 }
  const { body } = await corral.json('/v1/chat/completions', chat)
  const { usage, timings } = body
  t.equal(usage.prompt_tokens, timings.cache_n + timings.prompt_n)
  t.equal(usage.prompt_tokens_details.cached_tokens, timings.cache_n)
  t.equal(usage.completion_tokens, timings.predicted_n)

  const two = await corral.json('/v1/embeddings', { model: DEMO, input: ['Hello', 'The capital of France'] })
  const one = await corral.json('/v1/embeddings', { model: DEMO, input: 'Hello' })
  const other = await corral.json('/v1/embeddings', { model: DEMO, input: 'The capital of France' })
  t.equal(two.body.usage.prompt_tokens, one.body.usage.prompt_tokens + other.body.usage.prompt_tokens)
  const native = await corral.json('/api/embed', { model: DEMO, input: ['Hello', 'The capital of France'] })
  t.equal(native.body.prompt_eval_count, two.body.usage.prompt_tokens)
})
