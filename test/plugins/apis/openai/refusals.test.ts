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
import { readCases } from '../../../support/cases.ts'
import { able, base, chat, complete, refusal } from './bodies.ts'

const CASES = readCases('openai-refusals')

const image = (url: unknown) => ({ messages: [{ content: [{ type: 'image_url', image_url: { url } }] }] })

t.test('refuses invalid chats and names the field', async t => {
  const missing = [
    [{ model: undefined }, 'model', 'invalid_model_name'],
    [{ messages: undefined }, 'messages', undefined, 'is missing. It must be a list of objects that is not empty.$'],
    [{ messages: undefined, options: { messages: [{ content: 'secret' }] } }, 'messages']
  ]
  const validate = schemaCompiler(() => false)({ schema: ChatRequest, httpPart: 'body', method: 'POST', url: '/' })
  for (const [given, param, code, text] of [...CASES.chats, ...missing]) {
    const body: Fields = { ...base, ...given }
    for (const [name, value] of Object.entries(given)) if (value === undefined) delete body[name]
    const read = () => {
      const checked = validate(body) as { value?: Fields; error?: Error }
      if (checked.error) throw checked.error
      return chat(checked.value!)
    }
    t.match(
      refusal(read),
      { code: code ?? 'invalid_request', param, message: new RegExp(text ?? '\\.$') },
      JSON.stringify(given)
    )
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
  const sized = able('embedding')
  sized.metadata.embeddingLength = 8
  const others: [() => unknown, object][] = [
    [() => complete({ suffix: 'x', prompt: ['a', 'b'] }, filling), { param: 'prompt' }],
    [() => complete({ suffix: 'x', prompt: [1] }, filling), { param: 'prompt' }],
    [() => embed({ input: '' }), { param: 'input', message: /non-empty/ }],
    [() => embed({ input: ['a', ''] }), { param: 'input[1]' }],
    [() => embed({ input: 'x', encoding_format: 'hex' }), { param: 'encoding_format' }],
    [() => embed({ input: 'x', dimensions: 0 }), { param: 'dimensions' }],
    [() => embed({ input: 'x', dimensions: 9 }, sized), { param: 'dimensions', message: /at most 8/ }]
  ]
  for (const [read, found] of others) t.match(refusal(read), found, String(read))
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
