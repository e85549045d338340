import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import type { TSchema } from 'typebox'
import { Compile } from 'typebox/compile'
import { EventLines } from '../../core/http/event-lines.ts'
import type { Capability, StoredVariant } from '../../core/services.ts'
import {
  ChatCompletion,
  Completion,
  Embeddings,
  ModelList,
  Ranking,
  Tokens
} from '../../plugins/api-openai/reply-schemas.ts'
import { createLlamaServerEngine } from '../../runtimes/llama-server/engine.ts'
import { demoModelFile } from '../../scripts/random-decoder-embedding.ts'
import { randomEncoder } from '../../scripts/random-encoder.ts'
import { writeRandomModel } from '../../scripts/random-model.ts'
import { buildOf } from '../engine/support.ts'
import { until } from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { differs } from './declared-types.ts'
import { startService, variantOf } from './support.ts'

// What the hosted services do and llama-server does otherwise or not at all, against a real llama-server of two slots.
const MODEL = 'corral/tiny-chat'
const runs = mkdtempSync(join(tmpdir(), 'corral-hosted-'))
t.teardown(() => rmSync(runs, { recursive: true, force: true }))

function variantIn(name: string, capabilities: Capability[], embeddingLength?: number): StoredVariant {
  const variant = variantOf('random', name, { capabilities })
  if (embeddingLength !== undefined) variant.metadata.embeddingLength = embeddingLength
  return { ...variant, directory: runs, files: [{ ...variant.files[0]!, path: `${name}.gguf` }] }
}

writeFileSync(join(runs, 'ranker.gguf'), randomEncoder('reranker', 1))
writeFileSync(join(runs, 'vectors.gguf'), randomEncoder('embedding', 1))
await writeRandomModel(join(runs, 'filler.gguf'), {
  vocabulary: demoModelFile,
  shape: { layers: 1, embedding: 64, feedForward: 64, heads: 1, kvHeads: 1 },
  // Three words of the vocabulary stand for the marks of what is filled in.
  metadata: {
    'tokenizer.ggml.fim_pre_token_id': 300,
    'tokenizer.ggml.fim_suf_token_id': 301,
    'tokenizer.ggml.fim_mid_token_id': 302
  }
})

const build = buildOf(join(engineBuildFolder(), process.platform === 'win32' ? 'llama-server.exe' : 'llama-server'))
const asked: string[] = []
const service = await startService(t, {
  variants: [
    variantOf('corral', 'tiny-chat'),
    variantIn('ranker', ['rerank']),
    variantIn('vectors', ['embedding']),
    variantIn('filler', ['completion', 'insert'])
  ],
  defaults: { num_parallel: 2, temperature: 0 },
  startEngine: (spec, waiting) => {
    asked.push(`${spec.alias} ${spec.mode}`)
    const log = { debug: () => {}, warn: () => {} }
    return createLlamaServerEngine(build, spec, { log, runDirectory: runs, loadTimeout: 60_000 }, waiting)
  }
})
const client = new OpenAI({ baseURL: service.url, apiKey: 'any', maxRetries: 0 })
const question = { role: 'user' as const, content: 'What is the capital of France?' }
const ANSWER = 'The capital of France is Paris.'
const weather = {
  type: 'function' as const,
  function: {
    name: 'get_weather',
    description: 'Get the current weather in a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
  }
}
const add = {
  type: 'function' as const,
  function: {
    name: 'add',
    description: 'Add two numbers',
    parameters: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] }
  }
}
const chat = (fields: object = {}) => ({ model: MODEL, messages: [question], ...fields })
const idle = () => until('the slots are free', () => service.scheduler.running().every(model => model.running === 0))

/** Whether a reply is what the API document says of it, and what the official client declares. */
function conforms(t: Test, schema: TSchema, reply: unknown, declared?: string) {
  t.strictSame(Compile(schema).Errors(reply), [])
  if (declared) t.equal(differs(declared, reply), undefined)
}

async function failure(promise: Promise<unknown>): Promise<any> {
  return await promise.then(
    () => undefined,
    error => error
  )
}

/** The events of a stream, of which the last is `[DONE]`. */
async function events(path: string, body: object): Promise<any[]> {
  const response = await service.send(path, { ...body, stream: true })
  const payloads = new EventLines().push(Buffer.from(await response.arrayBuffer()))
  t.equal(payloads.pop(), '[DONE]')
  const found = payloads.map(payload => JSON.parse(payload))
  if (path.startsWith('/chat')) {
    for (const chunk of found) t.equal(differs('ChatCompletionChunk', chunk), undefined)
  }
  return found
}

