import t from 'tap'
import { readModelRequest } from '../../../../core/answers/model-request.ts'
import type { CoreConfig } from '../../../../core/config/core-schema.ts'
import type { Capability, Catalog, Model } from '../../../../core/contracts/models.ts'
import type { ErrorCode } from '../../../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../../core/models/load-options.ts'
import { allowedBy } from '../../../../core/system/schema-check.ts'
import {
  chatGeneration,
  completionGeneration,
  engineMessages,
  type Fields,
  type Generation
} from '../../../../plugins/apis/openai/generation.ts'
import { checkAgainst, schemaCompiler } from '../../../../plugins/apis/openai/request-validation.ts'
import { embeddingInputs } from '../../../../plugins/apis/openai/routes.ts'
import {
  ChatRequest,
  CompletionRequest,
  EmbeddingRequest,
  ModelListQuery,
  RerankRequest
} from '../../../../plugins/apis/openai/schemas.ts'
import { readCases } from '../../../support/cases.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { randomMessages } from './random-items.ts'
import { refusal, variantOf } from './support.ts'

const CASES = readCases('openai-requests')

const messages = [{ role: 'user', content: 'hi' }]
const base = { model: 'a/b', messages }
const defaults = { temperature: 0.7, top_p: 0.9, top_k: 40, max_tokens: 2048, seed: -1 }
const able = (...capabilities: Capability[]) => variantOf('a', 'b', { capabilities })

/** Parses the fields that requests of all APIs share. */
function modelRequest(body: Fields, variant: Model = able('completion', 'tools')) {
  const catalog = { get: () => variant } as unknown as Catalog
  const config = { defaults: { ...DEFAULT_LOAD_OPTIONS, ...defaults }, models: {} } as unknown as CoreConfig
  return readModelRequest({ catalog, config }, body, {})
}

/** Builds the engine's request for a chat. */
function chat(body: Fields, variant: Model = able('completion', 'tools')): Generation {
  checkAgainst(ChatRequest, body)
  return chatGeneration(body, modelRequest(body, variant))
}

/** Builds the engine's request for a completion. */
function complete(body: Fields, variant: Model = able('completion')): Generation {
  const whole = { model: 'a/b', prompt: 'x', ...body }
  checkAgainst(CompletionRequest, whole)
  return completionGeneration(whole, modelRequest(whole, variant))
}

t.test('the OpenAI API converts chats for the engine', async t => {
  const sent = (body: Fields) => chat({ ...base, ...body }).body
  // The engine always streams. A complete answer is assembled from its stream.
  const plain = { ...defaults, ...base, stream: true, stream_options: { include_usage: true } }
  const table: [string, Fields, Fields][] = CASES.chats
  for (const [what, given, wanted] of table) t.strictSame(sent(given), wanted, what)
  t.strictSame(chat({ name: 'a/b', messages }).body, { ...plain, model: 'a/b' }, 'name is an alias of model')
  const made = { ...able('completion'), defaults: { system: 'Be brief.' } }
  t.match(chat(base, made).body.messages, [{ role: 'system', content: 'Be brief.' }, { role: 'user' }])

  const stream = chat({ ...base, stream: true })
  t.strictSame(stream.body, { ...defaults, ...base, stream: true })
  t.ok(stream.passesBytes)
  t.ok(chat({ ...base, stream: true, stream_options: { include_usage: true } }).passesBytes)
  t.notOk(chat({ ...base, stream: true, n: 2 }).passesBytes)
  t.notOk(chat({ ...base, stream: true, logprobs: true }).passesBytes)
})

t.test('the OpenAI API offers freeform tools as functions and names the tools that are left out', async t => {
  const named = (name: string) => ({ type: 'function', function: { name } })
  const custom = {
    type: 'custom',
    custom: { name: 'patch', format: { type: 'grammar', grammar: { syntax: 'lark', definition: 'start: "x"' } } }
  }
  const tools = [named('look'), custom, { type: 'web_search' }]
  const asked = (fields: Fields) => {
    const { body, ignoredTools, passesBytes } = chat({ ...base, tools, stream: true, ...fields })
    const names = ((body.tools ?? []) as { function: { name: string } }[]).map(tool => tool.function.name)
    return { names, choice: body.tool_choice, ignoredTools, passesBytes }
  }
  const given = { ignoredTools: ['web_search'], passesBytes: false }
  const both = ['look', 'patch']
  t.strictSame(asked({}), { names: both, choice: undefined, ...given })
  const allowed = (mode: string, ...tools: object[]) => ({
    tool_choice: { type: 'allowed_tools', allowed_tools: { mode, tools } }
  })
  for (const [fields, names, choice] of [
    [{ tool_choice: { type: 'custom', custom: { name: 'patch' } } }, ['patch'], 'required'],
    [{ tool_choice: { type: 'web_search' } }, both, undefined],
    [{ tool_choice: 'required' }, both, 'required'],
    [allowed('required', custom, { type: 'web_search' }), ['patch'], 'required'],
    [allowed('auto', { type: 'web_search' }), [], undefined]
  ] as const) {
    t.strictSame(asked(fields), { names, choice, ...given }, JSON.stringify(fields))
  }
  t.strictSame(asked({ tools: [named('patch'), custom] }).names, ['patch', 'patch_'])
  t.strictSame(asked({ tools: undefined, web_search_options: {} }), {
    names: [],
    choice: undefined,
    ignoredTools: ['web_search'],
    passesBytes: true
  })
  t.match(chat({ ...base, tools: [custom] }).body.tools, [
    { function: { description: /lark.*\nstart: "x"/, parameters: { required: ['input'] } } }
  ])
})

