import { Ajv } from 'ajv'
import t from 'tap'
import { CorralError, ERROR_STATUS, type ErrorCode } from '../../core/errors.ts'
import type { Delta, ToolCallPiece } from '../../core/http/engine-answer.ts'
import { anthropicErrorBody } from '../../plugins/api-anthropic/anthropic-error.ts'
import { engineRequest } from '../../plugins/api-anthropic/engine-body.ts'
import { engineMessages } from '../../plugins/api-anthropic/engine-messages.ts'
import { MessageEvents, WholeMessage } from '../../plugins/api-anthropic/message-events.ts'
import { type MessageEvent, MessagesRequestSchema } from '../../plugins/api-anthropic/schemas.ts'

type Request = Parameters<typeof engineRequest>[0]

const PNG = 'iVBORw0KGgo='
const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: PNG } }
const imageUrl = { type: 'image_url', image_url: { url: `data:image/png;base64,${PNG}` } }
const text = (of: string) => ({ type: 'text', text: of })
const user = (content: unknown) => ({ role: 'user', content })
const assistant = (content: unknown) => ({ role: 'assistant', content })
const result = (id: string, more: object = {}) => ({ type: 'tool_result', tool_use_id: id, ...more })
const use = (id: string, name: string, input: object) => ({ type: 'tool_use', id, name, input })
const call = (id: string, name: string, input: object) => ({
  id,
  type: 'function',
  function: { name, arguments: JSON.stringify(input) }
})

t.test('conversations', t => {
  const table: [what: string, given: unknown[], wanted: unknown[], system?: unknown][] = [
    ['text', [user('Hi')], [user('Hi')]],
    ['blocks of text', [user([text('a'), { ...text('b'), cache_control: { type: 'ephemeral' } }])], [user('a\nb')]],
    ['nothing said', [user([])], [user('')]],
    ['a system text', [user('Hi')], [{ role: 'system', content: 'Be brief.' }, user('Hi')], 'Be brief.'],
    ['system blocks', [user('Hi')], [{ role: 'system', content: 'a\nb' }, user('Hi')], [text('a'), text('b')]],
    ['no system', [user('Hi')], [user('Hi')], ''],
    [
      'what the system says first is one message, what it says later is told by the user',
      [
        { role: 'system', content: 'b' },
        { role: 'system', content: [text('c')] },
        user('Hi'),
        { role: 'system', content: [text('d'), text('e')] },
        assistant('Ho'),
        { role: 'system', content: [{ type: 'tool_removal', tool: { type: 'tool_reference', name: 'f' } }] },
        assistant('!'),
        { role: 'system', content: 'f' }
      ],
      [
        { role: 'system', content: 'a\nb\nc' },
        user('Hi\n<system-reminder>\nd\ne\n</system-reminder>'),
        assistant('Ho!'),
        user('<system-reminder>\nf\n</system-reminder>')
      ],
      'a'
    ],
    [
      'what the system says for one turn only',
      [
        user('Hi'),
        { role: 'system', content: 'gone', clear_at: 'next_user_message' },
        assistant('Ho'),
        user('and?'),
        { role: 'system', content: 'here', clear_at: 'next_user_message' }
      ],
      [user('Hi'), assistant('Ho'), user('and?\n<system-reminder>\nhere\n</system-reminder>')]
    ],
    [
      'the header of Claude Code',
      [user('Hi')],
      [{ role: 'system', content: 'You are a program.' }, user('Hi')],
      [
        text('x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;'),
        text('You are a program.')
      ]
    ],
    [
      'the header of Claude Code before the rest of a text',
      [user('Hi')],
      [{ role: 'system', content: 'You are a=b; a program.' }, user('Hi')],
      'x-anthropic-billing-header: cc_version=2; cch=a5145;\nYou are a=b; a program.'
    ],
    [
      'turns in a row of the same role',
      [user('a'), user([text('b')]), assistant('c'), assistant([text('d')]), user('e')],
      [user('a\nb'), assistant('cd'), user('e')]
    ],
    ['an image among text', [user([text('see'), image])], [user([text('see'), imageUrl])]],
    [
      'documents and search results are read',
      [
        user([
          { type: 'document', title: 'T', context: 'C', source: { type: 'text', media_type: 'text/plain', data: 'D' } },
          { type: 'document', source: { type: 'content', content: [text('x'), text('y')] } },
          { type: 'document', source: { type: 'content', content: 'z' } },
          { type: 'search_result', title: 'S', source: 'https://x', content: [text('found')] }
        ])
      ],
      [user('T\nC\nD\nx\ny\nz\nS\nhttps://x\nfound')]
    ],
    [
      'calls and their results, with the ids that the engine gave',
      [
        user('weather?'),
        assistant([
          { type: 'thinking', thinking: 'hm', signature: 's' },
          { type: 'redacted_thinking', data: 'x' },
          text('Let me see.'),
          use('toolu_abc', 'get', { city: 'Paris' }),
          use('own', 'get', {})
        ]),
        user([
          text('and now?'),
          result('toolu_abc', { content: 'sunny' }),
          result('own', { content: [text('a'), text('b')] })
        ])
      ],
      [
        user('weather?'),
        {
          role: 'assistant',
          content: 'Let me see.',
          reasoning_content: 'hm',
          tool_calls: [call('abc', 'get', { city: 'Paris' }), call('own', 'get', {})]
        },
        { role: 'tool', tool_call_id: 'abc', content: 'sunny' },
        { role: 'tool', tool_call_id: 'own', content: 'a\nb' },
        user('and now?')
      ]
    ],
    [
      'results without content, failed ones, and such with images',
      [
        assistant([use('1', 'f', {}), use('2', 'f', {}), use('3', 'f', {}), use('4', 'f', {})]),
        user([
          result('1'),
          result('2', { content: null }),
          result('3', { content: 'no such city', is_error: true }),
          result('4', { content: [text('see'), image] })
        ])
      ],
      [
        { role: 'assistant', content: '', tool_calls: ['1', '2', '3', '4'].map(id => call(id, 'f', {})) },
        { role: 'tool', tool_call_id: '1', content: '' },
        { role: 'tool', tool_call_id: '2', content: '' },
        { role: 'tool', tool_call_id: '3', content: 'Error:\nno such city' },
        { role: 'tool', tool_call_id: '4', content: [text('see'), imageUrl] }
      ]
    ]
  ]
  for (const [what, messages, wanted, system] of table) {
    t.strictSame(engineMessages({ messages, system } as never).messages, wanted, what)
  }
  t.end()
})

