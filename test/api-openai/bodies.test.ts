import t from 'tap'
import { CorralError, type ErrorCode } from '../../core/errors.ts'
import type { EffectiveSettings } from '../../core/model-settings.ts'
import type { Capability } from '../../core/services.ts'
import { allowedBy, checkAgainst, schemaCompiler } from '../../plugins/api-openai/check-body.ts'
import { embeddingQuestion } from '../../plugins/api-openai/embeddings.ts'
import { type Fields, readCall } from '../../plugins/api-openai/engine-call.ts'
import { engineMessages } from '../../plugins/api-openai/engine-messages.ts'
import { chatGeneration, completionGeneration, type Generation } from '../../plugins/api-openai/generation.ts'
import { inParts, joinParts } from '../../plugins/api-openai/in-parts.ts'
import {
  ChatRequest,
  CompletionRequest,
  EmbeddingRequest,
  ModelListQuery,
  RerankRequest
} from '../../plugins/api-openai/request-schemas.ts'
import { rerankQuestion } from '../../plugins/api-openai/rerank.ts'
import { variantOf } from './support.ts'

const messages = [{ role: 'user', content: 'hi' }]
const base = { model: 'a/b', messages }
const defaults = { temperature: 0.7, top_p: 0.9, top_k: 40, max_tokens: 2048, seed: -1 }
const settings = { sampling: defaults, engine: {} } as unknown as EffectiveSettings
const able = (...capabilities: Capability[]) => variantOf('a', 'b', { capabilities })

function chat(body: Fields, variant = able('completion', 'tools')): Generation {
  checkAgainst(ChatRequest, body)
  return chatGeneration(readCall(body, ChatRequest), variant, settings)
}

function complete(body: Fields, variant = able('completion')): Generation {
  const whole = { model: 'a/b', prompt: 'x', ...body }
  checkAgainst(CompletionRequest, whole)
  return completionGeneration(readCall(whole, CompletionRequest), variant, settings)
}

const tool = (name: string) => ({ type: 'function', function: { name, parameters: { type: 'object' } } })