t.test("the OpenAI API converts every history that the SDK's types allow", async t => {
  for (let seed = 1; seed <= trialCount(2000); seed++) {
    const messages = randomMessages(t, seed)
    try {
      chat({ ...base, messages: [...messages, { role: 'user', content: 'Hi' }] })
    } catch (error) {
      t.fail(`seed ${seed}: ${(error as Error).message} in ${JSON.stringify(messages)}`)
    }
  }
  t.pass('no history was refused')
})

t.test('the OpenAI API parses the fields that all APIs share', async t => {
  const request = modelRequest({
    model: 'A/B:Q8_0',
    messages,
    stream: true,
    keep_alive: '1m',
    num_ctx: 9,
    context_overflow: 'drop_oldest',
    options: { num_ctx: 8, num_parallel: 2 }
  })
  t.match(request, CASES.shared)
  t.equal(modelRequest({ model: 'a/b' }).overflow, 'error')
  t.equal(modelRequest({ model: 'a/b', keep_alive: -1 }).lease.keepAlive, -1000)
  t.equal(modelRequest({ model: 'a/b', keep_alive: null }).lease.keepAlive, undefined)
})

t.test('the OpenAI API converts messages for the engine', async t => {
  const table: [string, any, any][] = CASES.messages
  for (const [what, given, wanted] of table) t.strictSame(engineMessages([given]), [wanted ?? given], what)

  const [thought] = engineMessages([{ role: 'assistant', content: 'a', reasoning: 'hm' }])
  t.strictSame(thought, { role: 'assistant', content: 'a', reasoning_content: 'hm' })

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

t.test('the OpenAI API converts completions for the engine', async t => {
  const sent = (body: Fields, variant = able('completion')) => {
    const { body: given, head, passesBytes } = complete(body, variant)
    const { temperature, top_p, top_k, seed, max_tokens, stream, stream_options, model, ...fields } = given
    return { fields, head, passesBytes, max_tokens }
  }
  t.match(sent({}), { fields: { prompt: 'x' } })
  t.strictSame(sent({ prompt: [1, 2] }).fields, { prompt: [1, 2] })
  t.strictSame(sent({ prompt: null }).fields, { prompt: '' })
  t.strictSame(sent({ prompt: ['x'] }).fields, { prompt: 'x' }, 'a list with one prompt becomes the prompt')
  t.match(sent({ prompt: ['x', [1]], n: 3 }), { fields: { prompt: ['x', [1]], n: 3 }, head: { choices: 3 } })
  t.match(sent({ logprobs: 0 }), { fields: { logprobs: true, top_logprobs: 0 }, head: { logprobs: 0 } })
  t.match(sent({ logprobs: 3, post_sampling_probs: true }), {
    fields: { logprobs: true, top_logprobs: 3 },
    head: { logprobs: 3 }
  })
  t.match(sent({ logprobs: true }), { fields: { top_logprobs: 1 }, head: { logprobs: 1 } })
  t.strictSame(sent({ logprobs: false }).fields, { prompt: 'x' })
  t.match(sent({ n: 2, best_of: 4 }), { fields: { n: 4, top_logprobs: 0 }, head: { choices: 4, bestOf: 2 } })
  t.match(sent({ best_of: 1 }), { fields: { prompt: 'x' }, head: { bestOf: undefined } })
  t.match(sent({ echo: true, prompt: ['x', 'y'] }), { head: { echo: ['x', 'y'] }, passesBytes: false })
  t.match(sent({ max_tokens: 0 }), { head: { nothing: true }, passesBytes: false })
  t.match(sent({ suffix: 'z', max_tokens: 4 }, able('completion', 'insert')), {
    fields: { prompt: 'x', suffix: 'z' },
    max_tokens: 4,
    passesBytes: false
  })
  t.notOk('suffix' in sent({ suffix: '' }).fields)
  t.ok(complete({ stream: true }).passesBytes)
  t.notOk(
    complete({ stream: true, stream_options: { include_usage: true } }).passesBytes,
    'the usage chunk must be added'
  )
})

const image = (url: unknown) => ({ messages: [{ content: [{ type: 'image_url', image_url: { url } }] }] })

t.test('the OpenAI API refuses invalid chats and names the field', async t => {
  const missing = [
    [{ model: undefined }, 'model', 'invalid_model_name'],
    [{ messages: undefined }, 'messages', undefined, 'is missing. It must be a list of objects that is not empty.$'],
    [{ messages: undefined, options: { messages: [{ content: 'secret' }] } }, 'messages']
  ]
  const validate = schemaCompiler(() => false)({ schema: ChatRequest, httpPart: 'body', method: 'POST', url: '/' })
  for (const [given, param, code, text] of [...CASES.refusedChats, ...missing]) {
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

t.test('the OpenAI API refuses other invalid requests and names the field', async t => {
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
  for (const [given, param] of CASES.refusedRankings) {
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