t.test('several choices, and their counts', async t => {
  const two = (await client.chat.completions.create(chat({ n: 2, seed: 5 }) as never)) as OpenAI.ChatCompletion
  t.match(two.id, /^chatcmpl-\w{32}$/)
  t.ok(two.system_fingerprint)
  conforms(t, ChatCompletion, two, 'ChatCompletion')
  t.strictSame(
    two.choices.map(({ index, message }) => [index, message.content, message.refusal]),
    [
      [0, ANSWER, null],
      [1, ANSWER, null]
    ]
  )
  t.match(two.usage, { prompt_tokens: 19, completion_tokens: 18, total_tokens: 37 })

  const streamed = await events('/chat/completions', chat({ n: 2, stream_options: { include_usage: true } }))
  t.strictSame(
    streamed.filter(event => event.usage).map(event => [event.choices, event.usage.completion_tokens]),
    [[[], 18]],
    'once, at the end'
  )
  t.ok(streamed.at(-1).usage)
  for (const index of [0, 1]) {
    const pieces = streamed.flatMap(({ choices }) => choices).filter(choice => choice.index === index)
    t.equal(pieces.map(({ delta }) => delta.content ?? '').join(''), ANSWER)
    t.equal(pieces.at(-1).finish_reason, 'stop')
  }
  t.equal(new Set(streamed.map(({ id }) => id)).size, 1)

  for (const stream of [false, true]) {
    const many = await failure(client.chat.completions.create(chat({ n: 3, stream }) as never))
    t.match(many, { status: 400, param: 'n', message: /2 at most.*num_parallel/ })
  }
  await idle()
})

t.test('log probabilities', async t => {
  const whole = (await client.chat.completions.create(
    chat({ logprobs: true, top_logprobs: 2 }) as never
  )) as OpenAI.ChatCompletion
  const tokens = whole.choices[0]!.logprobs!.content!
  conforms(t, ChatCompletion, whole, 'ChatCompletion')
  t.equal(tokens.map(({ token }) => token).join(''), ANSWER)
  t.equal(tokens.length, whole.usage!.completion_tokens - 1, 'all but the end of the text')
  for (const { token, bytes, logprob, top_logprobs } of tokens) {
    t.equal(Buffer.from(bytes!).toString(), token)
    t.ok(logprob <= 0)
    t.equal(top_logprobs.length, 2)
    t.equal(top_logprobs[0]!.logprob, logprob, 'at temperature 0 it is the likeliest')
  }
  const plain = (await client.chat.completions.create(chat({ logprobs: true }) as never)) as OpenAI.ChatCompletion
  t.strictSame(
    plain.choices[0]!.logprobs!.content!.map(({ top_logprobs }) => top_logprobs),
    tokens.map(() => [])
  )
  const stream = await events('/chat/completions', chat({ logprobs: true, top_logprobs: 2 }))
  const told = stream.flatMap(event => event.choices[0]?.logprobs?.content ?? [])
  t.strictSame(
    told.map(({ token, top_logprobs }) => [token, top_logprobs.length]),
    tokens.map(({ token }) => [token, 2])
  )
  const called = await client.chat.completions
    .stream({
      model: MODEL,
      messages: [{ role: 'user', content: 'What is the weather in Paris?' }],
      tools: [weather],
      logprobs: true
    })
    .finalChatCompletion()
  t.match(called.choices[0], {
    finish_reason: 'tool_calls',
    message: { tool_calls: [{ function: { name: 'get_weather' } }] }
  })
})

