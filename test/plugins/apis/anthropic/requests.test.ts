import { Ajv } from 'ajv'
import t from 'tap'
import { CorralError, ERROR_STATUS, type ErrorCode } from '../../../../core/errors.ts'
import { anthropicErrorBody } from '../../../../plugins/apis/anthropic/index.ts'
import { engineMessages, engineRequest } from '../../../../plugins/apis/anthropic/message-request.ts'
import { MessagesRequest } from '../../../../plugins/apis/anthropic/schemas.ts'
import { randomNumbers } from '../../../support/random.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { assistant, image, result, text, use, user } from './support.ts'

type Request = Parameters<typeof engineRequest>[0]

const hi: Request = { model: 'a/b', messages: [{ role: 'user', content: 'Hi' }] }
const tool = { name: 'get', description: 'Gets', input_schema: { type: 'object', properties: {} } }
const other = { name: 'set', input_schema: { type: 'object' } }
const engineTool = {
  type: 'function',
  function: { name: 'get', description: 'Gets', parameters: { type: 'object', properties: {} } }
}
const engineOther = { type: 'function', function: { name: 'set', parameters: { type: 'object' } } }

t.test('converts request fields for the engine', t => {
  const messages = [user('Hi')]
  const quiet = { chat_template_kwargs: { enable_thinking: false } }
  const thinks = { chat_template_kwargs: { enable_thinking: true } }
  const schema = { type: 'object' }
  const format = { response_format: { type: 'json_schema', json_schema: { name: 'answer', schema } } }
  const table: [what: string, request: object, wanted: object, defaults?: object][] = [
    ['no further fields', {}, { ...quiet, messages }],
    [
      'the request takes precedence over defaults',
      { stop_sequences: ['END'] },
      { ...quiet, temperature: 1, stop: ['END'], messages },
      { temperature: 1, stop: ['x'] }
    ],
    ['empty stop sequences', { stop_sequences: [] }, { ...quiet, stop: ['x'], messages }, { stop: ['x'] }],
    [
      'template options',
      {},
      { chat_template_kwargs: { enable_thinking: true, a: 1 }, messages },
      { chat_template_kwargs: { enable_thinking: true, a: 1 } }
    ],
    [
      'thinking with a budget',
      { thinking: { type: 'enabled', budget_tokens: 2000 } },
      { chat_template_kwargs: { enable_thinking: true, a: 1 }, thinking_budget_tokens: 2000, messages },
      { chat_template_kwargs: { enable_thinking: false, a: 1 } }
    ],
    ['adaptive thinking', { thinking: { type: 'adaptive' } }, { ...thinks, messages }],
    ['disabled thinking', { thinking: { type: 'disabled', budget_tokens: 5 } }, { ...quiet, messages }],
    ['effort', { output_config: { effort: 'low' } }, { ...quiet, reasoning_effort: 'low', messages }],
    ['high effort', { output_config: { effort: 'max' } }, { ...quiet, reasoning_effort: 'high', messages }],
    ['a format', { output_config: { format: { type: 'json_schema', schema } } }, { ...quiet, ...format, messages }],
    [
      'the older form of a format',
      { output_format: { type: 'json_schema', schema } },
      { ...quiet, ...format, messages }
    ],
    [
      'tools',
      { tools: [tool, { ...other, type: 'custom' }] },
      { ...quiet, tools: [engineTool, engineOther], messages }
    ],
    ['empty tools', { tools: [], tool_choice: { type: 'auto' } }, { ...quiet, messages }],
    [
      'any tool',
      { tools: [tool], tool_choice: { type: 'any' } },
      { ...quiet, tools: [engineTool], tool_choice: 'required', messages }
    ],
    [
      'one tool',
      { tools: [tool, other], tool_choice: { type: 'tool', name: 'set' } },
      { ...quiet, tools: [engineOther], tool_choice: 'required', messages }
    ],
    ['tool choice none', { tools: [tool], tool_choice: { type: 'none' } }, { ...quiet, messages }],
    [
      'a single call',
      { tools: [tool], tool_choice: { type: 'auto', disable_parallel_tool_use: true } },
      { ...quiet, tools: [engineTool], parallel_tool_calls: false, messages }
    ],
    [
      'nulls',
      { tools: null, tool_choice: null, thinking: null, output_config: null, mcp_servers: null },
      { ...quiet, messages }
    ],
    ['ignored fields', { mcp_servers: [], metadata: { user_id: 'x' }, service_tier: 'auto' }, { ...quiet, messages }],
    [
      'a started answer',
      { messages: [user('Hi'), assistant('The')] },
      {
        ...quiet,
        continue_final_message: true,
        add_generation_prompt: false,
        messages: [user('Hi'), assistant('The')]
      }
    ]
  ]
  for (const [what, request, wanted, defaults = {}] of table) {
    t.strictSame(engineRequest({ ...hi, ...request } as Request, defaults as never).body, wanted, what)
  }
  t.end()
})

