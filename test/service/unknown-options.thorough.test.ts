import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import Anthropic from '@anthropic-ai/sdk'
import { Ollama } from 'ollama'
import OpenAI from 'openai'
import t from 'tap'
import { isKnownOption } from '../../core/models/options.ts'
import { KNOWN_OPTIONS } from '../../runtimes/llama-server/answer-fields.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral } from '../support/corral.ts'
import { refusedWith } from '../support/failure.ts'
import { readCases } from '../support/fixture.ts'
import { fetch } from '../support/quick-fetch.ts'
import { randomBelow } from '../support/random.ts'

const HEADER = 'x-corral-unknown-options'
const CLAMPED = 'x-corral-clamped'
const messages = [CAPITAL_QUESTION]
const corral = await startCorral(t, { config: `defaults: { temperature: 0, max_tokens: 24 }\n` })

/** Returns the named header of a reply that must succeed. */
async function getHeader(path: string, body: object, name = HEADER): Promise<string | null> {
  const response = await corral.send(path, body)
  const text = await response.text()
  if (response.status !== 200) throw new Error(`${path} answered ${response.status}: ${text}`)
  return response.headers.get(name)
}

/** Requests of every API with these `options`. */
const calls = (options: object) =>
  readCases<[path: string, body: object][]>('service-cases.yaml', 'option_requests').map(
    ([path, body]) => [path, { model: DEMO, ...body, options }] as const
  )

t.test('a misspelt option is reported on every API, in streams too', async t => {
  for (const [path, body] of calls({ temprature: 0, top_p: 0.5, min_p: 0.1, num_thread: 2, num_predict: 8 })) {
    t.equal(await getHeader(path, body), 'temprature', `${path} ${JSON.stringify(body).slice(0, 90)}`)
  }
  for (const [path, body] of calls({ num_predict: 8, unset: null })) t.equal(await getHeader(path, body), null, path)
})

t.test('unknown top-level fields are reported on every API', async t => {
  const body = { model: DEMO, messages, max_tokens: 8, temprature: 0 }
  for (const path of ['/v1/chat/completions', '/v1/messages', '/v1/completions', '/v1/responses', '/v1/embeddings']) {
    const prompt = path.endsWith('responses') ? null : 'Hi'
    t.equal(await getHeader(path, { ...body, input: 'Hi', prompt }), 'temprature', path)
  }
  const native = { model: DEMO, messages, stream: false, temperature: 0, temprature: 0 }
  t.equal(await getHeader('/api/chat', native), 'temperature, temprature', '/api reads options only in "options"')
  const twice = { ...body, options: { temprature: 1, b: 1 } }
  t.equal(await getHeader('/v1/chat/completions', twice), 'b, temprature', 'once')
})

t.test('unknown options are still passed to the engine', async t => {
  // llama-server knows both. Only the second is a misspelling.
  const options = { ignore_eos: true, num_predict: 5, ignore_eso: true }
  const { body } = await corral.json('/api/chat', { model: DEMO, messages, stream: false, options })
  t.match(body, { eval_count: 5, done_reason: 'length' })
  const odd = { model: DEMO, messages, stream: false, options: { zzz: 1 } }
  const { body: unchanged } = await corral.json('/api/chat', odd)
  t.equal(unchanged.message.content, CAPITAL_ANSWER)
})

t.test('malicious option names are escaped', async t => {
  const many = Object.fromEntries(Array.from({ length: 999 }, (_, index) => [`zz_${1000 + index}`, 1]))
  const header = (await getHeader('/api/chat', { model: DEMO, messages, stream: false, options: many }))!
  t.match(header, /^zz_1000, zz_1001, .*, zz_1019, \+979$/)
  const odd = { 'a\r\nset-cookie: x': 1, 'ä b': 1, '': 1, ['l'.repeat(5000)]: 1, constructor: 1, toString: 1 }
  const asked = { model: DEMO, messages, stream: false, options: odd }
  const named = '%C3%A4%20b, a%0D%0Aset-cookie%3A%20x, constructor, toString, +2'
  for (const path of ['/api/chat', '/v1/chat/completions']) t.equal(await getHeader(path, asked), named, path)
  const proto = `{"model":"${DEMO}","messages":[],"stream":false,"options":{"__proto__":{"temprature":1},"hasOwnProperty":1}}`
  const response = await corral.send('/api/chat', proto)
  t.equal(response.headers.get(HEADER), 'hasOwnProperty', 'keys of prototypes are dropped before')
  await response.text()
  const random = randomBelow(7)
  for (let round = 0; round < 40; round++) {
    const name = String.fromCharCode(...Array.from({ length: 1 + random(12) }, () => 128 + random(0xff00)))
    const header = await getHeader('/api/chat', { model: DEMO, messages: [], stream: false, options: { [name]: 1 } })
    t.match(header, /^[\x21-\x7e]+$/, JSON.stringify(name))
  }
})

