import t from 'tap'
import { SseParser } from '../../../../core/answers/openai-events.ts'
import type { Model } from '../../../../core/contracts/models.ts'
import { type Framing, NATIVE_NAMING } from '../../../../core/contracts/native-api.ts'
import type { HistorySample } from '../../../../core/contracts/native-records.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { parseOptions, parseRequestOptions } from '../../../../core/models/options.ts'
import { parseDuration } from '../../../../core/system/duration.ts'
import { chatCall, engineMessages, generateCall } from '../../../../plugins/apis/native/engine-request.ts'
import { History } from '../../../../plugins/apis/native/load-history.ts'
import { parameterSize, showRecord } from '../../../../plugins/apis/native/records.ts'
import { chooseFraming } from '../../../../plugins/apis/native/sse-and-ndjson.ts'
import { readCases } from '../../../support/cases.ts'

const CASES = readCases('native')

t.test('the native API chooses the framing by the Accept header', t => {
  const table: [accept: string | null, onApi: Framing][] = CASES.framings
  for (const [accept, onApi] of table) {
    const choose = (fallback: Framing) =>
      chooseFraming({ accept: accept ?? undefined, override: undefined, fallback, negotiate: true })
    t.equal(choose('sse'), onApi, `/api with ${accept}`)
    t.equal(choose('ndjson'), 'ndjson', `/ollama with ${accept}`)
  }
  const accept = 'application/json'
  t.equal(chooseFraming({ accept, override: 'sse', fallback: 'sse', negotiate: true }), 'sse')
  t.equal(chooseFraming({ accept: '*/*', override: 'NDJSON', fallback: 'sse', negotiate: true }), 'ndjson')
  t.equal(chooseFraming({ accept, override: 'xml', fallback: 'sse', negotiate: false }), 'sse')
  t.end()
})

t.test('the history keeps an hour, and averages of a day', t => {
  const history = new History()
  const sample = (index: number): HistorySample => ({
    at: index * 10,
    running: index % 30,
    queued: 0,
    tokens_per_second: 2,
    reserved: 100,
    ...(index % 2 && { used: 10 })
  })
  for (let index = 0; index < 30 * 400; index++) history.add(sample(index))
  const now = sample(30 * 400)
  const hour = history.of('hour', now)
  t.equal(hour.length, 360)
  t.same(hour.at(-1), now)
  const day = history.of('day', now)
  t.equal(day.length, 289)
  t.same(day.at(-2), {
    at: sample(30 * 400 - 1).at,
    running: 14.5,
    queued: 0,
    tokens_per_second: 2,
    reserved: 100,
    used: 10
  })
  t.end()
})

t.test('the native API parses options with aliases and nulls, and refuses invalid ones', t => {
  t.same(parseOptions({ num_predict: 5, temperature: 0, seed: 7, stop: ['x'], num_gpu: -1 }), {
    load: { n_gpu_layers: -1 },
    sampling: { max_tokens: 5, temperature: 0, seed: 7, stop: ['x'] }
  })
  t.same(parseOptions({ max_tokens: 3, num_predict: 9 }).sampling, { max_tokens: 3 }, 'the canonical name wins')
  t.same(parseOptions({ max_tokens: null, num_predict: 9 }).sampling, { max_tokens: 9 })
  t.same(parseOptions({ max_tokens: -2 }).sampling, { max_tokens: -1 }, 'negative means unlimited')
  t.same(parseOptions({ cache_type_k: 'Q8_0' }).load, { cache_type_k: 'q8_0' })
  t.same(parseOptions(null), { load: {}, sampling: {} })
  const wrong: unknown[] = [{ temperature: Number.NaN }, ...CASES.invalidOptions]
  for (const options of wrong) {
    t.throws(() => parseOptions(options), { code: 'invalid_option', status: 400 }, JSON.stringify(options))
  }
  t.throws(() => parseOptions({ num_predict: 'x' }), { message: /num_predict/ }, "the error uses the client's spelling")
  t.match(parseRequestOptions({ temperature: 1, model: 'x', num_ctx: 5, max_completion_tokens: 3 }), {
    load: { num_ctx: 5 },
    sampling: { temperature: 1, max_tokens: 3, model: undefined }
  })
  t.end()
})

