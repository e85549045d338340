import fastify from 'fastify'
import t from 'tap'
import type { Delta, TokenProbability } from '../../../../core/contracts/engines.ts'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { openaiErrorBody, openaiErrorEvent } from '../../../../core/http/openai-error.ts'
import { answerId, renameBytes } from '../../../../plugins/apis/openai/answer.ts'
import { FreeformInput, freeformArguments, freeformInput } from '../../../../plugins/apis/openai/freeform-tools.ts'
import { modelPage } from '../../../../plugins/apis/openai/models.ts'
import {
  type AnswerHead,
  bestChoices,
  chatLogprobs,
  completionLogprobs,
  OpenAiAnswer
} from '../../../../plugins/apis/openai/openai-answer.ts'
import { embeddingList, ranking, toDimensions } from '../../../../plugins/apis/openai/routes.ts'
import { EventBlocks } from '../../../../runtimes/llama-server/event-reader.ts'
import { requestError } from '../../../../runtimes/llama-server/request-error.ts'
import { readCases } from '../../../support/cases.ts'
import { each } from '../../../support/each.ts'
import { pick, randomNumbers } from '../../../support/random.ts'
import { trialCount } from '../../../support/trial-count.ts'
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
    CASES.summed
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

t.test('the OpenAI API formats log probabilities for chats and completions', async t => {
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
  t.strictSame(completionLogprobs(tokens, 2, 3), CASES.logprobs)
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

t.test('the OpenAI API assembles a complete answer', async t => {
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
  t.match(getWhole(texts, { ...completion, logprobs: 0 }), CASES.texts)
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
  t.strictSame(pieces, CASES.freeformPieces)
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

t.test('the OpenAI API writes completions with echo, log probabilities and max_tokens 0', async t => {
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

t.test('the OpenAI API formats rankings', async t => {
  const reply = CASES.scores
  const documents = ['a', 'b', 'c']
  t.strictSame(
    ranking(reply, { query: 'q', documents, top_n: 2, return_documents: true }, documents, 'a/b'),
    CASES.ranked
  )
  const all = ranking(reply, { query: 'q', documents }, documents, 'a/b').results
  t.equal(all.length, 3)
  t.notOk('document' in all[0]!)
})

t.test('the OpenAI API lists models in pages', async t => {
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

t.test('the OpenAI API maps engine errors to codes and messages', async t => {
  const error = (code: number, message: string, type = 'server_error', more = {}) =>
    JSON.stringify({ error: { code, message, type, ...more } })
  const table: [number, string, ErrorCode, string][] = CASES.engine
  for (const [status, body, code, text] of table) {
    const failure = requestError(status, body)
    t.equal(failure.code, code, body.slice(0, 80))
    t.match(failure.message, new RegExp(text))
    t.notMatch(failure.message, /secret/)
  }
  t.match(requestError(400, table[0]![1]).details, { n_prompt_tokens: 6012, n_ctx: 512 })
  t.equal(requestError(503, table.find(([status]) => status === 503)![1]).retryAfter, 1)
  t.ok(requestError(400, error(400, 'x'.repeat(5000))).message.length < 500)
})

t.test("the OpenAI API renders errors in OpenAI's format", async t => {
  const table: [ErrorCode, string][] = CASES.errorTypes
  for (const [code, type] of table) {
    t.strictSame(openaiErrorBody(new CorralError(code, 'text')), {
      error: { message: 'text', type, param: null, code }
    })
  }
  const detailed = new CorralError('context_exceeded', 'text', { param: 'messages', details: { n_ctx: 5, code: 'no' } })
  t.strictSame(openaiErrorBody(detailed).error, CASES.fullContext)
  t.equal(
    openaiErrorEvent(new CorralError('internal', 'line\nbreak')),
    'data: {"error":{"message":"line\\nbreak","type":"server_error","param":null,"code":"internal"}}\n\n'
  )
})

t.test('engine events are passed on whole, however their bytes are split', async t => {
  const chunk = (content: string) =>
    `data: {"choices":[{"delta":{"content":${JSON.stringify(content)}}}],"model":"a/b"}\n\n`
  const text = [
    ':\n\n',
    chunk('data: [DONE]\n\ndata: {"error": ä€😀'),
    'data: null\n\n',
    chunk('"model":"a/b"'),
    chunk('x'),
    'data: [DONE]\n\n'
  ].join('')
  const wanted = text.replace(':\n\n', '').replace('data: null\n\n', '')
  const bytes = Buffer.from(text)
  const read = (size: number, rename = (bytes: Buffer) => bytes) => {
    const blocks = new EventBlocks()
    const out: Buffer[] = []
    let done = false
    let late = 0
    for (let at = 0; at < bytes.length; at += size) {
      if (done) late++
      const block = blocks.push(bytes.subarray(at, at + size))
      if (!block) continue
      if (block.error !== undefined) t.fail('no error was sent')
      done = block.done
      out.push(rename(block.bytes))
    }
    t.equal(late, 0, 'nothing follows the end')
    t.ok(done, `in pieces of ${size}`)
    return Buffer.concat(out).toString('utf8')
  }
  for (const size of [1, 2, 3, 7, 64]) t.equal(read(size), wanted, `pieces of ${size}`)
  t.equal(read(bytes.length), wanted.replace(/^/, ':\n\n'), 'a comment between events is harmless')
  const names = renameBytes('a/b', 'A/b:latest', answerId('chatcmpl'))
  for (const size of [1, 5, 64]) {
    t.equal(read(size, names), wanted.replaceAll('"model":"a/b"}', '"model":"A/b:latest"}'), 'only the field changes')
  }

  const whole = Buffer.from(chunk('x'))
  const same = renameBytes('a/b', 'a/b', answerId('chatcmpl'))
  t.equal(same(new EventBlocks().push(whole)!.bytes), whole, 'whole events are passed on without a copy')

  const failing = new EventBlocks()
  const failed = failing.push(Buffer.from(`${chunk('x')}data: {"error":{"code":500,"message":"Compute error."}}\n\n`))!
  t.equal(failed.bytes.toString(), chunk('x'))
  t.equal(failed.done, false)
  t.equal(failed.error, '{"error":{"code":500,"message":"Compute error."}}')
  t.equal(new EventBlocks().push(Buffer.from('data: [DO')), undefined)

  const body = Buffer.from('{"model":"a/b","text":"\\"model\\":\\"a/b\\" ä","id":"chatcmpl-x"}')
  t.equal(names(body).toString(), '{"model":"A/b:latest","text":"\\"model\\":\\"a/b\\" ä","id":"chatcmpl-x"}')
  const ids = (['chatcmpl', 'cmpl'] as const).map(answerId)
  t.not(ids[0], ids[1])
  const own = `data: {"text":"\\"id\\":\\"chatcmpl-","id":"chatcmpl-${'x'.repeat(32)}","a":1}\n\n`.repeat(2)
  const short = 'data: {"id":"chatcmpl-7","a":"01234567890123456789012345678901"}\n\n'
  t.equal(renameBytes('a', 'a', ids[0]!)(Buffer.from(short)).toString(), short, 'an id of another length is unchanged')
  for (const id of ids) {
    const text = renameBytes('a', 'a', id)(Buffer.from(own)).toString()
    t.equal(text, own.replaceAll(`chatcmpl-${'x'.repeat(32)}`, id))
  }
})

t.test('the OpenAI API takes the input of a freeform call out of its arguments, however they are split', async t => {
  const texts = ['', 'a', '"', '\\', '\n', '\u0000', 'ä', '🦙', '}', '{"input":"', '\\u0041', '\u2028']
  for (let seed = 1; seed <= trialCount(500); seed++) {
    const random = randomNumbers(seed)
    const input = Array.from({ length: Math.floor(random() * 8) }, () => pick(random, texts)).join('')
    const plain = JSON.stringify(freeformArguments(input))
    const escaped = plain.replace(/[^\0-\x7f]/g, char => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
    const json = pick(random, [plain, escaped, plain.replace('{', '{\n  ').replace(':', ' : '), `${plain}\n`])
    const reader = new FreeformInput()
    let read = ''
    for (let at = 0; at < json.length; ) {
      const length = 1 + Math.floor(random() * 5)
      const delta = reader.add(json.slice(at, at + length))
      if (/[\ud800-\udbff]$/.test(delta)) t.fail(`half a character with seed ${seed}`)
      read += delta
      at += length
    }
    read += reader.end()
    if (read !== input) t.equal(read, input, `seed ${seed}: ${json}`)
    if (freeformInput(json) !== input) t.equal(freeformInput(json), input, `seed ${seed}, in one piece`)
  }
  t.pass('no difference')
})

t.test('the OpenAI API reads what models without a grammar write', async t => {
  const table: [string, string][] = CASES.ungrammatical
  for (const [json, input] of table) t.equal(freeformInput(json), input, json)
})