t.test('messages can add and remove tools', t => {
  const names = (tools: object[], ...messages: object[]) => {
    const { body } = engineRequest({ ...hi, tools, messages: [user('Hi'), ...messages] } as Request, {})
    return ((body.tools ?? []) as any[]).map(({ function: { name } }) => name)
  }
  const later = { ...tool, defer_loading: true }
  const found = user([result('1', { content: [{ type: 'tool_reference', tool_name: 'get' }] })])
  const changed = (type: string, tool: object) => ({ role: 'system', content: [{ type, tool }] })
  const get = { type: 'tool_reference', name: 'get' }
  t.strictSame(names([later, other]), ['set'])
  t.strictSame(names([later]), [])
  t.strictSame(names([later, other], found), ['get', 'set'])
  t.strictSame(names([later, other], user([{ type: 'tool_reference', tool_name: 'none' }])), ['set'])
  t.strictSame(names([later, other], changed('tool_addition', get)), ['get', 'set'])
  t.strictSame(names([tool, other], changed('tool_removal', get)), ['set'])
  t.strictSame(names([tool, other], changed('tool_removal', get), changed('tool_addition', get)), ['get', 'set'])
  t.strictSame(names([other], changed('tool_addition', { type: 'tool_definition', definition: tool })), ['set', 'get'])
  const { messages } = engineMessages({ messages: [found] } as never)
  t.strictSame(messages, [{ role: 'tool', tool_call_id: '1', content: 'The tool get can be called now.' }] as never)
  t.end()
})

