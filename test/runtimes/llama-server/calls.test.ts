import { PassThrough, Readable } from 'node:stream'
import t from 'tap'
import { embedChunked, rerankChunked } from '../../../core/answers/embedding.ts'
import type { Delta, Engine, EngineFields, EngineMode } from '../../../core/contracts/engines.ts'
import type { Lease } from '../../../core/contracts/leases.ts'
import type { TokenTally } from '../../../core/http/request-record.ts'
import { transcriptionChat } from '../../../runtimes/llama-server/answer-fields.ts'
import { engineCalls } from '../../../runtimes/llama-server/calls.ts'
import { EventReader } from '../../../runtimes/llama-server/event-reader.ts'
import { PromptSlots } from '../../../runtimes/llama-server/prompt-cache/prompt-slots.ts'
import type { EngineRequest } from '../../../runtimes/llama-server/upstream.ts'
import { engineBody } from '../../support/engine-body.ts'

type Respond = (path: string, body: any) => { status?: number; body: string }

type Ask = Parameters<typeof engineCalls>[0]['request']

const callsWith = (request: Ask, mode: EngineMode = 'chat', contextSize = 100) =>
  engineCalls({
    alias: 'a/b',
    mode,
    contextSize,
    metadata: { capabilities: [] },
    promptSlots: new PromptSlots(4),
    request
  })

function callsOf(respond: Respond, mode?: EngineMode) {
  const sent: { path: string; body: any }[] = []
  const request = async ({ path, body }: EngineRequest) => {
    const fields = JSON.parse(String(body))
    sent.push({ path, body: fields })
    const { status = 200, body: text } = respond(path, fields)
    return { status, body: engineBody(Readable.from([Buffer.from(text)])) }
  }
  return { calls: callsWith(request, mode), sent }
}

const { signal } = new AbortController()
const event = (value: object) => `data: ${JSON.stringify(value)}\n\n`
const choice = (fields: object) => event({ choices: [{ index: 0, ...fields }] })
const END = choice({ finish_reason: 'stop', delta: {} })
const messages = [{ role: 'user', content: 'Hi' }]

async function answerOf(respond: Respond, body: EngineFields = { messages }, more: object = {}) {
  const { calls, sent } = callsOf(respond)
  const deltas: Delta[] = []
  await calls.chat!(body, { signal, ...more, take: pieces => void deltas.push(...pieces) })
  return { deltas, sent }
}

t.test('llama-server’s events become deltas', t => {
  const reader = new EventReader()
  t.strictSame(reader.read({ choices: [{ delta: { content: 'Hel' } }] }), { content: 'Hel' })
  t.strictSame(reader.read({ choices: [{ delta: { reasoning_content: 'hm' } }] }), { thinking: 'hm' })
  const call = { index: 0, id: 'i0', function: { name: 'f', arguments: '{"a"' } }
  t.strictSame(reader.read({ choices: [{ delta: { tool_calls: [call] } }] }).toolCalls, [
    { index: 0, id: 'i0', name: 'f', arguments: '{"a"' }
  ])
  t.strictSame(reader.read({ choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: ':1}' } }] } }] }), {
    toolCalls: [{ index: 0, arguments: ':1}' }]
  })
  const timings = { cache_n: 4, prompt_n: 6, prompt_ms: 1.5, predicted_n: 3, predicted_ms: 2 }
  t.match(reader.read({ choices: [{ finish_reason: 'tool_calls', delta: {} }], timings }), {
    finish: 'tool_calls',
    usage: { promptTokens: 10, cachedTokens: 4, completionTokens: 3 },
    timing: { prompt: 1.5, generation: 2 },
    extra: { timings }
  })
  t.equal(reader.finished, 1)
  t.equal(new EventReader().read({ choices: [{ finish_reason: 'length', delta: {} }] }).finish, 'length')
  t.match(new EventReader().read({ choices: [{ index: 1, delta: { content: 'x' } }] }), { choice: 1, content: 'x' })
  t.match(new EventReader().read({ index: 1, content: 'x', stop: true, stop_type: 'limit' }), {
    choice: 1,
    content: 'x',
    finish: 'length'
  })
  t.strictSame(new EventReader().read({ prompt_progress: { total: 10, processed: 5, cache: 2 } }), {
    reading: { tokens: 5, total: 10, cached: 2 }
  })
  const stopped = new EventReader()
  stopped.read({ choices: [{ delta: {} }], __verbose: { stopping_word: 'END' } })
  t.equal(stopped.read({ choices: [{ finish_reason: 'stop', delta: {} }] }).stopSequence, 'END')
  t.end()
})

