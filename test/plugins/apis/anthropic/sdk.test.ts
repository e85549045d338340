import { copyFileSync, existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import Anthropic from '@anthropic-ai/sdk'
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema'
import { BETA_BROWSER_MEMBER_NAME_VALUES } from '@anthropic-ai/sdk/resources/beta/messages/messages'
import t from 'tap'
import { demoModelFile, randomProjector } from '../../../../scripts/random-models.ts'
import { activeRequests, DEMO, startCorral, until } from '../../../support/corral.ts'
import { failure } from '../../../support/failure.ts'
import { randomNumbers } from '../../../support/random.ts'
import { randomValue, sdkShapes } from '../../../support/sdk-types.ts'
import { thorough } from '../../../support/thorough.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { pngBytes } from '../openai/media/support.ts'

// Runs the official client against a real server with an engine of one slot. test/clients has the usual requests.
const QUESTION = { role: 'user' as const, content: 'What is the capital of France?' }
const RAIN = { role: 'user' as const, content: 'What is the weather in Paris?' }
const ANSWER = 'The capital of France is Paris.'
const WEATHER: Anthropic.Tool = {
  name: 'get_weather',
  description: 'Get the current weather in a city',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
}
const ask = { model: DEMO, max_tokens: 100, messages: [QUESTION] }

const DEFAULTS = 'defaults:\n  temperature: 0\n  num_parallel: 1\n'

const corral = await startCorral(t, { config: DEFAULTS })
const client = clientOf(corral.url)

function clientOf(baseURL: string, apiKey = 'any'): Anthropic {
  return new Anthropic({ baseURL, apiKey, maxRetries: 0 })
}

/** Returns a request whose answer continues until the context is full. */
function endless(more: object = {}) {
  const messages = [{ role: 'user' as const, content: 'Count to 30.' }]
  const options = { num_ctx: 32_000, ignore_eos: true }
  return { model: DEMO, max_tokens: 20_000, messages, options, ...more } as Anthropic.MessageCreateParamsNonStreaming
}

/** The tokens of all requests so far. */
async function countedTokens(): Promise<number> {
  const { body } = await corral.json('/api/usage?by=model', undefined, { local: true })
  const sums = body.usage.map((each: any) => each.tokens_in + each.tokens_out)
  return sums.reduce((sum: number, each: number) => sum + each, 0)
}

const total = (usage: Anthropic.Usage) => usage.input_tokens + usage.cache_read_input_tokens!

t.test('the Messages API answers as a whole and as a stream', async t => {
  const whole = await client.messages.create(ask)
  t.match(whole, {
    id: /^msg_[0-9a-f]{24}$/,
    type: 'message',
    role: 'assistant',
    model: DEMO,
    content: [{ type: 'text', text: ANSWER }],
    stop_reason: 'end_turn',
    stop_sequence: null,
    usage: { input_tokens: 19, cache_creation_input_tokens: 0, cache_read_input_tokens: 0, output_tokens: 9 }
  })
  t.match(whole._request_id, /^[0-9a-f-]{36}$/)
  const stream = client.messages.stream({ ...ask, model: 'Corral/tiny-chat:latest' })
  let begin: Anthropic.Message | undefined
  for await (const event of stream) if (event.type === 'message_start') begin = structuredClone(event.message)
  const final = await stream.finalMessage()
  t.match(final, { model: 'Corral/tiny-chat:latest', content: [{ text: ANSWER }], stop_reason: 'end_turn' })
  t.ok(final.usage.cache_read_input_tokens! > 0, 'the prompt is cached')
  t.equal(total(final.usage), 19)
  t.equal(final.usage.output_tokens, 9)
  t.match(begin!.usage, { ...final.usage, output_tokens: 0 }, 'message_start already has the prompt tokens')
  const mounted = await clientOf(`${corral.url}/anthropic`).messages.create(ask)
  t.match(mounted.content, [{ text: ANSWER }])
  const { content } = await client.beta.messages.create({ ...ask, betas: ['output-128k-2025-02-19'] })
  t.match(content, [{ text: ANSWER }])
})

t.test('the Messages API merges messages of the assistant and continues a prefilled answer', async t => {
  const named = await client.messages.create({
    ...ask,
    messages: [
      { role: 'user', content: 'My name is Mina.' },
      { role: 'assistant', content: 'Nice to meet you,' },
      { role: 'assistant', content: [{ type: 'text', text: ' Mina!' }] },
      { role: 'user', content: 'What is my name?' }
    ]
  })
  t.match(named.content, [{ text: /Mina/ }])
  const begun = { ...ask, messages: [QUESTION, { role: 'assistant' as const, content: 'The capital of' }] }
  t.match((await client.messages.create(begun)).content, [{ text: ' France is Paris.' }])
  t.equal(await client.messages.stream(begun).finalText(), ' France is Paris.')
})

t.test('the Messages API calls one tool if parallel calls are disabled', async t => {
  const one = await client.messages.create({
    ...ask,
    tools: [WEATHER],
    messages: [{ role: 'user', content: 'What is the weather in Paris and Rome?' }],
    tool_choice: { type: 'auto', disable_parallel_tool_use: true }
  })
  t.match(one.content, [{ id: /^toolu_./, name: 'get_weather', input: { city: 'Paris' } }])
  t.equal(one.content.length, 1)
})

t.test('the Messages API calls client tools under their own names, and names hosted tools that it omits', async t => {
  const off = { enabled: false }
  const browser = Object.fromEntries(BETA_BROWSER_MEMBER_NAME_VALUES.map(name => [name, off]))
  const table: [tool: object, call: object][] = [
    [{ type: 'bash_20250124', name: 'bash' }, { name: 'bash' }],
    [
      { type: 'memory_20250818', name: 'memory' },
      { name: 'memory', input: { command: String } }
    ],
    [
      { type: 'browser_toolset_20260801', configs: { ...browser, list_tabs: {} } },
      { name: 'list_tabs', toolset_name: 'browser', input: {} }
    ]
  ]
  for (const [tool, call] of table) {
    const tools = [tool, { type: 'web_search_20250305', name: 'web_search' }] as Anthropic.Beta.BetaToolUnion[]
    const choice = { type: 'any' as const, disable_parallel_tool_use: true }
    const asked = { ...ask, messages: [RAIN], tools, tool_choice: choice }
    const { data, response } = await client.beta.messages.create(asked).withResponse()
    t.match(data.content, [{ type: 'tool_use', id: /^toolu_./, ...call }])
    t.equal(response.headers.get('x-corral-ignored-tools'), 'web_search')
    t.match((await client.beta.messages.stream(asked).finalMessage()).content, [{ type: 'tool_use', ...call }])
    const results = data.content.map(block => ({ type: 'tool_result', tool_use_id: (block as { id: string }).id }))
    const messages = [RAIN, { role: 'assistant', content: data.content }, { role: 'user', content: results }]
    t.match(await client.beta.messages.create({ ...ask, tools, messages } as typeof ask), { role: 'assistant' })
  }
})

t.test('a conversation continues after a call that max_tokens truncated', thorough, async t => {
  const asked = { ...ask, messages: [RAIN], tools: [WEATHER], max_tokens: 12 }
  const whole = await client.messages.create(asked)
  const streamed = await client.messages.stream(asked).finalMessage()
  t.match(streamed.content, [{ type: 'tool_use', name: 'get_weather' }])
  for (const { stop_reason, content } of [whole, streamed]) {
    t.equal(stop_reason, 'max_tokens')
    const results = content.flatMap(block =>
      block.type === 'tool_use' ? [{ type: 'tool_result' as const, tool_use_id: block.id, content: 'Incomplete.' }] : []
    )
    const more: Anthropic.MessageParam[] = [
      { role: 'assistant', content },
      { role: 'user', content: [...results, { type: 'text', text: 'Try again.' }] }
    ]
    const next = { ...ask, tools: [WEATHER], messages: [RAIN, ...more] }
    t.match(await client.messages.create(next), { role: 'assistant' })
  }
})

/** A conversation in which the tool was called several times. */
function rainy(calls: number): Anthropic.Beta.BetaMessageParam[] {
  const rounds = Array.from({ length: calls }, (_, index): Anthropic.Beta.BetaMessageParam[] => {
    const id = `toolu_${index}`
    const content = `It is sunny. ${'word '.repeat(50)}`
    return [
      { role: 'assistant', content: [{ type: 'tool_use', id, name: 'get_weather', input: { city: 'Paris' } }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content }] }
    ]
  })
  return [RAIN, ...rounds.flat()]
}