t.test('what chat sends to the engine', async t => {
  const sent = (body: Fields) => chat({ ...base, ...body }).body
  // The engine always streams; a whole answer is put together of its stream.
  const plain = { ...defaults, ...base, stream: true, stream_options: { include_usage: true } }
  const table: [string, Fields, Fields][] = [
    ['defaults where nobody gives any', {}, plain],
    [
      'the top level over options',
      { temperature: 0, options: { temperature: 1, top_k: 3 } },
      { ...plain, temperature: 0, top_k: 3 }
    ],
    [
      'null is not given',
      { temperature: null, seed: null, stop: null, tools: null, tool_choice: null, options: { temperature: 1 } },
      { ...plain, temperature: 1 }
    ],
    ['aliases', { max_completion_tokens: 5 }, { ...plain, max_tokens: 5 }],
    ['the canonical name over an alias', { max_completion_tokens: 5, max_tokens: 6 }, { ...plain, max_tokens: 6 }],
    [
      'aliases of the top level over options',
      { max_completion_tokens: 5, options: { num_predict: 7 } },
      { ...plain, max_tokens: 5 }
    ],
    ['aliases in options', { options: { num_predict: -2, n_predict: null } }, { ...plain, max_tokens: -1 }],
    [
      'load options and own fields are left out',
      {
        num_ctx: 256,
        num_gpu: 3,
        keep_alive: '5m',
        name: 'x/y',
        n_cmpl: 7,
        options: { num_parallel: 2, cache_type_k: 'Q8_0', n_cmpl: 3 }
      },
      plain
    ],
    [
      'what the engine knows passes through',
      { min_p: 0.1, reasoning_effort: 'low', options: { repeat_penalty: 1.2, min_p: 0.9 } },
      { ...plain, min_p: 0.1, reasoning_effort: 'low', repeat_penalty: 1.2 }
    ],
    ['options cannot make a stream or another model', { options: { stream: true, model: 'x/y' } }, plain],
    ['an empty stop text would end all at once', { stop: ['', 'x'] }, { ...plain, stop: ['x'] }],
    ['probabilities', { logprobs: true }, { ...plain, n_probs: 1, post_sampling_probs: false }],
    [
      'more of them, not as the engine can word them otherwise',
      { logprobs: true, top_logprobs: 4, post_sampling_probs: true },
      { ...plain, n_probs: 4, post_sampling_probs: false }
    ],
    ['none of them', { logprobs: false, top_logprobs: 0 }, plain],
    [
      'tools',
      { tools: [{ ...tool('f'), function: { name: 'f', description: null } }], tool_choice: 'required' },
      { ...plain, tools: [{ type: 'function', function: { name: 'f' } }], tool_choice: 'required' }
    ],
    ['tools that may not be called', { tools: [tool('f')], tool_choice: 'none' }, plain],
    [
      'the tool that must be called',
      { tools: [tool('f'), tool('g')], tool_choice: { type: 'function', function: { name: 'g' } } },
      { ...plain, tools: [tool('g')], tool_choice: 'required' }
    ],
    [
      'tools that may be called',
      {
        tools: [tool('f'), tool('g'), tool('h')],
        tool_choice: {
          type: 'allowed_tools',
          allowed_tools: { mode: 'auto', tools: [tool('h'), { type: 'function', function: { name: 'f' } }] }
        }
      },
      { ...plain, tools: [tool('f'), tool('h')], tool_choice: 'auto' }
    ],
    [
      'functions of older clients',
      { functions: [{ name: 'f' }], function_call: { name: 'f' } },
      {
        ...plain,
        tools: [{ type: 'function', function: { name: 'f' } }],
        tool_choice: 'required',
        parallel_tool_calls: false
      }
    ]
  ]
  for (const [what, given, wanted] of table) t.strictSame(sent(given), wanted, what)
  t.strictSame(
    chat({ name: 'a/b', messages }).body,
    { ...plain, model: 'a/b' },
    'name is accepted in the place of model'
  )
  const made = { ...able('completion'), defaults: { system: 'Be brief.' } }
  t.match(chat(base, made).body.messages, [{ role: 'system', content: 'Be brief.' }, { role: 'user' }])

  const stream = chat({ ...base, stream: true })
  t.strictSame(stream.body, { ...defaults, ...base, stream: true })
  t.ok(stream.passedOn)
  t.ok(chat({ ...base, stream: true, stream_options: { include_usage: true } }).passedOn)
  t.ok(chat({ ...base, stream: true, n: 2 }).passedOn)
  t.notOk(chat({ ...base, stream: true, n: 2, stream_options: { include_usage: true } }).passedOn)
  t.notOk(chat({ ...base, stream: true, logprobs: true }).passedOn)
})

t.test('a request is understood', async t => {
  const call = readCall({
    model: 'A/B:Q8_0',
    messages,
    stream: true,
    keep_alive: '1m',
    num_ctx: 9,
    context_overflow: 'drop_oldest',
    options: { num_ctx: 8, num_parallel: 2 }
  })
  t.match(call, {
    model: { owner: 'A', name: 'B', variant: 'Q8_0' },
    asked: 'A/B:Q8_0',
    load: { num_ctx: 9, num_parallel: 2 },
    overflow: 'drop_oldest',
    keepAlive: 60_000
  })
  t.equal(readCall({ model: 'a/b', keep_alive: -1 }).keepAlive, -1000)
  t.equal(readCall({ model: 'a/b', keep_alive: null }).keepAlive, undefined)
})