t.test('refuses invalid requests and names the place', t => {
  const at = (content: unknown, role = 'user') => ({ messages: [user('x'), { role, content }] })
  const source = (of: unknown, type = 'image') => at([{ type, source: of }])
  const table: [request: object, param: string, code?: ErrorCode][] = [
    [at(5), 'messages.1.content'],
    [at(null), 'messages.1.content'],
    [at(['secret']), 'messages.1.content.0'],
    [at([{ type: 'text' }]), 'messages.1.content.0.text'],
    [at([text('x'), { type: 'container_upload' }]), 'messages.1.content.1.type'],
    [at([{ type: 7 }]), 'messages.1.content.0.type'],
    [at([use('1', 'f', {})]), 'messages.1.content.0.type'],
    [at([image], 'assistant'), 'messages.1.content.0.type'],
    [at([result('1')], 'assistant'), 'messages.1.content.0.type'],
    [at([{ type: 'server_tool_use' }], 'assistant'), 'messages.1.content.0.type'],
    [at([{ type: 'thinking' }], 'assistant'), 'messages.1.content.0.thinking'],
    [at([{ type: 'tool_use', name: 'f', input: {} }], 'assistant'), 'messages.1.content.0.id'],
    [at([{ type: 'tool_use', id: '1', input: {} }], 'assistant'), 'messages.1.content.0.name'],
    [at([use('1', 'f', {})], 'assistant'), 'messages.1'],
    [{ ...at('x', 'assistant'), tools: [tool], tool_choice: { type: 'any' } }, 'messages.1'],
    [{ ...at('x', 'assistant'), output_config: { format: { type: 'json_schema', schema: {} } } }, 'messages.1'],
    [at([image], 'system'), 'messages.1.content.0.type'],
    [{ system: [image] }, 'system.0.type'],
    [at([{ type: 'tool_result', content: 'secret' }]), 'messages.1.content.0.tool_use_id'],
    [at([result('1', { content: 5 })]), 'messages.1.content.0.content'],
    [at([result('1', { content: [result('2')] })]), 'messages.1.content.0.content.0.type'],
    [source(undefined), 'messages.1.content.0.source'],
    [source('secret'), 'messages.1.content.0.source'],
    [source({ type: 'url', url: 'http://secret/' }), 'messages.1.content.0.source.type'],
    [source({ type: 'file', file_id: 'secret' }), 'messages.1.content.0.source.type'],
    [source({ type: 'base64', data: 'secret' }), 'messages.1.content.0.source.media_type'],
    [source({ type: 'base64', media_type: 'text/html', data: 'secret' }), 'messages.1.content.0.source.media_type'],
    [source({ type: 'base64', media_type: 'image/png,x', data: '' }), 'messages.1.content.0.source.media_type'],
    [source({ type: 'base64', media_type: 'image/png' }), 'messages.1.content.0.source.data'],
    [source({ type: 'text' }, 'document'), 'messages.1.content.0.source.data'],
    [source({ type: 'content', content: [result('1')] }, 'document'), 'messages.1.content.0.source.content.0.type'],
    [
      source({ type: 'base64', data: 'secret' }, 'document'),
      'messages.1.content.0.source.type',
      'unsupported_capability'
    ],
    [source({ type: 'url', url: 'secret' }, 'document'), 'messages.1.content.0.source.type', 'unsupported_capability'],
    [at([{ type: 'search_result', title: 'secret' }]), 'messages.1.content.0.content'],
    [{ tools: [{ type: 'web_search_20250305', name: 'web_search' }] }, 'tools.0.type', 'unsupported_capability'],
    [{ tools: [tool, { input_schema: {} }] }, 'tools.1.name'],
    [{ tools: [{ name: 'f' }] }, 'tools.0.input_schema'],
    [{ tool_choice: { type: 'any' } }, 'tool_choice'],
    [{ tools: [tool], tool_choice: { type: 'tool', name: 'secret' } }, 'tool_choice.name'],
    [{ tools: [tool], tool_choice: { type: 'tool' } }, 'tool_choice.name'],
    [at([{ type: 'tool_addition' }], 'system'), 'messages.1.content.0.tool'],
    [
      at([{ type: 'tool_addition', tool: { type: 'tool_definition', definition: { name: 'f' } } }], 'system'),
      'messages.1.content.0.tool.definition.input_schema'
    ],
    [{ mcp_servers: [{ url: 'secret' }] }, 'mcp_servers', 'unsupported_capability'],
    [{ container: 'secret' }, 'container', 'unsupported_capability'],
    [{ thread: { type: 'continue', previous_message_id: 'secret' } }, 'thread', 'response_not_found']
  ]
  for (const [request, param, code = 'invalid_request'] of table) {
    const what = JSON.stringify(request)
    try {
      engineRequest({ ...hi, ...request } as Request, {})
      t.fail(`${what} was accepted`)
    } catch (error) {
      if (!(error instanceof CorralError)) throw error
      t.match(error, { code, param }, what)
      t.notMatch(error.message, /secret/, 'the value is not quoted')
    }
  }
  t.end()
})