const atTokens = (value: number) => ({ trigger: { type: 'input_tokens' as const, value } })

t.test('the Messages API clears old tool results and reports what it cleared', async t => {
  const type = 'clear_tool_uses_20250919'
  const edit = { type, ...atTokens(300), keep: { type: 'tool_uses', value: 2 } } as const
  const plain = { model: DEMO, tools: [WEATHER], messages: rainy(8) }
  const asked = { ...plain, context_management: { edits: [{ type: 'clear_thinking_20251015' as const }, edit] } }
  const { input_tokens, context_management } = await client.beta.messages.countTokens(asked)
  const { original_input_tokens: original } = context_management!
  t.equal((await client.beta.messages.countTokens(plain)).input_tokens, original)
  const applied_edits = [{ type, cleared_tool_uses: 6, cleared_input_tokens: original - input_tokens }]
  t.ok(original - input_tokens > 200)
  const answers = [
    await client.beta.messages.create({ ...asked, max_tokens: 5 }),
    await client.beta.messages.stream({ ...asked, max_tokens: 5 }).finalMessage()
  ]
  for (const answered of answers) {
    t.strictSame(answered.context_management, { applied_edits })
    t.equal(total(answered.usage as Anthropic.Usage), input_tokens)
  }
  const file = join(corral.home, 'cache', 'cleared-conversations.json')
  await until('the cleared conversations are stored for the next start', () => existsSync(file))
})