t.test('tools', async t => {
  const messages = [{ role: 'user' as const, content: 'What is the weather in Paris and Rome?' }]
  const both = await client.chat.completions.create({ model: MODEL, messages, tools: [weather] })
  const calls = both.choices[0]!.message.tool_calls as { id: string; function: { arguments: string } }[]
  t.equal(both.choices[0]!.message.content, null)
  conforms(t, ChatCompletion, both, 'ChatCompletion')
  t.strictSame(
    calls.map(call => JSON.parse(call.function.arguments)),
    [{ city: 'Paris' }, { city: 'Rome' }]
  )
  t.equal(new Set(calls.map(({ id }) => id)).size, 2)
  const streamed = await events('/chat/completions', { model: MODEL, messages, tools: [weather] })
  const pieces = streamed.flatMap(({ choices }) => choices[0]?.delta.tool_calls ?? [])
  t.strictSame([...new Set(pieces.map(({ index }) => index))], [0, 1])
  for (const index of [0, 1]) {
    const own = pieces.filter(piece => piece.index === index)
    t.strictSame(
      own.map(({ id, type }) => [typeof id, type]),
      own.map((_, at) => (at === 0 ? ['string', 'function'] : ['undefined', undefined])),
      'id and type come with the first piece'
    )
    t.strictSame(JSON.parse(own.map(piece => piece.function.arguments ?? '').join('')), {
      city: ['Paris', 'Rome'][index]
    })
  }
  const answered = await client.chat.completions.create({
    model: MODEL,
    messages: [
      { role: 'user', content: 'What is the weather in Paris?' },
      { role: 'assistant', content: null, tool_calls: [{ ...calls[0]!, type: 'function' } as never] },
      { role: 'tool', tool_call_id: calls[0]!.id, content: 'sunny' }
    ],
    tools: [weather]
  })
  t.equal(answered.choices[0]!.message.content, 'The weather in Paris is sunny.')

  const one = [{ role: 'user' as const, content: 'What is the weather in Paris?' }]
  const choose = async (tool_choice: unknown, tools = [weather, add]) =>
    (
      (await client.chat.completions.create({
        model: MODEL,
        messages: one,
        tools,
        tool_choice
      } as never)) as OpenAI.ChatCompletion
    ).choices[0]!
  t.match(await choose('auto'), { finish_reason: 'tool_calls' })
  t.match(await choose('required'), { message: { tool_calls: [{ function: { name: 'get_weather' } }] } })
  t.match(await choose({ type: 'function', function: { name: 'get_weather' } }), {
    message: { tool_calls: [{ function: { name: 'get_weather' } }] }
  })
  const none = await choose('none')
  t.equal(none.message.tool_calls, undefined)
  t.equal(none.finish_reason, 'stop')
  t.notMatch(none.message.content, 'tool_call')
})

t.test('functions of older clients', async t => {
  const older = {
    model: MODEL,
    messages: [{ role: 'user' as const, content: 'What is the weather in Paris?' }],
    functions: [weather.function]
  }
  const whole = await client.chat.completions.create(older)
  t.match(whole.choices[0], { finish_reason: 'function_call', message: { function_call: { name: 'get_weather' } } })
  t.strictSame(JSON.parse(whole.choices[0]!.message.function_call!.arguments), { city: 'Paris' })
  t.notOk(whole.choices[0]!.message.tool_calls)
  conforms(t, ChatCompletion, whole, 'ChatCompletion')
  const stream = await events('/chat/completions', older)
  const pieces = stream.flatMap(event => event.choices[0]?.delta.function_call ?? [])
  t.equal(pieces[0].name, 'get_weather')
  t.strictSame(JSON.parse(pieces.map(piece => piece.arguments ?? '').join('')), { city: 'Paris' })
  const answered = await client.chat.completions.create({
    ...older,
    messages: [
      ...older.messages,
      { role: 'assistant', content: null, function_call: { name: 'get_weather', arguments: '{"city":"Paris"}' } },
      { role: 'function', name: 'get_weather', content: 'sunny' }
    ]
  })
  t.equal(answered.choices[0]!.message.content, 'The weather in Paris is sunny.')
})