t.test('messages', async t => {
  const call = { id: 'c1', type: 'function', function: { name: 'f', arguments: '{}' } }
  const table: [string, any, any][] = [
    ['the user is meant', { content: 'x' }, { role: 'user', content: 'x' }],
    [
      'null is left out',
      { role: 'user', content: 'x', name: null, tool_calls: null, audio: null },
      { role: 'user', content: 'x' }
    ],
    [
      'calls',
      { role: 'assistant', content: null, tool_calls: [call] },
      { role: 'assistant', content: null, tool_calls: [call] }
    ],
    [
      'calls with an object, and without an id',
      { role: 'assistant', tool_calls: [{ function: { name: 'f', arguments: { a: 1 } } }] },
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }]
      }
    ],
    ['a refusal is what was said', { role: 'assistant', refusal: 'No.' }, { role: 'assistant', content: 'No.' }],
    [
      'parts',
      { role: 'tool', tool_call_id: 'c1', content: [{ type: 'text', text: 'y' }] },
      { role: 'tool', tool_call_id: 'c1', content: [{ type: 'text', text: 'y' }] }
    ],
    [
      'a refusal among parts',
      { role: 'assistant', content: [{ type: 'refusal', refusal: 'No.' }] },
      { role: 'assistant', content: [{ type: 'text', text: 'No.' }] }
    ],
    [
      'an address without an object around it',
      { content: [{ type: 'image_url', image_url: 'data:x' }] },
      { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:x' } }] }
    ],
    ['thoughts', { role: 'assistant', content: 'x', reasoning_content: 'h' }, undefined],
    ['no text but null', { role: 'assistant', content: null }, undefined]
  ]
  for (const [what, given, wanted] of table) t.strictSame(engineMessages([given]), [wanted ?? given], what)

  const older = engineMessages([
    { role: 'user', content: 'x' },
    { role: 'assistant', content: null, function_call: { name: 'f', arguments: '{}' } },
    { role: 'function', name: 'f', content: '5' },
    { role: 'assistant', content: null, function_call: { name: 'g', arguments: '{}' } },
    { role: 'function', name: 'g', content: '6' }
  ])
  t.match(older.slice(1), [
    { tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f' } }] },
    { role: 'tool', tool_call_id: 'call_1', name: 'f', content: '5' },
    { tool_calls: [{ id: 'call_2', function: { name: 'g' } }] },
    { role: 'tool', tool_call_id: 'call_2' }
  ])
})

t.test('what completions send to the engine', async t => {
  const sent = (body: Fields, variant = able('completion')) => {
    const { body: given, path, wording, echo, bestOf, passedOn, answers } = complete(body, variant)
    const { temperature, top_p, top_k, seed, max_tokens, stream, stream_options, model, ...fields } = given
    return { fields, path, wording, echo, bestOf, passedOn, answers, max_tokens }
  }
  t.match(sent({}), { path: '/v1/completions', fields: { prompt: 'x' }, answers: 1 })
  t.strictSame(sent({ prompt: [1, 2] }).fields, { prompt: [1, 2] })
  t.strictSame(sent({ prompt: null }).fields, { prompt: '' })
  t.strictSame(sent({ prompt: ['x'] }).fields, { prompt: 'x' }, 'a list of one is that one')
  t.match(sent({ prompt: ['x', [1]], n: 3 }), {
    fields: { prompt: ['x', [1]], n: 3 },
    answers: 6,
    wording: { choices: 3 }
  })
  t.match(sent({ logprobs: 0 }), { fields: { n_probs: 1 }, wording: { logprobs: 0 } })
  t.match(sent({ logprobs: 3, post_sampling_probs: true }), {
    fields: { n_probs: 3, post_sampling_probs: false },
    wording: { logprobs: 3 }
  })
  t.match(sent({ logprobs: true }), { fields: { n_probs: 1 }, wording: { logprobs: 1 } })
  t.strictSame(sent({ logprobs: false }).fields, { prompt: 'x' })
  t.match(sent({ n: 2, best_of: 4 }), { fields: { n: 4, n_probs: 1 }, bestOf: 2, wording: { choices: 4 } })
  t.match(sent({ best_of: 1 }), { fields: { prompt: 'x' }, bestOf: undefined })
  t.match(sent({ echo: true, prompt: ['x', 'y'] }), { echo: ['x', 'y'], passedOn: false })
  t.match(sent({ max_tokens: 0 }), { wording: { nothing: true }, passedOn: false })
  t.match(sent({ suffix: 'z', max_tokens: 4 }, able('completion', 'insert')), {
    path: '/infill',
    fields: { input_prefix: 'x', input_suffix: 'z' },
    max_tokens: 4,
    passedOn: false
  })
  t.equal(sent({ suffix: '' }).path, '/v1/completions')
  t.ok(complete({ stream: true }).passedOn)
  t.notOk(complete({ stream: true, stream_options: { include_usage: true } }).passedOn, 'the counts come last, alone')
})

/** Why a request is refused; it never quotes it. */
function refusal(read: () => unknown): CorralError | undefined {
  try {
    read()
    return undefined
  } catch (error) {
    if (!(error instanceof CorralError) || error.message.includes('secret')) throw error
    return error
  }
}