t.test('the Messages API replaces a conversation by a summary', thorough, async t => {
  const messages = [...rainy(3), { role: 'assistant' as const, content: 'It is sunny.' }, QUESTION]
  const edit = { type: 'compact_20260112' as const, ...atTokens(100) }
  const asked = { model: DEMO, max_tokens: 20, tools: [WEATHER], messages, context_management: { edits: [edit] } }
  const before = await countedTokens()
  const whole = await client.beta.messages.create(asked)
  const streamed = await client.beta.messages.stream(asked).finalMessage()
  let used = 0
  for (const { content, stop_reason, usage } of [whole, streamed]) {
    t.match(content[0], { type: 'compaction', content: String, tool_changes: [] })
    t.not(stop_reason, 'compaction')
    t.match(usage.iterations, [{ type: 'compaction', output_tokens: Number }, { type: 'message' }])
    for (const each of usage.iterations!) used += total(each as never) + each.output_tokens
  }
  t.equal((await countedTokens()) - before, used, 'the tokens of both calls of the model are counted')
  const next = [...messages, { role: 'assistant' as const, content: whole.content }, QUESTION]
  const { usage } = await client.beta.messages.create({ ...asked, context_management: null, messages: next })
  t.ok(usage.cache_read_input_tokens! > 20, 'the summary is in the cache')

  const pause = { edits: [{ ...edit, pause_after_compaction: true }] }
  const paused = await client.beta.messages.stream({ ...asked, context_management: pause }).finalMessage()
  const summarize = { context_management: null, compaction: { type: 'summarize' as const } }
  const only = await client.beta.messages.create({ ...asked, ...summarize })
  for (const { content, stop_reason } of [paused, only]) {
    t.match(content, [{ type: 'compaction' }])
    t.equal(content.length, 1)
    t.equal(stop_reason, 'compaction')
  }
  const later = { edits: [{ ...edit, ...atTokens(4000) }] }
  const unchanged = await client.beta.messages.create({ ...asked, context_management: later })
  t.match(unchanged, { context_management: { applied_edits: [] }, content: [{ type: 'text' }] })
})