t.test('places of images', t => {
  const { messages, places } = engineMessages({
    system: 'x',
    messages: [
      user('a'),
      user([text('b'), image]),
      assistant([use('1', 'f', {})]),
      user([
        result('1', { content: [image] }),
        { type: 'document', title: 'T', source: { type: 'content', content: [image] } }
      ])
    ]
  } as never)
  const found = messages.flatMap(({ content }, at) =>
    Array.isArray(content)
      ? content.flatMap((part, index) => (part.type === 'image_url' ? [places[at]![index]] : []))
      : []
  )
  t.strictSame(found, [
    'messages.1.content.1.source',
    'messages.3.content.0.content.0.source',
    'messages.3.content.1.source.content.0.source'
  ])
  t.end()
})

const hi: Request = { model: 'a/b', messages: [{ role: 'user', content: 'Hi' }] }
const tool = { name: 'get', description: 'Gets', input_schema: { type: 'object', properties: {} } }
const other = { name: 'set', input_schema: { type: 'object' } }
const engineTool = {
  type: 'function',
  function: { name: 'get', description: 'Gets', parameters: { type: 'object', properties: {} } }
}
const engineOther = { type: 'function', function: { name: 'set', parameters: { type: 'object' } } }

t.test('the rest of requests', t => {
  const messages = [user('Hi')]
  const quiet = { chat_template_kwargs: { enable_thinking: false } }
  const thinks = { chat_template_kwargs: { enable_thinking: true } }
  const schema = { type: 'object' }
  const format = { response_format: { type: 'json_schema', json_schema: { name: 'answer', schema } } }
  const table: [what: string, request: object, wanted: object, defaults?: object][] = [
    ['nothing more', {}, { ...quiet, messages }],
    [
      'defaults, but for what the request says',
      { stop_sequences: ['END'] },
      { ...quiet, temperature: 1, stop: ['END'], verbose: true, messages },
      { temperature: 1, stop: ['x'] }
    ],
    ['no stop sequences', { stop_sequences: [] }, { ...quiet, stop: ['x'], messages }, { stop: ['x'] }],
    [
      'options for the template',
      {},
      { chat_template_kwargs: { enable_thinking: true, a: 1 }, messages },
      { chat_template_kwargs: { enable_thinking: true, a: 1 } }
    ],
    [
      'thoughts with a budget',
      { thinking: { type: 'enabled', budget_tokens: 2000 } },
      { chat_template_kwargs: { enable_thinking: true, a: 1 }, thinking_budget_tokens: 2000, messages },
      { chat_template_kwargs: { enable_thinking: false, a: 1 } }
    ],
    ['thoughts as the model likes', { thinking: { type: 'adaptive' } }, { ...thinks, messages }],
    ['no thoughts', { thinking: { type: 'disabled', budget_tokens: 5 } }, { ...quiet, messages }],
    ['effort', { output_config: { effort: 'low' } }, { ...quiet, reasoning_effort: 'low', messages }],
    ['more effort', { output_config: { effort: 'max' } }, { ...quiet, reasoning_effort: 'high', messages }],
    ['a format', { output_config: { format: { type: 'json_schema', schema } } }, { ...quiet, ...format, messages }],
    [
      'a format as it was before',
      { output_format: { type: 'json_schema', schema } },
      { ...quiet, ...format, messages }
    ],
    [
      'tools',
      { tools: [tool, { ...other, type: 'custom' }] },
      { ...quiet, tools: [engineTool, engineOther], messages }
    ],
    ['no tools', { tools: [], tool_choice: { type: 'auto' } }, { ...quiet, messages }],
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
    ['tools that may not be called', { tools: [tool], tool_choice: { type: 'none' } }, { ...quiet, messages }],
    [
      'one call only',
      { tools: [tool], tool_choice: { type: 'auto', disable_parallel_tool_use: true } },
      { ...quiet, tools: [engineTool], parallel_tool_calls: false, messages }
    ],
    [
      'nulls',
      { tools: null, tool_choice: null, thinking: null, output_config: null, mcp_servers: null },
      { ...quiet, messages }
    ],
    ['no servers', { mcp_servers: [], metadata: { user_id: 'x' }, service_tier: 'auto' }, { ...quiet, messages }],
    [
      'an answer that has begun',
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

t.test('tools that messages bring and take away', t => {
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

t.test('what is refused, with its place', t => {
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
      t.fail(`${what} was taken`)
    } catch (error) {
      if (!(error instanceof CorralError)) throw error
      t.match(error, { code, param }, what)
      t.notMatch(error.message, /secret/, 'nothing is quoted')
    }
  }
  t.end()
})

t.test('no request that its schema lets through fails but with an error that tells why', t => {
  const fits = new Ajv().compile(MessagesRequestSchema)
  const KEYS = 'type text source data content title context id name input tool_use_id tool_name is_error thinking tool'
  const keys = `${KEYS} definition input_schema description media_type role clear_at defer_loading schema`.split(' ')
  const TYPES = 'text image document search_result tool_use tool_result thinking redacted_thinking tool_reference'
  const types = `${TYPES} tool_addition tool_removal tool_definition base64 content custom json_schema any x`.split(' ')
  let taken = 0
  for (let seed = 1; seed <= 20_000; seed++) {
    const random = numbers(seed)
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
      if (lengths.some((length, at) => length > 0 && length !== places[at]!.length)) t.fail(`places of seed ${seed}`)
    } catch (error) {
      if (!(error instanceof CorralError) || !error.param) t.fail(`seed ${seed}: ${error}`)
    }
  }
  t.ok(taken > 100, `${taken} requests were taken`)
  t.end()
})

t.test('errors in the words of Anthropic', t => {
  const types: Partial<Record<ErrorCode, string>> = {
    unauthorized: 'authentication_error',
    origin_not_allowed: 'permission_error',
    model_not_found: 'not_found_error',
    body_too_large: 'request_too_large',
    method_not_allowed: 'invalid_request_error',
    queue_full: 'overloaded_error',
    hub_rate_limited: 'rate_limit_error',
    load_timeout: 'timeout_error',
    model_stopped: 'api_error',
    internal: 'api_error',
    not_implemented: 'api_error'
  }
  for (const [code, status] of Object.entries(ERROR_STATUS)) {
    const body: any = anthropicErrorBody(new CorralError(code as ErrorCode, 'Told.'), { id: 'r1' })
    t.match(body, { type: 'error', error: { message: 'Told.', code, details: { error_code: code } }, request_id: 'r1' })
    const wanted = types[code as ErrorCode]
    if (wanted) t.equal(body.error.type, wanted, code)
    t.equal(
      status >= 500,
      ['api_error', 'overloaded_error', 'rate_limit_error', 'timeout_error'].includes(body.error.type)
    )
  }
  const details = { n_prompt_tokens: 12, n_ctx: 8 }
  const long: any = anthropicErrorBody(new CorralError('context_exceeded', 'x', { details }), { id: 'r' })
  t.match(long.error, { type: 'invalid_request_error', details: { error_code: 'context_exceeded', ...details } })
  t.match(long.error.message, /^prompt is too long: 12 tokens > 8 maximum\. Shorten/)
  const unknown: any = anthropicErrorBody(new CorralError('context_exceeded', 'As it is.'), { id: 'r' })
  t.equal(unknown.error.message, 'As it is.')
  t.end()
})

const HEAD = { id: 'msg_1', model: 'a/b', stopSequences: ['END'] }

function delta(given: Partial<Delta>): Delta {
  return { content: '', thinking: '', toolCalls: [], ...given }
}

function eventsOf(deltas: Partial<Delta>[], head: Partial<typeof HEAD> & object = {}): MessageEvent[] {
  const events = new MessageEvents({ ...HEAD, ...head })
  return [...deltas.flatMap(given => events.add(delta(given))), ...events.end()]
}

function wholeOf(events: MessageEvent[]) {
  const whole = new WholeMessage()
  for (const event of events) whole.take(event)
  return whole.message
}

t.test('the events of an answer', t => {
  const usage = { promptTokens: 10, cachedTokens: 4, completionTokens: 7 }
  const events = eventsOf([
    { promptRead: 0.5, promptTokens: 10, cachedTokens: 4 },
    { thinking: 'hm' },
    { content: '\n\n' },
    { content: 'Hi' },
    { content: ' you' },
    { content: '\n' },
    { toolPieces: [{ index: 0, id: 'c0', name: 'f', arguments: '' }] },
    { toolPieces: [{ index: 0, arguments: '{"a":' }] },
    {
      toolPieces: [
        { index: 0, arguments: '1}' },
        { index: 1, id: 'c1', name: 'g', arguments: '{}' }
      ]
    },
    { content: '\n' },
    { finish: 'stop', usage }
  ])
  const shown = { input_tokens: 6, cache_creation_input_tokens: 0, cache_read_input_tokens: 4, output_tokens: 7 }
  t.strictSame(events, [
    {
      type: 'message_start',
      message: {
        id: 'msg_1',
        type: 'message',
        role: 'assistant',
        model: 'a/b',
        content: [],
        stop_reason: null,
        stop_sequence: null,
        usage: { ...shown, output_tokens: 0 }
      }
    },
    { type: 'ping' },
    { type: 'content_block_start', index: 0, content_block: { type: 'thinking', thinking: '', signature: '' } },
    { type: 'content_block_delta', index: 0, delta: { type: 'thinking_delta', thinking: 'hm' } },
    { type: 'content_block_delta', index: 0, delta: { type: 'signature_delta', signature: 'msg_1' } },
    { type: 'content_block_stop', index: 0 },
    { type: 'content_block_start', index: 1, content_block: { type: 'text', text: '' } },
    { type: 'content_block_delta', index: 1, delta: { type: 'text_delta', text: '\n\nHi' } },
    { type: 'content_block_delta', index: 1, delta: { type: 'text_delta', text: ' you' } },
    { type: 'content_block_delta', index: 1, delta: { type: 'text_delta', text: '\n' } },
    { type: 'content_block_stop', index: 1 },
    {
      type: 'content_block_start',
      index: 2,
      content_block: { type: 'tool_use', id: 'toolu_c0', name: 'f', input: {} }
    },
    { type: 'content_block_delta', index: 2, delta: { type: 'input_json_delta', partial_json: '{"a":' } },
    { type: 'content_block_delta', index: 2, delta: { type: 'input_json_delta', partial_json: '1}' } },
    { type: 'content_block_stop', index: 2 },
    {
      type: 'content_block_start',
      index: 3,
      content_block: { type: 'tool_use', id: 'toolu_c1', name: 'g', input: {} }
    },
    { type: 'content_block_delta', index: 3, delta: { type: 'input_json_delta', partial_json: '{}' } },
    { type: 'content_block_stop', index: 3 },
    { type: 'message_delta', delta: { stop_reason: 'tool_use', stop_sequence: null }, usage: shown },
    { type: 'message_stop' }
  ] as MessageEvent[])
  t.strictSame(wholeOf(events), {
    id: 'msg_1',
    type: 'message',
    role: 'assistant',
    model: 'a/b',
    content: [
      { type: 'thinking', thinking: 'hm', signature: 'msg_1' },
      { type: 'text', text: '\n\nHi you\n' },
      { type: 'tool_use', id: 'toolu_c0', name: 'f', input: { a: 1 } },
      { type: 'tool_use', id: 'toolu_c1', name: 'g', input: {} }
    ],
    stop_reason: 'tool_use',
    stop_sequence: null,
    usage: shown
  })
  t.end()
})

t.test('why an answer ends, and what is left out', t => {
  const piece = (index: number, json: string, name?: string): ToolCallPiece => ({
    index,
    arguments: json,
    ...(name && { name })
  })
  const stopOf = (deltas: Partial<Delta>[], head = {}) => {
    const { stop_reason, stop_sequence, content } = wholeOf(eventsOf(deltas, head))
    return { stop_reason, stop_sequence, content }
  }
  const said = [{ type: 'text', text: 'Hi' }]
  const stopped = (stop_reason: string, stop_sequence: string | null, content: unknown[]) => ({
    stop_reason,
    stop_sequence,
    content
  })
  t.strictSame(stopOf([{ content: 'Hi' }, { finish: 'stop' }]), stopped('end_turn', null, said) as never)
  t.strictSame(stopOf([{ content: 'Hi' }, { finish: 'length' }]), stopped('max_tokens', null, said) as never)
  t.strictSame(
    stopOf([{ content: 'Hi' }, { finish: 'stop', stopSequence: 'END' }]),
    stopped('stop_sequence', 'END', said) as never
  )
  const own = stopOf([{ content: 'Hi' }, { finish: 'stop', stopSequence: '<|im_end|>' }])
  t.strictSame(own, stopped('end_turn', null, said) as never, 'a text that the request did not name')
  t.strictSame(stopOf([{ finish: 'stop' }]), stopped('end_turn', null, []) as never, 'nothing at all')
  t.strictSame(
    stopOf([{ content: ' \n' }, { finish: 'stop' }]),
    stopped('end_turn', null, []) as never,
    'nothing but blanks'
  )
  t.strictSame(
    stopOf([{ thinking: 'hm' }, { content: 'Hi' }, { finish: 'stop' }], { omitThinking: true }).content,
    said as never
  )
  const cut = eventsOf([{ content: 'Hi' }, { toolPieces: [piece(0, '{"a', 'f')] }, { finish: 'length' }])
  t.strictSame(wholeOf(cut).content, said as never, 'half a call is none')
  t.equal(cut.filter(({ type }) => type === 'content_block_start').length, 2, 'a stream shows it as it came')
  const two = [
    { toolPieces: [piece(0, '{}', 'f')] },
    { toolPieces: [piece(1, '{}', 'g')] },
    { finish: 'stop' as const }
  ]
  t.match(stopOf(two, { oneCall: true }).content, [{ name: 'f' }])
  t.equal(stopOf(two, { oneCall: true }).content.length, 1)
  const late = stopOf([{ toolPieces: [piece(0, '{"a"')] }, { toolPieces: [piece(0, ':1}', 'f')] }, { finish: 'stop' }])
  t.match(late.content, [{ type: 'tool_use', id: /^toolu_./, name: 'f', input: { a: 1 } }], 'a name that comes late')
  const between = stopOf([
    { toolPieces: [piece(0, '{"a"', 'f')] },
    { content: 'Hi' },
    { toolPieces: [piece(0, ':1}')] },
    { thinking: 'hm' },
    { finish: 'stop' }
  ])
  t.match(between.content, [{ name: 'f', input: { a: 1 } }, { text: 'Hi' }, { thinking: 'hm' }])
  t.end()
})

/** Numbers from 0 to 1 that a seed decides (mulberry32). */
function numbers(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** What is wrong with a stream's order; undefined when nothing is. */
function fault(events: MessageEvent[]): string | undefined {
  if (events[0]?.type !== 'message_start' || events[1]?.type !== 'ping') return 'does not begin as it must'
  if (events.at(-2)?.type !== 'message_delta' || events.at(-1)?.type !== 'message_stop')
    return 'does not end as it must'
  let open: string | undefined
  let index = 0
  for (const event of events.slice(2, -2)) {
    if (event.type === 'content_block_start') {
      if (open !== undefined) return 'a block begins in another'
      open = event.content_block.type
    } else if (event.type === 'content_block_delta') {
      const kinds = {
        text: ['text_delta'],
        thinking: ['thinking_delta', 'signature_delta'],
        tool_use: ['input_json_delta']
      }
      if (!kinds[open as keyof typeof kinds]?.includes(event.delta.type)) return `${event.delta.type} in ${open}`
    } else if (event.type === 'content_block_stop') {
      if (open === undefined) return 'a block ends that has not begun'
      open = undefined
    } else return `${event.type} in the middle`
    if (event.index !== index) return `block ${event.index} in the place of ${index}`
    if (event.type === 'content_block_stop') index++
  }
  return open === undefined ? undefined : 'a block never ends'
}

t.test('whatever the engine sends, the stream is well-formed and nothing is lost', t => {
  const PIECES = ['a', ' ', '\n\n', 'word ', '{', '"x"', '']
  const faults: string[] = []
  for (let seed = 1; seed <= 3000; seed++) {
    const random = numbers(seed)
    const pick = () => PIECES[Math.floor(random() * PIECES.length)]!
    const said = { text: '', thinking: '' }
    const calls: string[] = []
    const deltas: Partial<Delta>[] = []
    for (let left = Math.floor(random() * 30); left > 0; left--) {
      const given: Partial<Delta> = {}
      if (random() < 0.3) given.thinking = pick()
      if (random() < 0.4) given.content = pick()
      if (random() < 0.4) {
        given.toolPieces = []
        for (let more = 1 + Math.floor(random() * 3); more > 0; more--) {
          const begins = calls.length === 0 || random() < 0.3
          if (begins) calls.push('')
          const json = pick()
          calls[calls.length - 1] += json
          const index = calls.length - 1
          given.toolPieces.push({ index, ...(begins && { id: `c${index}`, name: `f${index}` }), arguments: json })
        }
      }
      said.text += given.content ?? ''
      said.thinking += given.thinking ?? ''
      deltas.push(given)
    }
    deltas.push({ finish: 'stop' })
    const events = eventsOf(deltas)
    const got = { text: '', thinking: '' }
    const json: string[] = []
    const names: string[] = []
    for (const event of events) {
      if (event.type === 'content_block_start' && event.content_block.type === 'tool_use') {
        names.push(event.content_block.name)
        json.push('')
      }
      if (event.type !== 'content_block_delta') continue
      if (event.delta.type === 'text_delta') got.text += event.delta.text
      else if (event.delta.type === 'thinking_delta') got.thinking += event.delta.thinking
      else if (event.delta.type === 'input_json_delta') json[json.length - 1] += event.delta.partial_json
    }
    const words = (of: string) => of.replace(/\s/g, '')
    const wrong =
      fault(events) ??
      (words(got.text) === words(said.text) ? undefined : 'text is lost') ??
      (words(got.thinking) === words(said.thinking) ? undefined : 'thoughts are lost') ??
      (JSON.stringify(json) === JSON.stringify(calls) ? undefined : 'calls are lost') ??
      (names.every((name, index) => name === `f${index}`) ? undefined : 'calls are out of order')
    if (wrong) faults.push(`seed ${seed}: ${wrong}`)
  }
  t.strictSame(faults, [])
  t.end()
})
