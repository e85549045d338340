import fastify from 'fastify'
import t from 'tap'
import type { Delta, TokenProbability } from '../../../../core/contracts/engines.ts'
import { embeddingList, ranking, toDimensions } from '../../../../plugins/apis/openai/embeddings.ts'
import { modelPage } from '../../../../plugins/apis/openai/models.ts'
import {
  type AnswerHead,
  bestChoices,
  chatLogprobs,
  completionLogprobs,
  OpenAiAnswer
} from '../../../../plugins/apis/openai/openai-answer.ts'
import { readCases } from '../../../support/cases.ts'
import { each } from '../../../support/each.ts'
import { variantOf } from './support.ts'

const CASES = readCases('openai-answer')

const FACTS = { limits: { context: 1, window: 1, answer: 1 }, state: { value: 'unloaded' }, aliases: [] } as const

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
const createAnswer = (head: Partial<AnswerHead>) =>
  new OpenAiAnswer({ operation: 'chat', id: 'cmpl-7', model: 'A/b', choices: 1, usage: true, ...head })

/** Returns the chunks of an answer. */
function getChunks(deltas: Delta[], head: Partial<AnswerHead> = {}): any[] {
  const answer = createAnswer(head)
  return [...deltas.flatMap(delta => answer.chunks([delta])), answer.lastChunk()].filter(chunk => chunk !== undefined)
}

/** Returns a complete answer. */
function getWhole(deltas: Delta[], head: Partial<AnswerHead> = {}): any {
  const answer = createAnswer(head)
  for (const delta of deltas) answer.add([delta])
  return answer.whole()
}

