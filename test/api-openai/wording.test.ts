import t from 'tap'
import { type Chunk, ChunkWording, type Wording } from '../../plugins/api-openai/chunk-wording.ts'
import { bestChoices } from '../../plugins/api-openai/completion-fields.ts'
import { cutEmbeddings } from '../../plugins/api-openai/embeddings.ts'
import { InfillChunks } from '../../plugins/api-openai/infill-chunks.ts'
import { chatLogprobs, olderLogprobs } from '../../plugins/api-openai/logprobs.ts'
import { modelPage } from '../../plugins/api-openai/models.ts'
import { wordRanking } from '../../plugins/api-openai/rerank.ts'
import { WholeAnswer } from '../../plugins/api-openai/whole-answer.ts'
import { variantOf } from './support.ts'

const usage = (prompt: number, completion: number, cached = 0) => ({
  prompt_tokens: prompt,
  completion_tokens: completion,
  total_tokens: prompt + completion,
  prompt_tokens_details: { cached_tokens: cached }
})
const token = (text: string, logprob: number, ...others: [string, number][]) => {
  const told = (of: string, value: number) => ({ id: 5, token: of, bytes: [...Buffer.from(of)], logprob: value })
  return { ...told(text, logprob), top_logprobs: [[text, logprob] as const, ...others].map(([a, b]) => told(a, b)) }
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
const wording = (more: Partial<Wording> = {}): Wording => ({
  id: 'cmpl-7',
  model: 'A/b',
  choices: 1,
  usage: true,
  ...more
})

function words(chunks: Chunk[], how: Wording): Chunk[] {
  const worded = new ChunkWording(how)
  return [...chunks.map(chunk => worded.word(chunk)), worded.end()].filter(chunk => chunk !== undefined)
}

t.test('the counts of several choices come once, at the end', async t => {
  const chunks = [
    chatChunk([{ index: 1, finish_reason: null, delta: { content: 'b' } }]),
    chatChunk([{ index: 1, finish_reason: 'stop', delta: {} }]),
    chatChunk([], { usage: usage(19, 2, 18), timings: {} }),
    chatChunk([{ index: 0, finish_reason: 'stop', delta: {} }]),
    chatChunk([], { usage: usage(19, 5, 0) })
  ]
  const told = words(chunks, wording({ choices: 2 }))
  t.strictSame(
    told.map(({ choices }) => choices.map(({ index }) => index)),
    [[1], [1], [0], []]
  )
  t.strictSame(told.at(-1), { ...chatChunk([]), id: 'cmpl-7', model: 'A/b', usage: usage(19, 7, 0) })
  t.notOk(words(chunks, wording({ choices: 2, usage: false })).some(chunk => chunk.usage))

  const texts = [
    textChunk([{ index: 0, text: '', finish_reason: 'stop', logprobs: null }], { usage: usage(3, 1) }),
    textChunk([{ index: 2, text: '', finish_reason: 'stop', logprobs: null }], { usage: usage(4, 2) }),
    textChunk([{ index: 3, text: '', finish_reason: 'stop', logprobs: null }], { usage: usage(4, 4, 3) }),
    textChunk([{ index: 1, text: '', finish_reason: 'stop', logprobs: null }], { usage: usage(3, 8, 2) })
  ]
  const last = words(texts, wording({ choices: 2 })).at(-1)!
  t.match(last, { id: 'cmpl-7', choices: [], usage: usage(7, 15) })
  t.strictSame(words(texts, wording({ choices: 2 }))[0]!.usage, undefined)
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
  const chunks = [
    chatChunk([{ index: 0, finish_reason: null, delta: { role: 'assistant', content: null } }]),
    chatChunk([
      {
        index: 0,
        finish_reason: null,
        delta: { tool_calls: [{ index: 0, id: 'x', type: 'function', function: { name: 'f', arguments: '{' } }] }
      }
    ]),
    chatChunk([{ index: 0, finish_reason: null, delta: { tool_calls: [{ index: 0, function: { arguments: '}' } }] } }]),
    chatChunk([{ index: 0, finish_reason: 'tool_calls', delta: {} }])
  ]
  const told = words(chunks, wording({ legacyFunctions: true }))
  t.strictSame(
    told.map(({ choices }) => choices[0]!.delta?.function_call),
    [undefined, { name: 'f', arguments: '{' }, { arguments: '}' }, undefined]
  )
  t.equal(told[3]!.choices[0]!.finish_reason, 'function_call')
  t.notMatch(JSON.stringify(told), 'tool_calls')
  const whole = new WholeAnswer()
  for (const chunk of told) whole.add(chunk)
  t.match(whole.choices()[0], { message: { function_call: { name: 'f', arguments: '{}' } } })
})

t.test('completions', async t => {
  const piece = (index: number, text: string, finish: string | null = null, tokens: any[] = []) =>
    textChunk([{ index, text, logprobs: tokens.length ? { content: tokens } : null, finish_reason: finish }])
  const echoed = words(
    [piece(1, 'b'), piece(0, 'a'), piece(0, '', 'stop'), piece(1, 'c', 'stop')],
    wording({ echo: ['one ', 'two '] })
  )
  const whole = new WholeAnswer()
  for (const chunk of echoed) whole.add(chunk)
  t.strictSame(
    whole.choices().map(({ text }) => text),
    ['one a', 'two bc']
  )
  t.equal(echoed[0]!.id, 'cmpl-7')
  t.equal(echoed[0]!.model, 'A/b')

  const probable = words(
    [
      piece(0, 'Hi', null, [token('Hi', -1)]),
      piece(0, ' you', null, [token(' you', -2)]),
      piece(0, '', null, [token('', -3)]),
      piece(0, '', 'stop')
    ],
    wording({ logprobs: 1 })
  )
  t.strictSame(
    probable.map(({ choices }) => (choices[0]!.logprobs as any)?.text_offset),
    [[0], [2], [], undefined]
  )
  const nothing = words(
    [piece(0, 'x', null), { ...piece(0, '', 'length'), usage: usage(3, 1) }],
    wording({ nothing: true, echo: ['p'] })
  )
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

t.test('what is filled in', async t => {
  const chunks = new InfillChunks(2)
  const event = (index: number, content: string, more: object = {}) => ({ index, content, stop: false, ...more })
  const first = chunks.chunk(event(0, 'a', { completion_probabilities: [token('a', -1)] }))
  t.match(first, {
    object: 'text_completion',
    choices: [{ index: 0, text: 'a', finish_reason: null, logprobs: { content: [{ token: 'a' }] } }]
  })
  t.notOk(first.usage)
  const end = { stop: true, tokens_evaluated: 7, tokens_predicted: 2, timings: { cache_n: 3 } }
  t.match(chunks.chunk(event(1, '', { ...end, stop_type: 'eos' })), {
    choices: [{ index: 1, finish_reason: 'stop' }],
    usage: usage(7, 2, 3)
  })
  t.notOk(chunks.done)
  t.match(chunks.chunk(event(0, '', { ...end, stop_type: 'limit' })), { choices: [{ finish_reason: 'length' }] })
  t.ok(chunks.done)
})

t.test('vectors that are cut', async t => {
  const bytes = Buffer.alloc(16)
  for (const [index, value] of [3, 4, 12, 0].entries()) bytes.writeFloatLE(value, index * 4)
  const reply = {
    object: 'list',
    usage: { prompt_tokens: 1 },
    data: [{ object: 'embedding', index: 0, embedding: bytes.toString('base64'), encoding_format: 'base64' }]
  }
  const [cut] = cutEmbeddings(reply, 2, 'float').data as { embedding: number[] }[]
  t.strictSame(
    cut!.embedding.map(value => value.toFixed(5)),
    ['0.60000', '0.80000']
  )
  t.notOk('encoding_format' in cut!)
  const [short] = cutEmbeddings(reply, 2, 'base64').data as { embedding: string }[]
  const read = Buffer.from(short!.embedding, 'base64')
  t.equal(read.length, 8)
  t.equal(read.readFloatLE(4), cut!.embedding[1])
  t.match(cutEmbeddings(reply, 4, 'float').usage, { prompt_tokens: 1 })
  t.throws(() => cutEmbeddings(reply, 5, 'float'), {
    code: 'invalid_request',
    param: 'dimensions',
    message: /4 at most/
  })
})

t.test('rankings', async t => {
  const reply = {
    object: 'list',
    results: [
      { index: 0, relevance_score: -1 },
      { index: 2, relevance_score: 0.5 },
      { index: 1, relevance_score: 0.1 }
    ]
  }
  const documents = ['a', { text: 'b' }, 'c']
  t.strictSame(wordRanking(reply, { query: 'q', documents, top_n: 2, return_documents: true }).results, [
    { index: 2, relevance_score: 0.5, document: { text: 'c' } },
    { index: 1, relevance_score: 0.1, document: { text: 'b' } }
  ])
  const all = wordRanking(reply, { query: 'q', documents }).results as object[]
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