t.test('options that a vendor documents are not reported as unknown', async t => {
  const pathOf = (name: string, file: string) => join(dirname(createRequire(import.meta.url).resolve(name)), file)
  const tables = readCases<[string, string, string, string][]>('service-cases.yaml', 'vendor_parameters')
  const response = await corral.send('/openapi.json')
  const { paths, components } = (await response.json()) as any
  for (const [path, vendor, file, type] of tables) {
    const [{ schema }] = Object.values(paths[path].post.requestBody.content) as any[]
    const { properties } = schema.$ref ? components.schemas[schema.$ref.split('/').at(-1)] : schema
    const names = readFields(pathOf(vendor, file), type)
    t.ok(names.length > 3, `${path} has parameters`)
    const isKnown = (name: string) =>
      Object.hasOwn(properties, name) ||
      (path.startsWith('/v1') && (isKnownOption(name) || KNOWN_OPTIONS.includes(name)))
    // A request may not bring its own template.
    const unknown = names.filter(name => !isKnown(name))
    t.same(unknown, path === '/ollama/api/generate' ? ['template'] : [], path)
  }
  const options = readFields(pathOf('ollama', 'browser.d.ts'), 'Options')
  t.ok(options.length > 20)
  t.ok(options.every(isKnownOption))
})

/** Names of the fields of an interface in a declaration file. */
function readFields(file: string, type: string): string[] {
  const lines = readFileSync(file, 'utf8').split('\n')
  const begin = lines.findIndex(line => new RegExp(`^(export )?interface ${type}\\b`).test(line))
  if (begin < 0) throw new Error(`${file} declares no ${type}`)
  const end = lines.findIndex((line, index) => index > begin && line === '}')
  return lines.slice(begin + 1, end).flatMap(line => /^ {4}(\w+)\??:/.exec(line)?.[1] ?? [])
}

t.test("the official clients' requests get no header", async t => {
  const seen: (string | null)[] = []
  const watched = (async (input: string, init: object) => {
    const response = await fetch(input, init)
    seen.push(response.headers.get(HEADER))
    return response
  }) as unknown as typeof globalThis.fetch
  const openai = new OpenAI({ baseURL: `${corral.url}/v1`, apiKey: 'any', fetch: watched })
  const shared = { model: DEMO, user: 'u', store: false, metadata: { a: 'b' }, service_tier: 'auto' as const }
  await openai.chat.completions.create({
    ...{ ...shared, messages: [{ role: 'user', content: 'Hi' }], max_completion_tokens: 4, n: 1, seed: 1 },
    ...{ parallel_tool_calls: true, reasoning_effort: 'low', safety_identifier: 's', prompt_cache_key: 'k' },
    ...{ logit_bias: {}, presence_penalty: 0, frequency_penalty: 0, verbosity: 'low', modalities: ['text'] }
  } as OpenAI.ChatCompletionCreateParamsNonStreaming)
  const stream = await openai.chat.completions.create({
    ...{ model: DEMO, messages: [{ role: 'user', content: 'Hi' }], stream: true, max_tokens: 4 },
    stream_options: { include_usage: true },
    cache_prompt: true
  } as OpenAI.ChatCompletionCreateParamsStreaming)
  for await (const _ of stream);
  const answer = { ...shared, input: 'Hi', max_output_tokens: 16, truncation: 'auto', max_tool_calls: 3 }
  await openai.responses.create(answer as never)
  await openai.embeddings.create({ model: DEMO, input: 'Hi', user: 'u', encoding_format: 'base64' })
  const anthropic = new Anthropic({ baseURL: corral.url, apiKey: 'any', fetch: watched })
  await anthropic.messages.create({
    ...{ model: DEMO, messages: [{ role: 'user', content: 'Hi' }], max_tokens: 4, metadata: { user_id: 'u' } },
    ...{ service_tier: 'auto', cache_control: { type: 'ephemeral' }, top_k: 5, stop_sequences: ['#'] }
  } as Anthropic.MessageCreateParamsNonStreaming)
  const ollama = new Ollama({ host: `${corral.url}/ollama`, fetch: watched })
  const said = { model: DEMO, messages: [{ role: 'user', content: 'Hi' }] }
  await ollama.chat({ ...said, keep_alive: 5, options: { num_predict: 4, num_thread: 2 } })
  t.equal(seen.length, 6)
  t.same([...new Set(seen)], [null])
})

