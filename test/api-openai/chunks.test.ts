import t from 'tap'
import type { Delta, TokenProbability } from '../../core/contracts/engines.ts'
import {
  type Chunk,
  type ChunkHead,
  ChunkWriter,
  chatLogprobs,
  olderLogprobs,
  WholeAnswer
} from '../../plugins/api-openai/chunks.ts'
import { embeddingList, ranking } from '../../plugins/api-openai/embeddings.ts'
import { bestChoices } from '../../plugins/api-openai/generation.ts'
import { modelPage } from '../../plugins/api-openai/model-routes.ts'
import { variantOf } from './support.ts'

const usage = (prompt: number, completion: number, cached = 0) => ({
  prompt_tokens: prompt,
  completion_tokens: completion,
  total_tokens: prompt + completion,
  prompt_tokens_details: { cached_tokens: cached }
})
const counted = (promptTokens: number, completionTokens: number, cachedTokens = 0) => ({
  usage: { promptTokens, completionTokens, cachedTokens }
})
const token = (text: string, logprob: number, ...others: [string, number][]): TokenProbability => {
  const given = (of: string, value: number) => ({ id: 5, token: of, bytes: [...Buffer.from(of)], logprob: value })
  return { ...given(text, logprob), top_logprobs: [[text, logprob] as const, ...others].map(([a, b]) => given(a, b)) }
}
const chatChunk = (choices: any[], more: object = {}): Chunk => ({
  id: 'chatcmpl-1',
  created: 5,
  model: 'a/b',
  object: 'chat.completion.chunk',
  choices,
  ...more
})
const textChunk = (choices: any[], more: object = {}): Chunk => ({
  ...chatChunk(choices, more),
  object: 'text_completion'
})

/** The chunks of an answer. */
function chunksOf(deltas: Delta[], head: Partial<ChunkHead> = {}): Chunk[] {
  const object = 'chat.completion.chunk'
  const writer = new ChunkWriter({ object, id: 'cmpl-7', model: 'A/b', choices: 1, usage: true, ...head })
  return [...deltas.flatMap(delta => writer.add([delta])), writer.end()].filter(chunk => chunk !== undefined)
}

t.test('the counts of several choices come once, at the end', async t => {
  const deltas: Delta[] = [
    { reading: { tokens: 1, total: 19, cached: 0 } },
    { choice: 1, content: 'b' },
    { choice: 1, finish: 'stop', ...counted(19, 2, 18), extra: { timings: { prompt_n: 1 } } },
    { finish: 'stop', ...counted(19, 5, 0), extra: { timings: { prompt_n: 2 } } }
  ]
  const chunks = chunksOf(deltas, { choices: 2 })
  t.strictSame(
    chunks.map(({ choices }) => choices.map(({ index, delta, finish_reason }) => [index, delta, finish_reason])),
    [
      [[1, { role: 'assistant', content: null }, null]],
      [[1, { content: 'b' }, null]],
      [[1, {}, 'stop']],
      [[0, { role: 'assistant', content: null }, null]],
      [[0, {}, 'stop']],
      []
    ]
  )
  t.match(chunks.at(-1), { id: 'cmpl-7', model: 'A/b', usage: usage(19, 7, 0), timings: { prompt_n: 2 } })
  const uncounted = chunksOf(deltas, { choices: 2, usage: false })
  t.notOk(uncounted.some(chunk => chunk.usage))
  t.match(uncounted.at(-1), { timings: { prompt_n: 2 } }, "the engine's own fields come with the end of a choice")

  const texts: Delta[] = [
    { finish: 'stop', ...counted(3, 1) },
    { choice: 2, finish: 'stop', ...counted(4, 2) },
    { choice: 3, finish: 'stop', ...counted(4, 4, 3) },
    { choice: 1, finish: 'stop', ...counted(3, 8, 2) }
  ]
  const last = chunksOf(texts, { object: 'text_completion', choices: 2 }).at(-1)!
  t.match(last, { id: 'cmpl-7', choices: [], usage: usage(7, 15) })
  t.equal(chunksOf([{ content: 'x', finish: 'stop' }]).at(-1)!.usage, undefined, 'an engine that does not count')
  const late = chunksOf([{ content: 'x', finish: 'stop' }, counted(3, 1)])
  t.match(late.at(-1)!.usage, usage(3, 1), 'counts may come after the end of the text')
})