const image = (url: unknown) => ({ messages: [{ content: [{ type: 'image_url', image_url: { url } }] }] })

t.test('chats that are refused, with the field at fault', async t => {
  const table: [Fields, string, (ErrorCode | undefined)?, RegExp?][] = [
    [{ model: undefined }, 'model', 'invalid_model_name'],
    [{ model: 5 }, 'model', 'invalid_model_name'],
    [{ model: '../etc' }, 'model', 'invalid_model_name'],
    [{ messages: undefined }, 'messages', undefined, /is missing\. It must be a list of objects that is not empty\.$/],
    [{ messages: null }, 'messages'],
    [{ messages: [] }, 'messages'],
    [{ messages: 'secret' }, 'messages'],
    [{ messages: ['secret'] }, 'messages[0]', undefined, /must be an object\.$/],
    [{ messages: undefined, options: { messages: [{ content: 'secret' }] } }, 'messages'],
    [{ messages: [{ role: 7, content: 'x' }] }, 'messages[0].role', undefined, /"system", "developer", "user", /],
    [{ messages: [{ role: 'secret', content: 'x' }] }, 'messages[0].role'],
    [{ messages: [{ content: 'x' }, { role: 'user' }] }, 'messages[1].content'],
    [{ messages: [{ role: 'user', content: null }] }, 'messages[0].content'],
    [{ messages: [{ role: 'assistant' }] }, 'messages[0].content'],
    [{ messages: [{ content: 5 }] }, 'messages[0].content', undefined, /must be text or a list of objects\.$/],
    [{ messages: [{ content: ['secret'] }] }, 'messages[0].content[0]'],
    [{ messages: [{ content: [{ text: 'secret' }] }] }, 'messages[0].content[0].type'],
    [{ messages: [{ content: [{ type: 'text' }] }] }, 'messages[0].content[0].text'],
    [{ messages: [{ content: [{ type: 'text', text: 5 }] }] }, 'messages[0].content[0].text', undefined, /be text\.$/],
    [{ messages: [{ content: [{ type: 'secret' }] }] }, 'messages[0].content[0].type'],
    [{ messages: [{ role: 'assistant', content: 'x', tool_calls: 'secret' }] }, 'messages[0].tool_calls'],
    [{ messages: [{ role: 'assistant', tool_calls: [{ id: 'x' }] }] }, 'messages[0].tool_calls[0].function'],
    [image(5), 'messages[0].content[0].image_url.url'],
    [image('data:image/png;base64,AA=='), 'messages[0].content[0].image_url', 'unsupported_capability'],
    [
      { messages: [{ content: [{ type: 'input_audio', input_audio: { data: 'AA==', format: 'wav' } }] }] },
      'messages[0].content[0].input_audio',
      'unsupported_capability'
    ],
    [{ stream: 'yes' }, 'stream', undefined, /must be true or false\.$/],
    [{ stream_options: true }, 'stream_options'],
    [{ n: 0 }, 'n', undefined, /a whole number from 1 to 256\.$/],
    [{ n: 1.5 }, 'n'],
    [{ stop: [1] }, 'stop[0]'],
    [{ stop: 7 }, 'stop', undefined, /must be text or a list of texts\.$/],
    [{ options: { stop: [1] } }, 'options.stop[0]', 'invalid_option'],
    [{ options: { tools: 'secret' } }, 'tools'],
    [{ tools: [1] }, 'tools[0]'],
    [{ tools: {} }, 'tools'],
    [{ tools: [{ secret: 1 }] }, 'tools[0].type'],
    [{ tools: [{ type: 'secret', function: { name: 'x' } }] }, 'tools[0].type', undefined, /must be "function"\.$/],
    [{ tools: [{ type: 'function', function: {} }] }, 'tools[0].function.name'],
    [{ tool_choice: 'secret' }, 'tool_choice'],
    [{ tool_choice: 'required' }, 'tool_choice'],
    [{ tool_choice: { type: 'function', function: { name: 'secret' } } }, 'tool_choice.function.name'],
    [{ tool_choice: { type: 'custom' } }, 'tool_choice.type'],
    [{ response_format: 'json' }, 'response_format'],
    [{ response_format: { type: 'secret' } }, 'response_format.type'],
    [{ response_format: { type: 'json_schema' } }, 'response_format.json_schema'],
    [
      { response_format: { type: 'json_schema', json_schema: { schema: 'secret' } } },
      'response_format.json_schema.schema'
    ],
    [{ logit_bias: 5 }, 'logit_bias'],
    [{ logit_bias: { 5: 'secret' } }, 'logit_bias.5'],
    [{ top_logprobs: 3 }, 'top_logprobs'],
    [{ logprobs: true, top_logprobs: -1 }, 'top_logprobs'],
    [{ modalities: ['text', 'audio'] }, 'modalities', 'unsupported_capability'],
    [{ temperature: 'hot' }, 'temperature', 'invalid_option'],
    [{ temperature: -1 }, 'temperature', 'invalid_option'],
    [{ top_p: 2 }, 'top_p', 'invalid_option', /a number from 0 to 1\.$/],
    [{ max_completion_tokens: 1.5 }, 'max_completion_tokens', 'invalid_option'],
    [{ options: { num_ctx: 0 } }, 'options.num_ctx', 'invalid_option'],
    [{ options: { num_predict: 'x' } }, 'num_predict', 'invalid_option'],
    [{ options: [] }, 'options', 'invalid_option'],
    [{ keep_alive: 'soon' }, 'keep_alive', 'invalid_option']
  ]
  const validate = schemaCompiler({ schema: ChatRequest, httpPart: 'body', method: 'POST', url: '/' })
  for (const [given, param, code = 'invalid_request', text = /\.$/] of table) {
    const body: Fields = { ...base, ...given }
    for (const [name, value] of Object.entries(given)) if (value === undefined) delete body[name]
    const read = () => {
      const checked = validate(body) as { value?: Fields; error?: Error }
      if (checked.error) throw checked.error
      return chat(checked.value!)
    }
    t.match(refusal(read), { code, param, message: text }, JSON.stringify(given))
  }
  const png = `data:image/png;base64,${Buffer.from('\x89PNG\r\n\x1a\n', 'latin1').toString('base64')}`
  const seeing = able('completion', 'vision')
  t.ok(chat({ ...base, ...image(png) }, seeing))
  for (const url of [
    'http://127.0.0.1/x.png',
    'HTTPS://secret/x.png',
    'file:///etc/passwd',
    'x.png',
    'data:image/png,secret'
  ]) {
    const found = refusal(() => chat({ ...base, ...image(url) }, seeing))
    t.match(found, { code: 'invalid_request', param: 'messages[0].content[0].image_url' }, url)
  }
})