t.test('the form of the answer', async t => {
  const ask = async (fields: object) =>
    (await client.chat.completions.create(chat({ max_tokens: 60, ...fields }) as never)) as OpenAI.ChatCompletion
  const object = await ask({ response_format: { type: 'json_object' } })
  if (object.choices[0]!.finish_reason === 'stop') JSON.parse(object.choices[0]!.message.content!)
  t.match(object.choices[0]!.message.content, /^\s*\{/)
  const schema = {
    type: 'object',
    properties: { city: { enum: ['Paris', 'Rome'] }, sure: { type: 'boolean' } },
    required: ['city', 'sure'],
    additionalProperties: false
  }
  const strict = await ask({
    response_format: { type: 'json_schema', json_schema: { name: 'city', schema, strict: true } }
  })
  t.match(JSON.parse(strict.choices[0]!.message.content!), { city: /Paris|Rome/, sure: Boolean })
  t.equal((await ask({ response_format: { type: 'text' } })).choices[0]!.message.content, ANSWER)
  const impossible = { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'secret' } } }
  t.match(await failure(ask({ response_format: impossible })), { status: 400, code: 'invalid_request' })

  t.equal((await ask({ stop: ['', ' is', 'Paris'] })).choices[0]!.message.content, 'The capital of France')
  t.equal((await ask({ stop: ' of' })).choices[0]!.message.content, 'The capital')
  const developer = [
    { role: 'developer', content: 'You are Leo.' },
    { role: 'user', content: 'Who are you?' }
  ]
  t.equal((await ask({ messages: developer })).choices[0]!.message.content, 'I am Leo.')
  const parts = [{ role: 'user', content: [{ type: 'text', text: 'What is the capital of France?' }] }]
  t.equal((await ask({ messages: parts })).choices[0]!.message.content, ANSWER)
  const ignored = {
    user: 'me',
    metadata: { a: 'b' },
    store: true,
    service_tier: 'auto',
    reasoning_effort: 'low',
    verbosity: 'low',
    prompt_cache_key: 'x',
    safety_identifier: 'x',
    modalities: ['text'],
    parallel_tool_calls: true,
    prediction: { type: 'content', content: 'x' }
  }
  t.equal((await ask(ignored)).choices[0]!.message.content, ANSWER)
  const { body } = await service.json('/tokenize', { model: MODEL, content: ' Paris' })
  const biased = await ask({ logit_bias: { [body.tokens[0]]: -100 } })
  t.notMatch(biased.choices[0]!.message.content, 'Paris')
})

t.test('completions', async t => {
  const create = async (fields: object) =>
    (await client.completions.create({
      model: MODEL,
      prompt: 'The capital of',
      max_tokens: 4,
      ...fields
    } as never)) as OpenAI.Completion
  const plain = await create({})
  t.match(plain.id, /^cmpl-/)
  conforms(t, Completion, plain, 'Completion')
  t.match(plain, { object: 'text_completion', usage: { prompt_tokens: 4, completion_tokens: 4 } })
  const text = plain.choices[0]!.text
  t.equal((await create({ echo: true })).choices[0]!.text, `The capital of${text}`)
  const { body } = await service.json('/tokenize', { model: MODEL, content: 'The capital of', add_special: true })
  const tokens = await create({ prompt: body.tokens, echo: true })
  t.equal(tokens.choices[0]!.text, `<s>The capital of${text}`, 'the mark at the beginning is among the tokens')
  t.equal(tokens.usage!.prompt_tokens, 4)
  const nothing = await create({ echo: true, max_tokens: 0 })
  t.match(nothing, {
    choices: [{ text: 'The capital of', finish_reason: 'length' }],
    usage: { prompt_tokens: 4, completion_tokens: 0, total_tokens: 4 }
  })

  const probable = (await create({ logprobs: 2 })).choices[0]!
  t.equal(probable.logprobs!.tokens!.join(''), probable.text)
  t.equal(probable.logprobs!.token_logprobs!.length, 4)
  t.strictSame(
    probable.logprobs!.text_offset,
    probable.logprobs!.tokens!.map((_, at, all) => all.slice(0, at).join('').length)
  )
  for (const [at, likeliest] of probable.logprobs!.top_logprobs!.entries()) {
    t.equal(Object.keys(likeliest).length, 2)
    t.equal(likeliest[probable.logprobs!.tokens![at]!], probable.logprobs!.token_logprobs![at])
  }
  conforms(t, Completion, await create({ logprobs: 2, n: 2 }), 'Completion')
  t.equal((await create({ logprobs: 0 })).choices[0]!.logprobs!.top_logprobs, null)
  const streamed = await events('/completions', { model: MODEL, prompt: 'The capital of', max_tokens: 4, logprobs: 2 })
  t.strictSame(
    streamed.flatMap(({ choices }) => choices[0]?.logprobs?.text_offset ?? []),
    probable.logprobs!.text_offset
  )

  const several = await create({ prompt: ['The capital of', 'hi'], n: 2, max_tokens: 2 })
  t.strictSame(
    several.choices.map(({ index }) => index),
    [0, 1, 2, 3]
  )
  t.equal(several.choices[0]!.text, several.choices[1]!.text, 'choices of a prompt stand side by side')
  t.match(several.usage, { prompt_tokens: 7, completion_tokens: 8, total_tokens: 15 })
  const stream = await events('/completions', {
    model: MODEL,
    prompt: ['The capital of', 'hi'],
    max_tokens: 2,
    stream_options: { include_usage: true }
  })
  t.strictSame(
    stream.filter(event => event.usage).map(({ choices, usage }) => [choices, usage.total_tokens]),
    [[[], 11]]
  )
  t.ok(stream.every(({ id }) => id.startsWith('cmpl-')))
  const bytes = await events('/completions', { model: MODEL, prompt: 'hi', max_tokens: 2 })
  t.ok(bytes.every(({ id }) => id.startsWith('cmpl-')))

  const wild = { temperature: 1.5, top_p: 1, seed: 3, max_tokens: 6 }
  const all = await create({ ...wild, n: 2, logprobs: 0 })
  const mean = ({ logprobs }: OpenAI.CompletionChoice) => {
    const values = logprobs!.token_logprobs!
    return values.reduce((sum, value) => sum + value, 0) / values.length
  }
  const best = await create({ ...wild, best_of: 2 })
  const wanted = [...all.choices].sort((a, b) => mean(b) - mean(a))[0]!
  t.match(best.choices, [{ index: 0, text: wanted.text, logprobs: null }])
  t.equal(best.choices.length, 1)
  t.equal(best.usage!.completion_tokens, all.usage!.completion_tokens, 'what was made is counted')
  t.match(await failure(create({ best_of: 5 })), { status: 400, param: 'best_of', message: /2 at most/ })
})