t.test('random requests that match the schema fail only with a CorralError that has a param', t => {
  const fits = new Ajv({ keywords: ['documented'] }).compile(MessagesRequest)
  const KEYS = 'type text source data content title context id name input tool_use_id tool_name is_error thinking tool'
  const keys = `${KEYS} definition input_schema description media_type role clear_at defer_loading schema`.split(' ')
  const TYPES = 'text image document search_result tool_use tool_result thinking redacted_thinking tool_reference'
  const types = `${TYPES} tool_addition tool_removal tool_definition base64 content custom json_schema any x`.split(' ')
  let taken = 0
  for (let seed = 1; seed <= trialCount(5000); seed++) {
    const random = randomNumbers(seed)
    const one = <Value>(of: readonly Value[]): Value => of[Math.floor(random() * of.length)]!
    const value = (depth: number): unknown => {
      const kind = random()
      if (depth === 0 || kind < 0.4) return one(['', 'x', 'image/png', 0, -1, 1.5, true, null, [], {}])
      if (kind < 0.6) return Array.from({ length: Math.floor(random() * 3) }, () => value(depth - 1))
      const object: Record<string, unknown> = { type: one(types) }
      for (let more = Math.floor(random() * 6); more > 0; more--) object[one(keys)] = value(depth - 1)
      return object
    }
    const list = () => Array.from({ length: 1 + Math.floor(random() * 3) }, () => value(4))
    const request: Record<string, unknown> = {
      model: 'a/b',
      max_tokens: 5,
      messages: Array.from({ length: 1 + Math.floor(random() * 4) }, () => ({
        role: one(['user', 'assistant', 'system']),
        content: random() < 0.2 ? 'x' : list()
      }))
    }
    for (const field of ['system', 'tools', 'tool_choice', 'thinking', 'output_config', 'options', 'container']) {
      if (random() < 0.15) request[field] = random() < 0.5 ? value(3) : list()
    }
    if (!fits(request)) continue
    try {
      const { body, places } = engineRequest(request as never, {})
      taken++
      const lengths = body.messages.map(({ content }) => (Array.isArray(content) ? content.length : 0))
      if (lengths.some((length, at) => length > 0 && length !== places[at]!.length))
        t.fail(`wrong number of places with seed ${seed}`)
    } catch (error) {
      if (!(error instanceof CorralError) || !error.param) t.fail(`seed ${seed}: ${error}`)
    }
  }
  t.ok(taken > 100, `${taken} requests were accepted`)
  t.end()
})

t.test("renders errors in Anthropic's format", t => {
  const types: Partial<Record<ErrorCode, string>> = {
    unauthorized: 'authentication_error',
    origin_not_allowed: 'permission_error',
    model_not_found: 'not_found_error',
    body_too_large: 'request_too_large',
    method_not_allowed: 'invalid_request_error',
    queue_full: 'overloaded_error',
    rate_limited: 'rate_limit_error',
    hub_rate_limited: 'rate_limit_error',
    load_timeout: 'timeout_error',
    model_stopped: 'api_error',
    internal: 'api_error',
    not_implemented: 'api_error'
  }
  for (const [code, status] of Object.entries(ERROR_STATUS)) {
    const body: any = anthropicErrorBody(new CorralError(code as ErrorCode, 'Gone.'), { id: 'r1' })
    t.match(body, { type: 'error', error: { message: 'Gone.', code, details: { error_code: code } }, request_id: 'r1' })
    const wanted = types[code as ErrorCode]
    if (wanted) t.equal(body.error.type, wanted, code)
    t.equal(
      status >= 500 || status === 429,
      ['api_error', 'overloaded_error', 'rate_limit_error', 'timeout_error'].includes(body.error.type)
    )
  }
  const details = { n_prompt_tokens: 12, n_ctx: 8 }
  const long: any = anthropicErrorBody(
    new CorralError('context_exceeded', 'It is too long. Shorten it.', { details }),
    { id: 'r' }
  )
  t.match(long.error, { type: 'invalid_request_error', details: { error_code: 'context_exceeded', ...details } })
  t.match(long.error.message, /^prompt is too long: 12 tokens > 8 maximum\. Shorten/)
  const unknown: any = anthropicErrorBody(new CorralError('context_exceeded', 'As it is.'), { id: 'r' })
  t.equal(unknown.error.message, 'As it is.')
  t.end()
})