t.test('the engine sends the right request for an answer', async t => {
  const { sent } = await answerOf(() => ({ body: END }), {
    messages,
    logprobs: true,
    top_logprobs: 0,
    stream_options: { include_usage: true }
  })
  const slot = { id_slot: 0, cache_prompt: false }
  t.strictSame(sent, [
    {
      path: '/v1/chat/completions',
      body: { messages, stream: true, return_progress: true, n_probs: 1, post_sampling_probs: false, ...slot }
    }
  ])
  const more = await answerOf(() => ({ body: END }), { messages }, { countEach: true, stopText: true })
  t.match(more.sent[0]!.body, { timings_per_token: true, verbose: true })
})

t.test('a short answer that is delivered whole comes in one piece', async t => {
  const timings = { cache_n: 4, prompt_n: 6, prompt_ms: 1.5, predicted_n: 3, predicted_ms: 2 }
  const said = { finish_reason: 'length', index: 0, message: { role: 'assistant', content: 'Hi \ufffd' } }
  const respond: Respond = (_, { stream }) => ({
    body: stream ? END : JSON.stringify({ choices: [said], system_fingerprint: 'b1', timings })
  })
  const { sent, deltas } = await answerOf(respond, { messages, max_tokens: 16 }, { whole: true })
  t.strictSame(sent[0]!.body, { messages, max_tokens: 16, stream: false, id_slot: 0, cache_prompt: false })
  const usage = { promptTokens: 10, cachedTokens: 4, completionTokens: 3 }
  const timing = { prompt: 1.5, generation: 2 }
  const extra = { system_fingerprint: 'b1', timings }
  const content = 'Hi '
  t.strictSame(deltas, [{ content, finish: 'length', usage, timing, extra, tokens: 3 }], 'without half a character')
  const picture = { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:' } }] }
  const streamed: [string, EngineFields, object?][] = [
    ['an answer that is passed on as it arrives', {}, { whole: false }],
    ['an answer that may be long', { max_tokens: 17 }],
    ['an answer without a limit', { max_tokens: -1 }],
    ['a prompt that needs several batches', { messages: [{ role: 'user', content: 'x'.repeat(2049) }] }],
    ['a picture', { messages: [picture] }],
    ['tool calls', { tools: [{ type: 'function', function: { name: 'f' } }] }],
    ['probabilities', { logprobs: true }],
    ['the text that ended it', {}, { stopText: true }],
    ['running counts', {}, { countEach: true }],
    ['an answer that may be controlled', {}, { controlled: () => undefined }]
  ]
  for (const [what, fields, more] of streamed) {
    const { sent } = await answerOf(
      () => ({ body: 'data: [DONE]\n\n' }),
      { messages, max_tokens: 16, ...fields },
      { whole: true, ...more }
    )
    t.equal(sent[0]!.body.stream, true, what)
  }
  const cut: Respond = () => ({ body: '{"choices":[{"finish_' })
  await t.rejects(answerOf(cut, { messages, max_tokens: 1 }, { whole: true }))
})

t.test('an interrupted answer is an error', async t => {
  const text = choice({ delta: { content: 'x' } })
  const answer = (body: string) => answerOf(() => ({ body }))
  await t.rejects(answer(text), { code: 'engine_crashed', message: /ended its answer early/ })
  await answer(text + END)
  await answer(`${text}data: [DONE]\n\n`)
  const error = event({ error: { code: 500, message: 'Compute error.' } })
  await t.rejects(answer(text + error), { code: 'internal', message: /Compute error/ })
  const { calls } = callsOf(() => ({ body: text }))
  const taken: string[] = []
  const bytes = calls.chatBytes!({ messages }, { signal, take: chunk => void taken.push(chunk.toString()) })
  await t.rejects(bytes, { code: 'engine_crashed' })
  t.same(taken, [text])
})

t.test('several choices are requested one by one', async t => {
  const { sent, deltas } = await answerOf(() => ({ body: choice({ delta: { content: 'x' } }) + END }), {
    messages,
    n: 2,
    seed: 7
  })
  t.match(sent, [{ body: { n: 1, seed: 7, id_slot: 0 } }, { body: { n: 1, seed: 8, id_slot: 1 } }])
  t.same(new Set(deltas.map(({ choice }) => choice)), new Set([0, 1]))
})

t.test('a request never chooses its slot', async t => {
  const { calls, sent } = callsOf(() => ({ body: choice({ delta: { content: 'x' } }) + END }))
  const body = { messages: [{ role: 'user', content: 'Where is Paris?' }], id_slot: 3, cache_prompt: true }
  const take = () => undefined
  await calls.chat!(body, { signal, owner: 'a', take })
  await calls.chat!(body, { signal, owner: 'a', take })
  await calls.chat!(body, { signal, owner: 'b', take })
  t.match(sent[0]!.body, { id_slot: 0, cache_prompt: false })
  t.match(sent[1]!.body, { id_slot: 0, cache_prompt: true }, 'its own')
  t.match(sent[2]!.body, { id_slot: 1, cache_prompt: false })
})

t.test('a failing consumer ends the request, at once or later', async t => {
  const failing = () => {
    throw new Error('full')
  }
  for (const take of [failing, async () => failing()]) {
    const body = engineBody(new PassThrough())
    body.write(choice({ delta: { content: 'x' } }))
    const calls = callsWith(async () => ({ status: 200, body }))
    await t.rejects(calls.chat!({ messages }, { signal, take }), { message: 'full' })
    t.ok(body.destroyed, 'the connection to the engine is closed')
  }
})

t.test('a request that fails on the cache is repeated without the cache', async t => {
  const fault = { code: 500, message: 'Chunk not found', type: 'server_error' }
  let isFaulty = false
  const { calls, sent } = callsOf((_, { cache_prompt }) =>
    isFaulty && cache_prompt !== false ? { status: 500, body: JSON.stringify({ error: fault }) } : { body: END }
  )
  const long = [{ role: 'user', content: 'Where is Paris?' }]
  const ask = () => calls.chat!({ messages: long }, { signal, take: () => undefined })
  await ask()
  isFaulty = true
  await ask()
  t.equal(sent.length, 3)
})

t.test('an answer that begins with special tokens cannot be constrained to a format', async t => {
  const begun = [...messages, { role: 'assistant', content: 'x</s>' }]
  const respond: Respond = (path, body) =>
    path === '/tokenize' ? { body: JSON.stringify({ tokens: body.parse_special ? [1] : [1, 2] }) } : { body: END }
  const format = { response_format: { type: 'json_object' } }
  await t.rejects(answerOf(respond, { messages: begun, ...format }), { code: 'invalid_request', param: 'messages' })
  t.equal((await answerOf(respond, { messages: begun })).sent.length, 1)
  t.equal((await answerOf(respond, { messages, ...format })).sent.length, 1)
})

t.test('the engine completes text before a suffix', async t => {
  const { calls, sent } = callsOf(() => ({ body: event({ index: 0, content: 'x', stop: true, stop_type: 'eos' }) }))
  const deltas: Delta[] = []
  const sink = { signal, take: (pieces: readonly Delta[]) => void deltas.push(...pieces) }
  await calls.completion!({ prompt: 'a', suffix: 'b', max_tokens: 4 }, sink)
  t.match(sent, [{ path: '/infill', body: { input_prefix: 'a', input_suffix: 'b', n_predict: 4 } }])
  t.match(deltas, [{ content: 'x', finish: 'stop' }])
  await calls.completion!({ prompt: 'ab', line: 'b', suffix: 'c' }, { signal, take: () => undefined })
  t.match(sent[1], { path: '/infill', body: { input_prefix: 'a', prompt: 'b', input_suffix: 'c' } })
})

/** A lease of an engine with these calls. */
const leaseOf = (engine: Partial<Engine>) => ({ engine, signal, letOthers: async () => {} }) as unknown as Lease
const tally = { unread: undefined, read: () => {} } as unknown as TokenTally

t.test('the engine embeds texts in batches', async t => {
  const vector = Buffer.alloc(4)
  const { calls, sent } = callsOf((_, { input }) => {
    const data = [input].flat().map((text, index) => {
      vector.writeFloatLE(Number(text))
      return { index, embedding: vector.toString('base64') }
    })
    return { body: JSON.stringify({ data, usage: { prompt_tokens: 2 } }) }
  }, 'embedding')
  const texts = Array.from({ length: 70 }, (_, index) => `${index}`)
  const { vectors, promptTokens } = await embedChunked(leaseOf(calls), texts, tally)
  const values = vectors.map(([value]) => value)
  t.same(values, texts.map(Number))
  t.equal(promptTokens, 6)
  const counts = sent.map(({ body }) => body.input.length)
  t.same(counts, [32, 32, 6])
  t.notOk(calls.chat, 'an embedding engine rejects chats')
})

t.test('the engine ranks documents in batches', async t => {
  const { calls } = callsOf((_, { documents }) => {
    const results = documents.map((text: string, index: number) => ({ index, relevance_score: Number(text) }))
    return { body: JSON.stringify({ results: results.reverse(), usage: { prompt_tokens: 1 } }) }
  }, 'rerank')
  const documents = Array.from({ length: 40 }, (_, index) => `${index}`)
  const { scores, promptTokens } = await rerankChunked(leaseOf(calls), { query: 'q', documents }, tally)
  t.equal(promptTokens, 2)
  t.ok(scores.every(({ index, score }) => index === score))
  t.equal(scores.length, 40)
})

t.test('a transcription becomes a chat with an audio model', async t => {
  const plain = { capabilities: [] }
  const readText = (fields: EngineFields) =>
    (transcriptionChat({ audio: 'UklG', ...fields }, plain).messages.at(-1) as any).content[0].text
  const audio = { type: 'input_audio', input_audio: { data: 'UklG' } }
  t.same(transcriptionChat({ audio: 'UklG', temperature: 0 }, plain), {
    temperature: 0,
    messages: [{ role: 'user', content: [{ type: 'text', text: 'Transcribe audio to text' }, audio] }]
  })
  t.match(readText({ translate: true }), /English/)
  t.equal(readText({ prompt: 'Write it down', language: 'de' }), 'Write it down (language: de)')
  t.same(transcriptionChat({ audio: 'UklG' }, { architecture: 'lfm2', capabilities: ['thinking'] }), {
    messages: [
      { role: 'system', content: 'Perform ASR.' },
      { role: 'user', content: [audio] }
    ],
    chat_template_kwargs: { enable_thinking: false }
  })
})

t.test('the prompts of a list are requested one after the other', async t => {
  const sent: any[] = []
  let open = 0
  const calls = callsWith(async ({ body }) => {
    t.equal(++open, 1, 'no other request is open')
    sent.push(JSON.parse(String(body)))
    const answer = engineBody(new PassThrough())
    answer.once('end', () => open--)
    answer.end(`${choice({ text: sent.at(-1).prompt })}data: [DONE]\n\n`)
    return { status: 200, body: answer }
  })
  const deltas: any[] = []
  const take = (pieces: readonly object[]) => void deltas.push(...pieces)
  await calls.completion!({ prompt: ['a', 'b', 'c'] }, { signal, take })
  const [prompts, choices] = [sent.map(({ prompt }) => prompt), deltas.map(({ choice }) => choice)]
  t.strictSame(
    [prompts, choices],
    [
      ['a', 'b', 'c'],
      [0, 1, 2]
    ]
  )
})

t.test('texts that cannot fit are not sent to be tokenized', async t => {
  const long = 'a b '.repeat(600_000)
  const { calls, sent } = callsOf(() => ({ body: '{"tokens":[1,2,3],"data":[]}' }))
  const sink = { signal, take: () => undefined }
  const refused = { code: 'context_exceeded', details: { n_ctx: 100 } }
  const parts = [{ type: 'text', text: long }]
  await t.rejects(calls.chat!({ messages: [{ role: 'user', content: parts }] }, sink), refused)
  await t.rejects(calls.completion!({ prompt: long }, sink), refused)
  await t.rejects(calls.completion!({ prompt: 'x', suffix: long }, sink), { code: 'context_exceeded' })
  const tooLong = { code: 'over_limit', param: 'content', message: /in parts/ }
  await t.rejects(calls.tokenize!({ content: long }, { signal }), tooLong)
  await t.rejects(calls.countTokens!({ messages: [{ role: 'user', content: long }] }, { signal }), refused)
  t.strictSame(sent, [])
  await calls.tokenize!({ content: long.slice(0, 2_000_000) }, { signal })
  t.equal(sent.length, 1, 'text that is only tokenized need not fit')

  const embedding = callsOf(() => ({ body: '{"tokens":[1,2,3],"data":[]}' }), 'embedding')
  await t.rejects(embedding.calls.embed!([long], { signal }), refused)
  await embedding.calls.embed!([long], { signal, truncate: true })
  t.ok(
    embedding.sent.every(({ body }) => JSON.stringify(body).length < 2_200_000),
    'the beginning of a truncated text'
  )
  const rerank = callsOf(() => ({ body: '{"results":[]}' }), 'rerank')
  await t.rejects(rerank.calls.rerank!('x', ['y', long], { signal }), refused)
})
