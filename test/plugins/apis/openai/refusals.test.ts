import t from 'tap'
import type { ErrorCode } from '../../../../core/errors.ts'
import { allowedBy } from '../../../../core/system/schema-check.ts'
import { embeddingInputs } from '../../../../plugins/apis/openai/embeddings.ts'
import type { Fields } from '../../../../plugins/apis/openai/generation.ts'
import { checkAgainst, schemaCompiler } from '../../../../plugins/apis/openai/request-validation.ts'
import {
  ChatRequest,
  EmbeddingRequest,
  ModelListQuery,
  RerankRequest
} from '../../../../plugins/apis/openai/schemas.ts'
import { able, base, chat, complete, refusal } from './bodies.ts'

const image = (url: unknown) => ({ messages: [{ content: [{ type: 'image_url', image_url: { url } }] }] })

t.test('refuses invalid chats and names the field', async t => {
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
    [{ tools: [{ type: 'custom', custom: { name: 'x' } }] }, 'tools[0].type', undefined, /must be "function"\.$/],
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
  const validate = schemaCompiler(() => false)({ schema: ChatRequest, httpPart: 'body', method: 'POST', url: '/' })
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

t.test('refuses other invalid requests and names the field', async t => {
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
    return embeddingInputs(body, variant)
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
    { param: 'input', message: /non-empty/ }
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
    { param: 'dimensions', message: /at most 8/ }
  )
  t.strictSame(embed({ input: 'x' }), ['x'])
  t.strictSame(embed({ input: ['x', 'y'] }), ['x', 'y'])
  t.strictSame(embed({ input: [1, 2] }), [[1, 2]], 'a list of numbers is one text, given as tokens')
  t.strictSame(embed({ input: [[1], [2, 3]] }), [[1], [2, 3]])

  const rank = (body: any) => checkAgainst(RerankRequest, body)
  for (const [given, param] of [
    [{}, 'query'],
    [{ query: 5, documents: ['x'] }, 'query'],
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
  rank({ query: 'q', documents: ['x', { text: 'y' }] })

  const query = schemaCompiler(() => false)({
    schema: ModelListQuery,
    httpPart: 'querystring',
    method: 'GET',
    url: '/'
  })
  t.strictSame(query({ limit: '7', other: '5' }), { value: { limit: 7, other: '5' } })
  for (const limit of ['0', 'x', '1001', '1.5', '']) {
    t.match(query({ limit }), { error: { code: 'invalid_request', param: 'limit' } }, limit)
  }
})

t.test('error messages describe the allowed values', async t => {
  t.equal(
    allowedBy(EmbeddingRequest.properties.input),
    'text, a list of texts that is not empty, a list of whole numbers that is not empty or a list of lists of whole numbers that is not empty'
  )
  t.equal(allowedBy(EmbeddingRequest.properties.encoding_format), '"float" or "base64"')
  t.equal(allowedBy(ChatRequest.properties.top_logprobs), 'a whole number from 0 to 100')
})