t.test('log probabilities', async t => {
  const tokens = [token('Hi', -0.5, ['Ho', -1]), token('', -0.1), token(' there', -0.25, ['!', -2], ['?', -3])]
  t.strictSame(chatLogprobs(tokens, 1), [
    { token: 'Hi', bytes: [72, 105], logprob: -0.5, top_logprobs: [{ token: 'Hi', bytes: [72, 105], logprob: -0.5 }] },
    {
      token: ' there',
      bytes: [...Buffer.from(' there')],
      logprob: -0.25,
      top_logprobs: [{ token: ' there', bytes: [...Buffer.from(' there')], logprob: -0.25 }]
    }
  ])
  t.strictSame(
    chatLogprobs(tokens, 0).map(({ top_logprobs }) => top_logprobs),
    [[], []]
  )
  t.strictSame(olderLogprobs(tokens, 2, 3), {
    tokens: ['Hi', ' there'],
    token_logprobs: [-0.5, -0.25],
    top_logprobs: [
      { Hi: -0.5, Ho: -1 },
      { ' there': -0.25, '!': -2 }
    ],
    text_offset: [3, 5]
  })
  t.equal(olderLogprobs(tokens, 0, 0).top_logprobs, null)
  t.strictSame(olderLogprobs([token('😀', 0), token('x', 0)], 0, 0).text_offset, [0, 1], 'characters, not units')
  const strange = olderLogprobs([token('constructor', -1, ['__proto__', -2], ['constructor', -3])], 3, 0).top_logprobs!
  t.strictSame(Object.entries(strange[0]!), [
    ['constructor', -1],
    ['__proto__', -2]
  ])
})

t.test('a streamed answer is put together to the whole one', t => {
  const answer = new WholeAnswer()
  const chunk = (choices: any[], more: object = {}) => answer.add(chatChunk(choices, more))
  chunk([{ index: 1, finish_reason: null, delta: { role: 'assistant', content: null } }])
  const logprobs = (text: string) => ({ content: [{ token: text }], refusal: null })
  chunk([{ index: 1, finish_reason: null, delta: { content: 'Hi' }, logprobs: logprobs('Hi') }])
  chunk([{ index: 0, finish_reason: null, delta: { reasoning_content: 'hm' } }])
  const call = (index: number, more: object) => ({ tool_calls: [{ index, ...more }] })
  chunk([
    {
      index: 0,
      finish_reason: null,
      delta: call(0, { id: 'c0', type: 'function', function: { name: 'f', arguments: '{' } })
    }
  ])
  chunk([{ index: 1, finish_reason: null, delta: { content: '!' }, logprobs: logprobs('!') }])
  chunk([{ index: 0, finish_reason: null, delta: call(0, { function: { arguments: '}' } }) }])
  chunk([{ index: 0, finish_reason: null, delta: call(1, { id: 'c1', function: { name: 'g', arguments: '' } }) }])
  chunk([{ index: 1, finish_reason: 'stop', delta: {} }], { timings: { prompt_n: 1 } })
  chunk([{ index: 0, finish_reason: 'tool_calls', delta: {} }], { timings: { prompt_n: 2 } })
  chunk([], { usage: { completion_tokens: 3 } })
  t.same(answer.body(), {
    id: 'chatcmpl-1',
    created: 5,
    model: 'a/b',
    object: 'chat.completion',
    usage: { completion_tokens: 3 },
    timings: { prompt_n: 1 },
    choices: [
      {
        index: 0,
        finish_reason: 'tool_calls',
        logprobs: null,
        message: {
          role: 'assistant',
          content: null,
          refusal: null,
          reasoning_content: 'hm',
          tool_calls: [
            { id: 'c0', type: 'function', function: { name: 'f', arguments: '{}' } },
            { id: 'c1', type: 'function', function: { name: 'g', arguments: '' } }
          ]
        }
      },
      {
        index: 1,
        finish_reason: 'stop',
        message: { role: 'assistant', content: 'Hi!', refusal: null },
        logprobs: { content: [{ token: 'Hi' }, { token: '!' }], refusal: null }
      }
    ]
  })

  const text = new WholeAnswer()
  const piece = (index: number, part: string, finish: string | null, more: object | null = null) =>
    text.add(textChunk([{ index, text: part, logprobs: more, finish_reason: finish }]))
  piece(0, 'a', null, { tokens: ['a'], top_logprobs: null })
  piece(1, 'c', null)
  piece(0, 'b', null, { tokens: ['b'], top_logprobs: null })
  piece(0, '', 'length')
  piece(1, '', 'stop')
  t.match(text.body(), {
    object: 'text_completion',
    choices: [
      { index: 0, text: 'ab', logprobs: { tokens: ['a', 'b'], top_logprobs: null }, finish_reason: 'length' },
      { index: 1, text: 'c', logprobs: null, finish_reason: 'stop' }
    ]
  })
  t.end()
})

t.test('answers to functions, as older clients read them', async t => {
  const chunks = chunksOf(
    [
      { toolCalls: [{ index: 0, id: 'x', name: 'f', arguments: '{' }] },
      { toolCalls: [{ index: 0, arguments: '}' }] },
      { finish: 'tool_calls' }
    ],
    { legacyFunctions: true }
  )
  t.strictSame(
    chunks.map(({ choices }) => choices[0]!.delta?.function_call),
    [undefined, { name: 'f', arguments: '{' }, { arguments: '}' }, undefined]
  )
  t.equal(chunks[3]!.choices[0]!.finish_reason, 'function_call')
  t.notMatch(JSON.stringify(chunks), 'tool_calls')
  const whole = new WholeAnswer()
  for (const chunk of chunks) whole.add(chunk)
  t.match(whole.choices()[0], { message: { function_call: { name: 'f', arguments: '{}' } } })
})