t.test('the Messages API works with the tool runner and threads of the SDK', async t => {
  const getWeather = betaTool({
    name: 'get_weather',
    description: 'Get the current weather in a city',
    inputSchema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    run: async ({ city }) => (city === 'Paris' ? 'sunny' : 'unknown')
  })
  const asked = { ...ask, messages: [RAIN] }
  for (const stream of [false, true]) {
    const final = await client.beta.messages.toolRunner({ ...asked, tools: [getWeather], stream })
    t.match(final, { content: [{ text: 'The weather in Paris is sunny.' }], stop_reason: 'end_turn' })
  }
  const thread = client.beta.messages.thread({ model: DEMO, max_tokens: 50 })
  await thread.send({ role: 'user', content: 'My name is Mina.' })
  const named = await thread.send({ role: 'user', content: 'What is my name?' })
  t.match(named.content, [{ text: /Mina/ }], 'the SDK sends the whole conversation')
})

t.test('the Messages API accepts the requests of Claude Code', async t => {
  const request = {
    model: DEMO,
    max_tokens: 50,
    system: [
      { type: 'text', text: 'x-anthropic-billing-header: cc_version=2.1.330.4f9; cc_entrypoint=sdk-cli;' },
      { type: 'text', text: 'You are Leo.', cache_control: { type: 'ephemeral' } }
    ],
    messages: [
      { role: 'user', content: [{ type: 'text', text: 'Who are you?', cache_control: { type: 'ephemeral' } }] },
      { role: 'assistant', content: [{ type: 'text', text: 'I am Leo.' }] },
      RAIN,
      { role: 'system', content: [{ type: 'tool_addition', tool: { type: 'tool_reference', name: 'get_weather' } }] }
    ],
    tools: [
      { ...WEATHER, defer_loading: true },
      { name: 'Placeholder', input_schema: { type: 'object', properties: {} }, defer_loading: true }
    ],
    metadata: { user_id: '{"device_id":"x"}' },
    thinking: { type: 'adaptive', display: 'omitted' },
    context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
    output_config: { effort: 'high' }
  } as unknown as typeof ask
  const betas = ['claude-code-20250219', 'interleaved-thinking-2025-05-14', 'context-management-2025-06-27']
  const answered = await client.beta.messages.stream({ ...request, betas } as never).finalMessage()
  t.match(answered.content, [{ type: 'tool_use', name: 'get_weather', input: { city: 'Paris' } }])
  const reminded = [...request.messages, { role: 'system' as const, content: 'It is Monday.' }]
  t.match(await client.messages.create({ ...request, messages: reminded }), { type: 'message', role: 'assistant' })
})

t.test('count_tokens matches the usage of answers', async t => {
  const requests: Anthropic.MessageCountTokensParams[] = [
    { model: DEMO, messages: [QUESTION] },
    { model: DEMO, messages: [QUESTION], system: [{ type: 'text', text: 'You are Leo.' }], tools: [WEATHER] },
    { model: DEMO, messages: [QUESTION, { role: 'assistant', content: 'The capital' }] },
    { model: DEMO, tools: [WEATHER], messages: rainy(1) as Anthropic.MessageParam[] }
  ]
  for (const request of requests) {
    const { input_tokens } = await client.messages.countTokens(request)
    const answered = await client.messages.create({ ...request, max_tokens: 5 } as never as typeof ask)
    t.equal(input_tokens, total(answered.usage))
    const again = await client.messages.stream({ ...request, max_tokens: 5 } as never as typeof ask).finalMessage()
    t.equal(input_tokens, total(again.usage))
  }
  t.match(await failure(client.messages.countTokens({ model: DEMO, messages: [] })), { status: 400 })
})