t.test('other bodies that are refused', async t => {
  const completions: [Fields, string, ErrorCode?][] = [
    [{ prompt: undefined }, 'prompt'],
    [{ prompt: {} }, 'prompt'],
    [{ prompt: [] }, 'prompt'],
    [{ prompt: [{}] }, 'prompt'],
    [{ prompt: [1, 'x'] }, 'prompt'],
    [{ best_of: 2, n: 3 }, 'best_of'],
    [{ best_of: 2, stream: true }, 'best_of'],
    [{ echo: true, logprobs: 1 }, 'logprobs', 'unsupported_capability'],
    [{ suffix: 'x' }, 'suffix', 'unsupported_capability']
  ]
  for (const [given, param, code = 'invalid_request'] of completions) {
    t.match(
      refusal(() => complete(given)),
      { code, param },
      JSON.stringify(given)
    )
  }
  const filling = able('completion', 'insert')
  t.match(
    refusal(() => complete({ suffix: 'x', prompt: ['a', 'b'] }, filling)),
    { param: 'prompt' }
  )
  t.match(
    refusal(() => complete({ suffix: 'x', prompt: [1] }, filling)),
    { param: 'prompt' }
  )

  const embed = (body: any, variant = able('embedding')) => {
    checkAgainst(EmbeddingRequest, body)
    return embeddingQuestion(body, variant)
  }
  for (const input of [undefined, 5, {}, [], [{}], [1.5], [['x']], null, [-1], [[]]]) {
    const body = input === undefined ? { model: 'a/b' } : { model: 'a/b', input }
    t.match(
      refusal(() => embed(body)),
      { code: 'invalid_request' },
      JSON.stringify(input)
    )
    t.match(refusal(() => embed(body))!.param, /^input/)
  }
  for (const input of ['x', ['x', 'y'], [1, 2], [[1], [2]]]) t.ok(embed({ input }))
  t.match(
    refusal(() => embed({ input: '' })),
    { param: 'input', message: /not empty/ }
  )
  t.match(
    refusal(() => embed({ input: ['a', ''] })),
    { param: 'input[1]' }
  )
  t.match(
    refusal(() => embed({ input: 'x', encoding_format: 'hex' })),
    { param: 'encoding_format' }
  )
  t.match(
    refusal(() => embed({ input: 'x', dimensions: 0 })),
    { param: 'dimensions' }
  )
  const sized = able('embedding')
  sized.metadata.embeddingLength = 8
  t.match(
    refusal(() => embed({ input: 'x', dimensions: 9 }, sized)),
    { param: 'dimensions', message: /8 at most/ }
  )
  t.match(embed({ input: 'x' }), { mode: 'embedding', body: { input: 'x', encoding_format: 'float' } })
  t.match(embed({ input: 'x', dimensions: 2, encoding_format: 'float' }), { body: { encoding_format: 'base64' } })

  const list = { asked: 'input', told: 'data' } as const
  const numbers = Array.from({ length: 70 }, (_, index) => index)
  for (const input of ['x', ['x', 'y'], numbers]) t.strictSame(inParts({ input }, list), [{ input }])
  const asked = inParts({ input: numbers.map(String), more: 1 }, list)
  t.strictSame(
    asked.map(({ input, more }) => [(input as string[]).length, more]),
    [
      [32, 1],
      [32, 1],
      [6, 1]
    ]
  )
  const replies = asked.map(({ input }) => ({
    object: 'list',
    data: (input as string[]).map((embedding, index) => ({ embedding, index })),
    usage: { prompt_tokens: 2, total_tokens: 2 }
  }))
  t.strictSame(
    JSON.parse(
      joinParts(
        replies.map(reply => Buffer.from(JSON.stringify(reply))),
        list
      ).toString()
    ),
    {
      object: 'list',
      data: numbers.map(index => ({ embedding: `${index}`, index })),
      usage: { prompt_tokens: 6, total_tokens: 6 }
    },
    'what is asked in parts is told as a whole'
  )

  const rank = (body: any) => {
    checkAgainst(RerankRequest, body)
    return rerankQuestion(body)
  }
  for (const [given, param] of [
    [{}, 'query'],
    [{ query: 5, documents: ['x'] }, 'query'],
    [{ query: 'x' }, 'documents'],
    [{ query: 'x', documents: [] }, 'documents'],
    [{ query: 'x', documents: [{ body: 'x' }] }, 'documents[0].text'],
    [{ query: 'x', documents: [5] }, 'documents[0]'],
    [{ query: 'x', documents: ['x'], top_n: 0 }, 'top_n']
  ] as const) {
    t.match(
      refusal(() => rank(given)),
      { code: 'invalid_request', param },
      JSON.stringify(given)
    )
  }
  t.strictSame(rank({ query: 'q', documents: ['x', { text: 'y' }] }).body, { query: 'q', documents: ['x', 'y'] })

  const query = schemaCompiler({ schema: ModelListQuery, httpPart: 'querystring', method: 'GET', url: '/' })
  t.strictSame(query({ limit: '7', other: '5' }), { value: { limit: 7, other: '5' } })
  for (const limit of ['0', 'x', '1001', '1.5', '']) {
    t.match(query({ limit }), { error: { code: 'invalid_request', param: 'limit' } }, limit)
  }
})

t.test('what is allowed, in words', async t => {
  t.equal(
    allowedBy(EmbeddingRequest.properties.input),
    'text, a list of texts that is not empty, a list of whole numbers that is not empty or a list of lists of whole numbers that is not empty'
  )
  t.equal(allowedBy(EmbeddingRequest.properties.encoding_format), '"float" or "base64"')
  t.equal(allowedBy(ChatRequest.properties.top_logprobs), 'a whole number from 0 to 100')
})