t.test('the native API parses durations', t => {
  const table: [unknown, number | null | undefined][] = [[Number.NaN, undefined], ...CASES.durations]
  for (const [value, ms] of table) t.equal(parseDuration(value), ms ?? undefined, JSON.stringify(value))
  t.end()
})

const variant = { publicName: 'a/b', metadata: { capabilities: ['completion'], info: {} } } as unknown as StoredVariant
const seeing = {
  ...variant,
  metadata: { capabilities: ['completion', 'vision'], info: {} }
} as unknown as StoredVariant

t.test('the native API converts native messages for the engine', t => {
  t.same(engineMessages([{ content: 'Hi' }]), [{ role: 'user', content: 'Hi' }])
  t.same(engineMessages(CASES.calls), CASES.convertedCalls)
  t.match(chatCall({ messages: [{ content: 'x', images: ['iVBORw0K'] }] }, seeing, {}).body.messages, [
    { content: [{ type: 'text', text: 'x' }, { image_url: { url: 'data:image/png;base64,iVBORw0K' } }] }
  ])
  t.throws(() => chatCall({ messages: [{ content: 'x', images: ['iVBORw0K'] }] }, variant, {}), {
    code: 'unsupported_capability'
  })
  t.end()
})

t.test('generate uses the template, raw text or a suffix', t => {
  t.same(generateCall({ prompt: 'Hi', system: 'Be short.' }, variant, { temperature: 0 }), CASES.generated)
  t.same(generateCall({ prompt: 'Hi', raw: true }, variant, {}), { operation: 'completion', body: { prompt: 'Hi' } })
  t.same(generateCall({ prompt: 'a', suffix: 'b' }, variant, { max_tokens: 3 }), {
    operation: 'completion',
    body: { max_tokens: 3, prompt: 'a', suffix: 'b' }
  })
  t.match(generateCall({ prompt: 'Hi', format: { type: 'object' } }, variant, {}).body.response_format, {
    type: 'json_schema',
    json_schema: { schema: { type: 'object' } }
  })
  t.same(generateCall({ prompt: 'Hi', think: false }, variant, {}).body.chat_template_kwargs, {
    enable_thinking: false
  })
  t.throws(() => generateCall({ prompt: 'Hi', format: 'xml' }, variant, {}), { code: 'invalid_request' })
  t.end()
})

t.test('events are parsed however the bytes are split', t => {
  const bytes = Buffer.from('data: {"a":"é"}\n\n: ping\n\ndata: [DONE]\n\n')
  for (let at = 0; at <= bytes.length; at++) {
    const lines = new SseParser()
    t.same([...lines.push(bytes.subarray(0, at)), ...lines.push(bytes.subarray(at))], ['{"a":"é"}', '[DONE]'])
  }
  t.end()
})

t.test('the native API formats parameter counts', t => {
  t.equal(parameterSize(2_033_408), '2.03M')
  t.equal(parameterSize(7_615_616_512), '7.62B')
  t.equal(parameterSize(undefined), '')
  t.equal(parameterSize(12), '12')
  t.end()
})

t.test('only admins see the path of an import', async t => {
  const variant = {
    origin: { kind: 'import', from: '/home/alice/models/x.gguf' },
    model: { owner: 'a', name: 'x' },
    metadata: { capabilities: [], info: {} }
  } as unknown as Model
  const origins = (['user', 'operator', 'admin'] as const).map(
    role => showRecord(variant, NATIVE_NAMING, '', role, { window: 4096 }).origin.from
  )
  t.same(origins, ['x.gguf', 'x.gguf', '/home/alice/models/x.gguf'])
  const pulled = { ...variant, origin: { kind: 'hub' as const, from: 'hf:a/x' } }
  t.equal(showRecord(pulled, NATIVE_NAMING, '', 'user', { window: 4096 }).origin.from, 'hf:a/x')
})