t.test("the Messages API answers histories with every block of the SDK's types", async t => {
  const names = ['BetaMessageParam', 'BetaContentBlock']
  const [message, reply] = sdkShapes(t.testdir(), 'resources/beta/messages/messages.d.ts', names)
  for (let trial = 0; trial < trialCount(40); trial++) {
    const seed = Math.floor(Math.random() * 1e9)
    const random = randomNumbers(seed)
    const messages = Array.from({ length: 4 }, () =>
      random() < 0.5 ? randomValue(message!, random) : { role: 'assistant', content: [randomValue(reply!, random)] }
    )
    // Images and documents that the model cannot use are refused only in the newest message.
    const newest = [{ role: 'assistant', content: 'Next?' }, QUESTION]
    const request = { model: DEMO, messages: [...messages, ...newest] as never }
    try {
      const { input_tokens } = await client.beta.messages.countTokens(request)
      if (trial % 8 > 0) continue
      const answered = await client.beta.messages.stream({ ...request, max_tokens: 1 }).finalMessage()
      t.equal(total(answered.usage as Anthropic.Usage), input_tokens)
    } catch (error) {
      t.fail(`seed ${seed}: ${(error as Error).message} for ${JSON.stringify(messages)}`)
    }
  }
})

t.test('the Messages API accepts images in messages and in tool results', async t => {
  // The projector has random weights, so the answer is meaningless.
  const folder = t.testdir()
  const model = 'random/seeing'
  copyFileSync(demoModelFile, join(folder, 'seeing.gguf'))
  writeFileSync(join(folder, 'mmproj-F16.gguf'), randomProjector('vision'))
  const path = join(folder, 'seeing.gguf')
  t.match(await corral.json('/api/import', { path, name: model, stream: false }), { status: 200 })
  const source = { type: 'base64' as const, media_type: 'image/png' as const, data: pngBytes().toString('base64') }
  const image = { type: 'image' as const, source }
  const see = (content: Anthropic.MessageParam['content']) => ({
    model,
    messages: [{ role: 'user' as const, content }]
  })
  const bare = await client.messages.countTokens(see([{ type: 'text', text: 'What is this?' }]))
  const messages: Anthropic.MessageParam[] = [
    { role: 'user', content: [{ type: 'text', text: 'What is this?' }, image] },
    { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'look', input: {} }] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_1', content: [image] }] }
  ]
  let before = bare.input_tokens
  for (const request of [see(messages[0]!.content), { model, messages }]) {
    const { input_tokens } = await client.messages.countTokens(request)
    t.ok(input_tokens > before + 3, 'each image adds tokens')
    before = input_tokens
    const answered = await client.messages.create({ ...request, max_tokens: 5 })
    t.equal(total(answered.usage), input_tokens)
  }
  const broken = see([{ ...image, source: { ...source, data: 'AAAA' } }])
  t.match(await failure(client.messages.create({ ...broken, max_tokens: 5 })), {
    status: 400,
    errorCode: 'invalid_request',
    error: { error: { param: 'messages.0.content.0.source' } }
  })

  // Only the engine's decoder finds out that these are damaged.
  const png = pngBytes()
  const noise = Buffer.concat([png.subarray(0, 60), Buffer.alloc(png.length - 60, 7)])
  const damaged = [png.subarray(0, png.length / 2), noise].map(bytes => ({
    ...image,
    source: { ...source, data: bytes.toString('base64') }
  }))
  const said = { role: 'assistant' as const, content: 'Grey.' }
  const replaced = { type: 'text' as const, text: '[There was an image here, but its data cannot be used.]' }
  const later = (...content: Anthropic.ContentBlockParam[]) => ({
    model,
    messages: [{ role: 'user' as const, content }, said, { role: 'user' as const, content: 'And now?' }]
  })
  const [first, second] = damaged
  for (const [given, wanted] of [
    [later(first!), later(replaced)],
    [later(image, first!, image, second!, image), later(image, replaced, image, replaced, image)]
  ] as const) {
    const { input_tokens } = await client.messages.countTokens(wanted)
    t.match(await client.messages.countTokens(given), { input_tokens })
    const answered = await client.messages.stream({ ...given, max_tokens: 2 }).finalMessage()
    t.equal(total(answered.usage), input_tokens)
    const edits = [{ type: 'clear_tool_uses_20250919' as const, trigger: { type: 'input_tokens' as const, value: 1 } }]
    const managed = { ...given, max_tokens: 2, context_management: { edits } }
    t.equal(total((await client.beta.messages.create(managed)).usage as Anthropic.Usage), input_tokens)
  }
  for (const each of damaged) {
    const newest = { model, messages: [...later(image).messages.slice(0, 2), ...see([image, each]).messages] }
    t.match(await failure(client.messages.create({ ...newest, max_tokens: 5 })), {
      status: 400,
      errorCode: 'invalid_request',
      message: /damaged/,
      error: { error: { param: 'messages.2.content.1.source' } }
    })
  }
})