t.test('filling in', async t => {
  const request = {
    model: 'random/filler',
    prompt: 'def add(',
    suffix: '  return a + b',
    max_tokens: 5,
    ignore_eos: true
  }
  const whole = (await client.completions.create({ ...request, logprobs: 1 } as never)) as OpenAI.Completion
  t.match(whole, {
    id: /^cmpl-/,
    object: 'text_completion',
    model: 'random/filler',
    choices: [{ index: 0, finish_reason: 'length' }],
    usage: { completion_tokens: 5 }
  })
  t.ok(whole.usage!.prompt_tokens > 10)
  t.equal(whole.choices[0]!.logprobs!.tokens!.join(''), whole.choices[0]!.text)
  const stream = await events('/completions', { ...request, stream_options: { include_usage: true } })
  t.equal(stream.map(({ choices }) => choices[0]?.text ?? '').join(''), whole.choices[0]!.text)
  t.equal(stream.at(-1).usage.completion_tokens, 5)
  t.equal(stream.at(-2).choices[0].finish_reason, 'length')
  const two = (await client.completions.create({ ...request, n: 2 } as never)) as OpenAI.Completion
  t.equal(two.choices.length, 2)
  t.equal(two.usage!.completion_tokens, 10)
  t.match(await failure(client.completions.create({ ...request, model: MODEL } as never)), {
    status: 400,
    code: 'unsupported_capability',
    param: 'suffix'
  })
  const endless = await client.completions.create({ ...request, max_tokens: -1, stream: true } as never)
  for await (const _ of endless as unknown as AsyncIterable<unknown>) break
  await idle()
})