t.test('a clamped num_ctx is reported on every API', async t => {
  const { body } = await corral.json('/api/show', { model: DEMO })
  const trained = body.model_info['llama.context_length']
  for (const [path, request] of calls({ num_ctx: trained + 1, num_predict: 4 })) {
    t.equal(await getHeader(path, request, CLAMPED), `num_ctx=${trained}`, path)
  }
  t.match(corral.log(), /"level":40[^\n]*num_ctx was reduced to its limit/)
})

t.test('parameters of derived models are checked', async t => {
  const made = { model: 'made/one', from: DEMO, parameters: { temprature: 0, num_predict: 4 } }
  t.equal(await getHeader('/api/create', { ...made, stream: false }), 'temprature')
  t.equal(await getHeader('/ollama/api/create', made), 'temprature', 'streamed')
  const modelfile = `FROM ${DEMO}\nPARAMETER temprature 0\nPARAMETER stop "#"`
  t.equal(await getHeader('/api/create', { model: 'made/two', modelfile, stream: false }), 'temprature')
})

t.test('strict mode refuses unknown options and suggests the nearest name', async t => {
  corral.configure('defaults: { temperature: 0, max_tokens: 24 }\nlimits: { strict_options: true }\n')
  const reload = await corral.json('/api/reload', undefined, { method: 'POST', local: true })
  t.match(reload.body.applied, [{ setting: 'limits.strict_options', from: false, to: true }])
  for (const [path, body] of calls({ temprature: 0 })) {
    const { status, body: reply } = await corral.json(path, body)
    t.equal(status, 400, path)
    const { error, message } = reply.error?.message ? reply.error : { error: reply.error, message: undefined }
    t.match(message ?? error, /option "options\.temprature" is unknown.* Did you mean "temperature"\?/, path)
  }
  const top = { model: DEMO, messages, max_tokens: 4, repetition_penalty: 1 }
  t.match(await corral.json('/v1/chat/completions', top), {
    status: 400,
    body: { error: { code: 'invalid_option', param: 'repetition_penalty', message: /Did you mean "repeat_penalty"/ } }
  })
  const misplaced = /"temperature".* Options belong in "options"\. 1 more is unknown too\./
  const native = { model: DEMO, messages, stream: false, temperature: 0, seeed: 1 }
  t.match(await corral.json('/api/chat', native), refusedWith(400, 'invalid_option', misplaced))
  const long = { model: DEMO, messages, stream: false, options: { [`${'x'.repeat(500)}\n`]: 1 } }
  t.match(await corral.json('/api/chat', long), refusedWith(400, 'invalid_option', /x…" is unknown/))
  const made = { model: 'made/three', from: DEMO, parameters: { temprature: 0 }, stream: false }
  t.match(await corral.json('/api/create', made), { status: 400, body: { code: 'invalid_option' } })
  t.equal((await corral.json('/api/show', { model: 'made/three' })).status, 404, 'no model was created')
  const known = { model: DEMO, messages, stream: false, options: { num_predict: 4, min_p: 0 } }
  t.equal(await getHeader('/api/chat', known), null)
})

t.test('options of remote models are not checked', async t => {
  const far = await startCorral(t, {
    config: `remote:\n  models:\n    far/tiny: { model: ${DEMO}, servers: [{ url: "${corral.url}/v1" }] }\nlimits: { strict_options: true }\n`
  })
  corral.configure('')
  await corral.json('/api/reload', undefined, { method: 'POST', local: true })
  const body = { model: 'far/tiny', messages, stream: false, options: { guided_json: 1, num_predict: 4 } }
  const response = await far.send('/api/chat', body)
  t.equal(response.status, 200, await response.text())
  t.equal(response.headers.get(HEADER), null)
})