t.test('the Messages API lists and shows models', async t => {
  for (const base of ['', '/anthropic']) {
    const { models } = clientOf(corral.url + base)
    const record = await models.retrieve(DEMO)
    t.match(record, { type: 'model', id: DEMO, display_name: DEMO, max_input_tokens: 32_768, max_tokens: 32_768 })
    t.match(record, {
      lifecycle: 'active',
      capabilities: { thinking: { supported: false }, image_input: { supported: false } }
    })
    t.strictSame(
      Object.keys(record.capabilities!).sort(),
      [
        ...['batch', 'citations', 'code_execution', 'context_management', 'effort', 'image_input', 'pdf_input'],
        ...['server_tools', 'structured_outputs', 'thinking']
      ],
      'every capability that the SDK declares'
    )
    t.ok((await failure(models.retrieve('corral/none'))) instanceof Anthropic.NotFoundError)
  }
  const { body } = await corral.json('/v1/models')
  t.match(body, { object: 'list', data: [{ object: 'model' }] }, 'the list is still in OpenAI format')
})

t.test('the SDK throws the right error class', async t => {
  const long = [{ role: 'user' as const, content: 'hello there '.repeat(20_000) }]
  const png = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'iVBORw0KGgo=' } }
  const table: [object, new (...args: never[]) => Error, object][] = [
    [{ model: 'no/such' }, Anthropic.NotFoundError, { type: 'not_found_error', errorCode: 'model_not_found' }],
    [{ model: 'nonsense' }, Anthropic.NotFoundError, { errorCode: 'model_not_found' }],
    [{ model: 'a b' }, Anthropic.BadRequestError, { errorCode: 'invalid_model_name' }],
    [{ max_tokens: undefined }, Anthropic.BadRequestError, { errorCode: 'invalid_request', message: /max_tokens/ }],
    [{ temperature: -1 }, Anthropic.BadRequestError, { errorCode: 'invalid_option' }],
    [
      { messages: [{ role: 'user', content: [png] }] },
      Anthropic.BadRequestError,
      { errorCode: 'unsupported_capability' }
    ],
    [
      { messages: long },
      Anthropic.BadRequestError,
      {
        type: 'invalid_request_error',
        errorCode: 'context_exceeded',
        apiMessage: /^prompt is too long: \d+ tokens > \d+ maximum\./,
        details: { n_prompt_tokens: Number, n_ctx: Number }
      }
    ]
  ]
  for (const [params, type, wanted] of table) {
    for (const stream of [false, true]) {
      const error = await failure(client.messages.create({ ...ask, ...params, stream } as never))
      t.ok(error instanceof type, error.message)
      t.match(error, wanted)
      t.match(error.requestID, /^[0-9a-f-]{36}$/)
      t.equal(error.error.request_id, error.requestID)
    }
  }
  for (const [path, status, body] of [
    ['/v1/messages', 400, { error: { type: 'invalid_request_error', code: 'missing_body' } }],
    ['/v1/messages/batches', 404, { type: 'error', error: { type: 'not_found_error', code: 'route_not_found' } }],
    ['/anthropic/v1/nothing', 404, { type: 'error', error: { type: 'not_found_error' } }]
  ] as const) {
    const got = await corral.json(path, '')
    t.equal(got.status, status, path)
    t.match(got.body, body, path)
  }
  t.match(await corral.json('/v1/messages'), { status: 405, body: { type: 'error' } })
})