t.test('embeddings', async t => {
  for (const model of [MODEL, 'random/vectors']) {
    const create = async (fields: object) =>
      await client.embeddings.create({ model, input: 'hello world', ...fields } as never)
    const decoded = await create({})
    const plain = await create({ encoding_format: 'float' })
    const vector = plain.data[0]!.embedding
    conforms(t, Embeddings, plain, 'CreateEmbeddingResponse')
    conforms(t, Embeddings, (await service.json('/embeddings', { model, input: 'x', encoding_format: 'base64' })).body)
    t.equal(decoded.data[0]!.embedding.length, vector.length)
    t.ok(
      decoded.data[0]!.embedding.every((value, at) => Math.abs(value - vector[at]!) < 1e-6),
      'base64 and numbers agree'
    )
    t.ok(Math.abs(Math.hypot(...vector) - 1) < 1e-3, 'of length 1')
    const cut = (await create({ encoding_format: 'float', dimensions: 16 })).data[0]!.embedding
    t.equal(cut.length, 16)
    const scale = Math.hypot(...vector.slice(0, 16))
    t.ok(cut.every((value, at) => Math.abs(value - vector[at]! / scale) < 1e-5))
    t.strictSame((await create({ dimensions: 16 })).data[0]!.embedding.length, 16)
    t.match(await failure(create({ dimensions: vector.length + 1 })), {
      status: 400,
      param: 'dimensions',
      message: new RegExp(`${vector.length} at most`)
    })
    const several = await create({ input: ['hello world', 'x', 'hello world'] })
    t.strictSame(
      several.data.map(({ index }) => index),
      [0, 1, 2]
    )
    t.ok(
      vector.every((value, at) => Math.abs(value - several.data[0]!.embedding[at]!) < 1e-3),
      'as it is alone'
    )
    t.ok(several.data[2]!.embedding.every((value, at) => Math.abs(value - several.data[0]!.embedding[at]!) < 1e-3))
    t.ok(several.usage.prompt_tokens > 2 * plain.usage.prompt_tokens)
    const { tokens } = (await service.json('/tokenize', { model, content: 'hello world', add_special: true })).body
    const byTokens = await create({ input: [tokens, tokens], encoding_format: 'float' })
    t.ok(byTokens.data[1]!.embedding.every((value, at) => Math.abs(value - vector[at]!) < 1e-3))
    t.equal(byTokens.usage.prompt_tokens, 2 * tokens.length)
    for (const input of ['', ['x', ''], [], [[]]]) {
      t.match(await failure(create({ input })), { status: 400, code: 'invalid_request', param: /^input/ })
    }
    t.match(await failure(create({ input: 'hello '.repeat(3000) })), {
      status: 400,
      code: 'context_exceeded',
      error: { n_prompt_tokens: Number, n_ctx: Number },
      message: /\d+ tokens.*\d+/
    })
  }
  t.match(await failure(client.embeddings.create({ model: 'random/ranker', input: 'x' })), {
    status: 400,
    code: 'unsupported_capability',
    param: 'model'
  })
  t.notOk(
    asked.some(engine => engine.startsWith('random/ranker')),
    'said before anything is loaded'
  )
})

t.test('rankings', async t => {
  const documents = ['Paris is the capital of France.', { text: 'Bananas are yellow.' }, 'The sky is blue.']
  const rank = (fields: object = {}, path = '/rerank') =>
    service.json(path, { model: 'Random/Ranker', query: 'What is the capital?', documents, ...fields })
  const { status, body } = await rank()
  t.equal(status, 200)
  t.match(body, { object: 'list', model: 'Random/Ranker', usage: { prompt_tokens: Number, total_tokens: Number } })
  t.strictSame(body.results.map(({ index }: { index: number }) => index).sort(), [0, 1, 2])
  const scores = body.results.map((result: { relevance_score: number }) => result.relevance_score)
  t.strictSame(
    scores,
    [...scores].sort((a, b) => b - a)
  )
  t.notOk('document' in body.results[0])
  const best = (await rank({ top_n: 2, return_documents: true }, '/reranking')).body.results
  t.equal(best.length, 2)
  conforms(t, Ranking, (await rank({ return_documents: true })).body)
  t.equal(best[0].index, body.results[0].index)
  t.equal(best[0].document.text, [documents[0], 'Bananas are yellow.', documents[2]][best[0].index])
  t.match(await rank({ model: MODEL }), {
    status: 400,
    body: { error: { code: 'unsupported_capability', param: 'model' } }
  })
  t.match(await rank({ documents: [] }), { status: 400, body: { error: { param: 'documents' } } })
  t.match(await rank({ documents: ['x '.repeat(3000)] }), {
    status: 400,
    body: { error: { code: 'context_exceeded', n_prompt_tokens: Number, n_ctx: Number } }
  })
  t.match(await service.json('/chat/completions', chat({ model: 'random/ranker' })), {
    status: 400,
    body: { error: { code: 'unsupported_capability' } }
  })
})

t.test('tokens', async t => {
  for (const model of [MODEL, 'random/vectors', 'random/ranker']) {
    const { body } = await service.json('/tokenize', { model, content: 'Hello there', with_pieces: true })
    t.match(body.tokens[0], { id: Number, piece: String }, model)
    conforms(t, Tokens, body)
  }
  conforms(t, ModelList, (await service.json('/models')).body)
})