t.test('the usage of several choices is summed up in the last chunk', async t => {
  const deltas: Delta[] = [
    { reading: { tokens: 1, total: 19, cached: 0 } },
    { choice: 1, content: 'b' },
    { choice: 1, finish: 'stop', ...counted(19, 2, 18), extra: { timings: { prompt_n: 1 } } },
    { finish: 'stop', ...counted(19, 5, 0), extra: { timings: { prompt_n: 2 } } }
  ]
  const chunks = getChunks(deltas, { choices: 2 })
  t.strictSame(
    chunks.map(({ choices }) => choices.map(({ index, delta, finish_reason }: any) => [index, delta, finish_reason])),
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
  const uncounted = getChunks(deltas, { choices: 2, usage: false })
  t.notOk(uncounted.some(chunk => chunk.usage))
  t.match(uncounted.at(-1), { timings: { prompt_n: 2 } }, "the engine's own fields are in the last chunk of a choice")

  const texts: Delta[] = [
    { finish: 'stop', ...counted(3, 1) },
    { choice: 2, finish: 'stop', ...counted(4, 2) },
    { choice: 3, finish: 'stop', ...counted(4, 4, 3) },
    { choice: 1, finish: 'stop', ...counted(3, 8, 2) }
  ]
  const last = getChunks(texts, { operation: 'completion', choices: 2 }).at(-1)!
  t.match(last, { id: 'cmpl-7', choices: [], usage: usage(7, 15) })
  t.equal(getChunks([{ content: 'x', finish: 'stop' }]).at(-1)!.usage, undefined, 'an engine without counts')
  const late = getChunks([{ content: 'x', finish: 'stop' }, counted(3, 1)])
  t.match(late.at(-1)!.usage, usage(3, 1), 'counts may arrive after the text ends')
})

t.test('formats log probabilities for chats and completions', async t => {
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
  t.strictSame(each(chatLogprobs(tokens, 0), 'top_logprobs'), [[], []])
  t.strictSame(completionLogprobs(tokens, 2, 3), {
    tokens: ['Hi', ' there'],
    token_logprobs: [-0.5, -0.25],
    top_logprobs: [
      { Hi: -0.5, Ho: -1 },
      { ' there': -0.25, '!': -2 }
    ],
    text_offset: [3, 5]
  })
  t.equal(completionLogprobs(tokens, 0, 0).top_logprobs, null)
  t.strictSame(
    completionLogprobs([token('😀', 0), token('x', 0)], 0, 0).text_offset,
    [0, 1],
    'offsets count characters, not UTF-16 units'
  )
  const strange = completionLogprobs([token('constructor', -1, ['__proto__', -2], ['constructor', -3])], 3, 0)
    .top_logprobs!
  t.strictSame(Object.entries(strange[0]!), [
    ['constructor', -1],
    ['__proto__', -2]
  ])
})

t.test('assembles a complete answer', async t => {
  const call = (index: number, more: object) => ({ toolCalls: [{ index, arguments: '', ...more }] })
  const deltas: Delta[] = [
    { choice: 1, content: 'Hi', logprobs: [token('Hi', -1)] },
    { thinking: 'hm' },
    call(0, { id: 'c0', name: 'f', arguments: '{' }),
    { choice: 1, content: '!', logprobs: [token('!', -2)] },
    call(0, { arguments: '}' }),
    call(1, { id: 'c1', name: 'g' }),
    { choice: 1, finish: 'stop', ...counted(3, 1) },
    { finish: 'tool_calls', ...counted(3, 2), extra: { timings: { prompt_n: 2 } } }
  ]
  const { created, ...whole } = getWhole(deltas, { choices: 2, logprobs: 0 })
  t.type(created, 'number')
  t.strictSame(whole, CASES.whole)
  t.equal(getWhole([{ finish: 'stop' }]).choices[0].message.content, '', 'an empty answer')

  const texts: Delta[] = [
    { content: 'a', logprobs: [token('a', -1)] },
    { choice: 1, content: 'c', logprobs: [token('c', -3)] },
    { content: 'b', logprobs: [token('b', -1)] },
    { finish: 'length' },
    { choice: 1, finish: 'stop' }
  ]
  const completion = { operation: 'completion', choices: 2 } as const
  t.match(getWhole(texts, { ...completion, logprobs: 0 }), {
    object: 'text_completion',
    choices: [
      {
        index: 0,
        text: 'ab',
        logprobs: { tokens: ['a', 'b'], top_logprobs: null, text_offset: [0, 1] },
        finish_reason: 'length'
      },
      { index: 1, text: 'c', logprobs: { tokens: ['c'] }, finish_reason: 'stop' }
    ]
  })
  const best = getWhole(texts, { ...completion, bestOf: 1 }).choices
  t.match(best, [{ index: 0, text: 'ab', logprobs: null }])
  t.equal(best.length, 1)
})

t.test('calls of freeform tools have their own format', async t => {
  const call = (index: number, text: string, first: object = {}) => ({
    toolCalls: [{ index, arguments: text, ...first }]
  })
  const deltas: Delta[] = [
    call(0, '', { id: 'c0', name: 'f' }),
    call(0, '{}'),
    call(1, '{"in', { id: 'c1', name: 'patch_' }),
    call(1, 'put":"a'),
    call(1, '\\'),
    call(1, 'nb"}'),
    call(2, '{"patch":"x"}', { id: 'c2', name: 'patch_' }),
    { finish: 'tool_calls' }
  ]
  const head = { freeform: new Map([['patch_', 'patch']]), usage: false }
  const pieces = getChunks(deltas, head).flatMap(({ choices }) => choices[0].delta.tool_calls ?? [])
  t.strictSame(pieces, [
    { index: 0, id: 'c0', type: 'function', function: { name: 'f', arguments: '' } },
    { index: 0, function: { arguments: '{}' } },
    { index: 1, id: 'c1', type: 'custom', custom: { name: 'patch', input: '' } },
    { index: 1, custom: { input: 'a' } },
    { index: 1, custom: { input: '\nb' } },
    { index: 2, id: 'c2', type: 'custom', custom: { name: 'patch', input: '' } },
    { index: 2, custom: { input: '{"patch":"x"}' } }
  ])
  const { message } = getWhole(deltas, head).choices[0]
  t.strictSame(message.tool_calls.slice(1), [
    { id: 'c1', type: 'custom', custom: { name: 'patch', input: 'a\nb' } },
    { id: 'c2', type: 'custom', custom: { name: 'patch', input: '{"patch":"x"}' } }
  ])
})

t.test('function calls have the older format', async t => {
  const deltas: Delta[] = [
    { toolCalls: [{ index: 0, id: 'x', name: 'f', arguments: '{' }] },
    { toolCalls: [{ index: 0, arguments: '}' }] },
    { finish: 'tool_calls' }
  ]
  const chunks = getChunks(deltas, { legacyFunctions: true })
  t.strictSame(
    chunks.map(({ choices }) => choices[0]!.delta?.function_call),
    [undefined, { name: 'f', arguments: '{' }, { arguments: '}' }, undefined]
  )
  t.equal(chunks[3]!.choices[0]!.finish_reason, 'function_call')
  t.notMatch(JSON.stringify(chunks), 'tool_calls')
  const [choice] = getWhole(deltas, { legacyFunctions: true }).choices
  t.match(choice, { finish_reason: 'function_call', message: { function_call: { name: 'f', arguments: '{}' } } })
})

t.test('writes completions with echo, log probabilities and max_tokens 0', async t => {
  const operation = 'completion'
  const deltas: Delta[] = [
    { choice: 1, content: 'b' },
    { content: 'a' },
    { finish: 'stop' },
    { choice: 1, content: 'c', finish: 'stop' }
  ]
  const echoed = getChunks(deltas, { operation, echo: ['one ', 'two '] })
  t.strictSame(
    echoed.map(({ choices: [{ index, text }] }) => [index, text]),
    [
      [1, 'two b'],
      [0, 'one a'],
      [0, ''],
      [1, 'c']
    ]
  )
  const { choices } = getWhole(deltas, { operation, echo: ['one ', 'two '] })
  t.match(choices, [{ text: 'one a' }, { text: 'two bc' }])
  t.match(echoed[0], { id: 'cmpl-7', model: 'A/b' })

  const probable = getChunks(
    [
      { content: 'Hi', logprobs: [token('Hi', -1)] },
      { content: ' you', logprobs: [token(' you', -2)] },
      { logprobs: [token('', -3)] },
      { finish: 'stop' }
    ],
    { operation, logprobs: 1 }
  )
  t.strictSame(
    probable.map(({ choices }) => choices[0].logprobs?.text_offset),
    [[0], [2], [], undefined]
  )
  const nothing = getChunks([{ content: 'x' }, { finish: 'length', ...counted(3, 1) }], {
    operation,
    nothing: true,
    echo: ['p']
  })
  t.strictSame(
    nothing.flatMap(({ choices }) => choices.map(({ text }: any) => text)),
    ['p', '']
  )
  t.strictSame(nothing.at(-1)!.usage, usage(3, 0))
})

t.test('best_of keeps the most likely choices', async t => {
  t.strictSame(bestChoices([-1, -3, -2], 3, 1), [0])
  t.strictSame(bestChoices([-1, -3, -2, -9, -8, -7], 3, 2), [0, 2, 5, 4])
  t.strictSame(bestChoices([-1, -1], 2, 1), [0])
})

t.test('embeddings are shortened and normalized again', async t => {
  const vector = Float32Array.of(3, 4, 12, 0)
  const app = fastify()
  app.get('/:encoding_format', (request, reply) => {
    const body = { input: 'x', encoding_format: (request.params as any).encoding_format }
    const vectors = [toDimensions(vector, { ...body, ...(request.query as object) })]
    return embeddingList(reply, { vectors, promptTokens: 1 }, body, 'a/b')
  })
  const list = async (path: string) => (await app.inject(path)).json()
  t.strictSame((await list('/float?dimensions=2')).data[0].embedding, [0.6, 0.8])
  const bytes = Buffer.from((await list('/base64?dimensions=2')).data[0].embedding, 'base64')
  t.equal(bytes.length, 8)
  t.equal(bytes.readFloatLE(4), Math.fround(0.8))
  t.strictSame(await list('/float'), {
    object: 'list',
    model: 'a/b',
    data: [{ object: 'embedding', index: 0, embedding: [3, 4, 12, 0] }],
    usage: { prompt_tokens: 1, total_tokens: 1 }
  })
  t.throws(() => toDimensions(vector, { input: 'x', dimensions: 5 }), {
    code: 'invalid_request',
    param: 'dimensions',
    message: /at most 4/
  })
})

t.test('formatting thousands of embeddings does not block the event loop', async t => {
  const vectors = Array.from({ length: 2000 }, (_, index) => new Float32Array(256).fill(1 / (index + 3)))
  const app = fastify()
  app.get('/', (_, reply) => embeddingList(reply, { vectors, promptTokens: 7 }, { input: 'x' }, 'a "[]"/b'))
  let turns = 0
  let next = setImmediate(function count() {
    turns++
    next = setImmediate(count)
  })
  const response = await app.inject('/')
  clearImmediate(next)
  t.ok(turns > 50, `${turns} turns of the event loop`)
  t.equal(response.headers['content-type'], 'application/json; charset=utf-8')
  t.strictSame(response.json(), {
    object: 'list',
    model: 'a "[]"/b',
    usage: { prompt_tokens: 7, total_tokens: 7 },
    data: vectors.map((vector, index) => ({ object: 'embedding', index, embedding: Array.from(vector) }))
  })
})

t.test('formats rankings', async t => {
  const reply = {
    scores: [
      { index: 0, score: -1 },
      { index: 2, score: 0.5 },
      { index: 1, score: 0.1 }
    ],
    promptTokens: 7
  }
  const documents = ['a', 'b', 'c']
  t.strictSame(ranking(reply, { query: 'q', documents, top_n: 2, return_documents: true }, documents, 'a/b'), {
    object: 'list',
    model: 'a/b',
    usage: { prompt_tokens: 7, total_tokens: 7 },
    results: [
      { index: 2, relevance_score: 0.5, document: { text: 'c' } },
      { index: 1, relevance_score: 0.1, document: { text: 'b' } }
    ]
  })
  const all = ranking(reply, { query: 'q', documents }, documents, 'a/b').results
  t.equal(all.length, 3)
  t.notOk('document' in all[0]!)
})

t.test('lists models in pages', async t => {
  const models = ['a', 'b', 'c', 'd'].map(name => ({ model: variantOf('x', name) }))
  const page = (query: object) => {
    const { data, ...rest } = modelPage(models, () => FACTS, query)
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
    modelPage([], () => FACTS, {}),
    { object: 'list', data: [], first_id: null, last_id: null, has_more: false }
  )
})