t.test('the Messages API drops the oldest messages on request', thorough, async t => {
  const messages: Anthropic.MessageParam[] = []
  for (let turn = 0; turn < 30; turn++) {
    messages.push({ role: 'user', content: 'hello there '.repeat(60) }, { role: 'assistant', content: 'Hello!' })
  }
  messages.push(QUESTION)
  const given = { ...ask, messages, options: { context_overflow: 'drop_oldest', num_ctx: 4096 } } as typeof ask
  const { data, response } = await client.messages.create(given).withResponse()
  t.ok(Number(response.headers.get('x-corral-dropped-messages')) > 0)
  t.equal(data.content[0]!.type, 'text')
})

t.test('an aborted request without a stream frees its slot', thorough, async t => {
  const controller = new AbortController()
  const whole = failure(client.messages.create(endless(), { signal: controller.signal, timeout: 600_000 }))
  await until('the request runs', async () => (await activeRequests(corral)) === 1)
  controller.abort()
  t.ok((await whole) instanceof Anthropic.APIUserAbortError)
  await until('the slot is free', async () => (await activeRequests(corral)) === 0)
})

t.test('the Messages API reports a crash of the engine in the stream', async t => {
  const stream = client.messages.stream(endless())
  const error = await failure(
    (async () => {
      // Kills only once: events sent before the crash may still arrive.
      let killed = false
      for await (const event of stream) {
        if (killed || event.type !== 'content_block_delta') continue
        killed = true
        for (const pid of corral.enginePids()) process.kill(pid, 'SIGKILL')
      }
    })()
  )
  t.ok(error instanceof Anthropic.APIError)
  t.match(error, { type: 'api_error', errorCode: 'engine_crashed' })
  t.match((await client.messages.create(ask)).content, [{ text: ANSWER }], 'the next request is answered')
})

t.test('the Messages API requires keys, and begins a stream that waits', async t => {
  const config = `${DEFAULTS}security:\n  api_keys: [secret]\napi-anthropic:\n  heartbeat: 200ms\n`
  const { url, send } = await startCorral(t, { config })
  const keyed = clientOf(url, 'secret')
  const bearer = new Anthropic({ baseURL: url, apiKey: null, authToken: 'secret', maxRetries: 0 })
  t.match((await bearer.models.list()).data, [{ id: DEMO }])

  const first = keyed.messages.stream(endless())
  for await (const event of first) {
    if (event.type !== 'content_block_delta') continue
    const response = await send('/v1/messages', { ...ask, stream: true }, { headers: { 'x-api-key': 'secret' } })
    t.equal(response.status, 200)
    t.match(response.headers.get('content-type'), /^text\/event-stream/)
    t.match(response.headers.get('request-id'), /^[0-9a-f-]{36}$/)
    const reader = response.body!.getReader()
    const { value } = await reader.read()
    t.match(Buffer.from(value!).toString(), /^: queued\n\nevent: message_start\n/)
    first.abort()
    let text = ''
    for (let part = await reader.read(); !part.done; part = await reader.read()) text += Buffer.from(part.value)
    t.notMatch(text, 'message_start')
    t.ok(text.endsWith('event: message_stop\ndata: {"type":"message_stop"}\n\n'))
    break
  }
})