t.test('completions', async t => {
  const object = 'text_completion'
  const echoed = chunksOf(
    [{ choice: 1, content: 'b' }, { content: 'a' }, { finish: 'stop' }, { choice: 1, content: 'c', finish: 'stop' }],
    { object, echo: ['one ', 'two '] }
  )
  const whole = new WholeAnswer()
  for (const chunk of echoed) whole.add(chunk)
  t.strictSame(
    whole.choices().map(({ text }) => text),
    ['one a', 'two bc']
  )
  t.match(echoed[0], { id: 'cmpl-7', model: 'A/b' })

  const probable = chunksOf(
    [
      { content: 'Hi', logprobs: [token('Hi', -1)] },
      { content: ' you', logprobs: [token(' you', -2)] },
      { logprobs: [token('', -3)] },
      { finish: 'stop' }
    ],
    { object, logprobs: 1 }
  )
  t.strictSame(
    probable.map(({ choices }) => (choices[0]!.logprobs as any)?.text_offset),
    [[0], [2], [], undefined]
  )
  const nothing = chunksOf([{ content: 'x' }, { finish: 'length', ...counted(3, 1) }], {
    object,
    nothing: true,
    echo: ['p']
  })
  t.strictSame(
    nothing.flatMap(({ choices }) => choices.map(({ text }) => text)),
    ['p', '']
  )
  t.strictSame(nothing.at(-1)!.usage, usage(3, 0))
})

t.test('the best of several', async t => {
  t.strictSame(bestChoices([-1, -3, -2], 3, 1), [0])
  t.strictSame(bestChoices([-1, -3, -2, -9, -8, -7], 3, 2), [0, 2, 5, 4])
  t.strictSame(bestChoices([-1, -1], 2, 1), [0])
})

t.test('embeddings are cut to size and normalised anew', async t => {
  const vectors = { vectors: [Float32Array.of(3, 4, 12, 0)], promptTokens: 1 }
  const list = (dimensions: number | undefined, encoding_format: 'float' | 'base64') =>
    embeddingList(vectors, { input: 'x', dimensions, encoding_format }, 'a/b')
  t.strictSame(list(2, 'float').data[0]!.embedding, [0.6, 0.8])
  const bytes = Buffer.from(list(2, 'base64').data[0]!.embedding as string, 'base64')
  t.equal(bytes.length, 8)
  t.equal(bytes.readFloatLE(4), Math.fround(0.8))
  t.strictSame(list(undefined, 'float'), {
    object: 'list',
    model: 'a/b',
    data: [{ object: 'embedding', index: 0, embedding: [3, 4, 12, 0] }],
    usage: { prompt_tokens: 1, total_tokens: 1 }
  })
  t.throws(() => list(5, 'float'), { code: 'invalid_request', param: 'dimensions', message: /4 at most/ })
})

t.test('rankings', async t => {
  const reply = {
    scores: [
      { index: 0, score: -1 },
      { index: 2, score: 0.5 },
      { index: 1, score: 0.1 }
    ],
    promptTokens: 7
  }
  const documents = ['a', { text: 'b' }, 'c']
  t.strictSame(ranking(reply, { query: 'q', documents, top_n: 2, return_documents: true }, 'a/b'), {
    object: 'list',
    model: 'a/b',
    usage: { prompt_tokens: 7, total_tokens: 7 },
    results: [
      { index: 2, relevance_score: 0.5, document: { text: 'c' } },
      { index: 1, relevance_score: 0.1, document: { text: 'b' } }
    ]
  })
  const all = ranking(reply, { query: 'q', documents }, 'a/b').results
  t.equal(all.length, 3)
  t.notOk('document' in all[0]!)
})

t.test('pages of models', async t => {
  const variants = ['a', 'b', 'c', 'd'].map(name => variantOf('x', name))
  const page = (query: object) => {
    const { data, ...rest } = modelPage(variants, () => 1, query)
    return [data.map(({ id }) => id.slice(2)).join(''), rest.first_id, rest.last_id, rest.has_more]
  }
  t.strictSame(page({}), ['abcd', 'x/a', 'x/d', false])
  t.strictSame(page({ limit: 2 }), ['ab', 'x/a', 'x/b', true])
  t.strictSame(page({ limit: 2, after_id: 'X/b' }), ['cd', 'x/c', 'x/d', false])
  t.strictSame(page({ limit: 2, before_id: 'x/d' }), ['bc', 'x/b', 'x/c', true])
  t.strictSame(page({ after_id: 'x/d' }), ['', null, null, false])
  t.throws(() => page({ after_id: 'x/z' }), { code: 'invalid_request', param: 'after_id' })
  t.throws(() => page({ before_id: 'z' }), { code: 'invalid_request', param: 'before_id' })
  t.strictSame(
    modelPage([], () => 1, {}),
    { object: 'list', data: [], first_id: null, last_id: null, has_more: false }
  )
})
