import t from 'tap'
import { CorralError } from '../../../../core/errors.ts'
import { parseRequestOptions } from '../../../../core/models/options.ts'
import { engineMessages, engineRequest, readInput } from '../../../../plugins/apis/openai/responses/response-request.ts'
import type { Item } from '../../../../plugins/apis/openai/responses/schemas.ts'
import { differs } from './declared-types.ts'
import { TOOL } from './support.ts'

const none = () => undefined
/** Builds the engine's request, without the input. */
const engineFields = (request: object) =>
  engineRequest(request, parseRequestOptions(request as Record<string, unknown>))

/** Returns the error that a function throws. */
function failure(run: () => unknown): Pick<CorralError, 'code' | 'param' | 'message'> {
  try {
    run()
  } catch (error) {
    if (error instanceof CorralError) return { code: error.code, param: error.param, message: error.message }
    throw error
  }
  throw new Error('It did not fail.')
}

function messagesOf(input: string | unknown[], instructions?: string) {
  const items = readInput(input, none)
  return engineMessages(
    items.map((item, index) => ({ item, place: `input[${index}]` })),
    instructions
  )
}

const PIXEL = 'data:image/png;base64,iVBORw0KGgo='
const user = (content: unknown) => ({ role: 'user', content })
const call = (call_id: string, name: string, args = '{"a":1}') => ({
  type: 'function_call',
  call_id,
  name,
  arguments: args
})
const engineCall = (id: string, name: string, args = '{"a":1}') => ({
  id,
  type: 'function',
  function: { name, arguments: args }
})

t.test('converts input to messages for the engine', async t => {
  const table: [string, string | unknown[], unknown[], string?][] = [
    ['text', 'Hi', [user('Hi')]],
    ['instructions', 'Hi', [{ role: 'system', content: 'Be brief.' }, user('Hi')], 'Be brief.'],
    ['a message without a type', [{ role: 'user', content: 'Hi' }], [user('Hi')]],
    ['a single text part', [{ type: 'message', ...user([{ type: 'input_text', text: 'Hi' }]) }], [user('Hi')]],
    [
      'an image',
      [
        user([
          { type: 'input_text', text: 'What is this?' },
          { type: 'input_image', image_url: PIXEL, detail: 'low' }
        ])
      ],
      [
        user([
          { type: 'text', text: 'What is this?' },
          { type: 'image_url', image_url: { url: PIXEL } }
        ])
      ]
    ],
    [
      'audio with only data and format',
      [user([{ type: 'input_audio', input_audio: { data: 'UklGR', format: 'wav', url: 'http://127.0.0.1/' } }])],
      [user([{ type: 'input_audio', input_audio: { data: 'UklGR', format: 'wav' } }])]
    ],
    [
      'instructions and leading system messages are merged',
      [{ role: 'developer', content: 'You are Leo.' }, { role: 'system', content: 'Rhyme.' }, user('Hi')],
      [{ role: 'system', content: 'Be brief.\n\nYou are Leo.\n\nRhyme.' }, user('Hi')],
      'Be brief.'
    ],
    [
      'later system messages stay in place',
      [user('Hi'), { role: 'developer', content: 'Now rhyme.' }],
      [user('Hi'), { role: 'system', content: 'Now rhyme.' }]
    ],
    [
      'consecutive reasoning, text and calls become one message',
      [
        user('Hi'),
        { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'Hm.' }] },
        { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'Let me see.' }] },
        call('call_1', 'look'),
        call('call_2', 'ask', ''),
        { type: 'function_call_output', call_id: 'call_2', output: 'no' },
        { type: 'function_call_output', call_id: 'call_1', output: [{ type: 'input_text', text: 'yes' }] }
      ],
      [
        user('Hi'),
        {
          role: 'assistant',
          reasoning_content: 'Hm.',
          content: 'Let me see.',
          tool_calls: [engineCall('call_1', 'look'), engineCall('call_2', 'ask', '{}')]
        },
        { role: 'tool', tool_call_id: 'call_2', name: 'ask', content: 'no' },
        { role: 'tool', tool_call_id: 'call_1', name: 'look', content: 'yes' }
      ]
    ],
    [
      'a call of a namespaced function',
      [
        user('Hi'),
        { ...call('call_1', 'look'), namespace: 'crm' },
        { type: 'function_call_output', call_id: 'call_1', output: 'yes' }
      ],
      [
        user('Hi'),
        { role: 'assistant', tool_calls: [engineCall('call_1', 'crm__look')] },
        { role: 'tool', tool_call_id: 'call_1', name: 'crm__look', content: 'yes' }
      ]
    ],
    [
      'a summary without reasoning, and calls without text',
      [
        user('Hi'),
        { type: 'reasoning', id: 'rs_1', summary: [{ type: 'summary_text', text: 'Hm.' }], encrypted_content: 'x' },
        call('call_1', 'look'),
        { type: 'function_call_output', call_id: 'call_1', output: 'yes' },
        call('call_2', 'look'),
        { type: 'function_call_output', call_id: 'call_2', output: 'no' },
        { role: 'assistant', content: 'Both.' }
      ],
      [
        user('Hi'),
        { role: 'assistant', reasoning_content: 'Hm.', tool_calls: [engineCall('call_1', 'look')] },
        { role: 'tool', tool_call_id: 'call_1', name: 'look', content: 'yes' },
        { role: 'assistant', tool_calls: [engineCall('call_2', 'look')] },
        { role: 'tool', tool_call_id: 'call_2', name: 'look', content: 'no' },
        { role: 'assistant', content: 'Both.' }
      ]
    ],
    [
      'truncated reasoning and a truncated call',
      [
        user('Hi'),
        { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: 'Hm' }], status: 'incomplete' },
        user('Go on.'),
        { ...call('call_1', 'look', '{"a'), status: 'incomplete' },
        user('Go on!')
      ],
      [user('Hi'), { role: 'assistant', reasoning_content: 'Hm', content: '' }, user('Go on.'), user('Go on!')]
    ],
    [
      'two assistant messages stay separate, and a refusal becomes text',
      [
        user('Hi'),
        { role: 'assistant', content: 'A' },
        { role: 'assistant', content: [{ type: 'refusal', refusal: 'No.' }] }
      ],
      [user('Hi'), { role: 'assistant', content: 'A' }, { role: 'assistant', content: 'No.' }]
    ]
  ]
  for (const [what, input, expected, instructions] of table) {
    t.strictSame(messagesOf(input, instructions).messages, expected, what)
  }
})

t.test('reports the input item of each message', async t => {
  const input = [
    { role: 'system', content: 'Rhyme.' },
    user([{ type: 'input_image', image_url: PIXEL }]),
    call('call_1', 'look'),
    { type: 'function_call_output', call_id: 'call_1', output: [{ type: 'input_image', image_url: PIXEL }] }
  ]
  t.strictSame(messagesOf(input, 'Be brief.').places, [
    'instructions',
    'input[1].content',
    'previous_response_id',
    'input[3].output'
  ])
})

t.test('completes items and resolves references', async t => {
  const stored: Item = {
    type: 'function_call',
    id: 'fc_1',
    status: 'completed',
    call_id: 'call_1',
    name: 'look',
    arguments: '{}'
  }
  const items = readInput(
    [user('Hi'), { type: 'item_reference', id: 'fc_1' }, { id: 'fc_1' }, { ...user('Hi'), id: 'msg_mine' }],
    id => (id === 'fc_1' ? stored : undefined)
  )
  t.match(items[0], { id: /^msg_[0-9a-f]{48}$/, status: 'completed', content: [{ type: 'input_text', text: 'Hi' }] })
  t.equal(items[1], stored)
  t.equal(items[2], stored, 'a reference without a type')
  t.equal(items[3]!.id, 'msg_mine')
  for (const item of items) t.equal(differs('ResponseItem', item), undefined)
})

t.test('refuses invalid input and names the place', async t => {
  const long = 'secret '.repeat(20)
  const table: [unknown, string, string][] = [
    [null, 'invalid_request', 'input[0]'],
    ['Hi', 'invalid_request', 'input[0]'],
    [{}, 'invalid_request', 'input[0].type'],
    [{ type: 7 }, 'invalid_request', 'input[0].type'],
    [{ type: 'web_search_call', id: 'ws_1' }, 'unsupported_capability', 'input[0].type'],
    [{ type: long }, 'unsupported_capability', 'input[0].type'],
    [{ role: 'robot', content: 'Hi' }, 'invalid_request', 'input[0].role'],
    [{ role: 'user' }, 'invalid_request', 'input[0].content'],
    [user([7]), 'invalid_request', 'input[0].content[0]'],
    [user([{ type: 'input_text' }]), 'invalid_request', 'input[0].content[0].text'],
    [user([{ text: 'Hi' }]), 'invalid_request', 'input[0].content[0].type'],
    [user([{ type: 'input_file', file_data: 'x' }]), 'unsupported_capability', 'input[0].content[0].type'],
    [user([{ type: 'input_image', file_id: 'file_1' }]), 'unsupported_capability', 'input[0].content[0].file_id'],
    [user([{ type: 'computer_screenshot' }]), 'unsupported_capability', 'input[0].content[0].type'],
    [{ role: 'assistant', content: [{ type: 'output_text' }] }, 'invalid_request', 'input[0].content[0]'],
    [{ type: 'function_call', name: 'look' }, 'invalid_request', 'input[0].call_id'],
    [{ type: 'function_call', call_id: 'call_1' }, 'invalid_request', 'input[0].name'],
    [{ type: 'function_call_output', output: 'x' }, 'invalid_request', 'input[0].call_id'],
    [{ type: 'function_call_output', call_id: 'call_1' }, 'invalid_request', 'input[0].output'],
    [{ type: 'reasoning', content: [{}] }, 'invalid_request', 'input[0].content[0].text'],
    [{ type: 'reasoning', summary: 'x' }, 'invalid_request', 'input[0].summary'],
    [{ type: 'item_reference' }, 'invalid_request', 'input[0].id'],
    [{ type: 'item_reference', id: 'msg_1' }, 'response_not_found', 'input[0].id']
  ]
  for (const [item, code, param] of table) {
    const found = failure(() => messagesOf([item]))
    t.match(found, { code, param }, JSON.stringify(item))
    t.notMatch(found.message, /secret/)
    t.match(found.message, /[.!]$/)
  }
})

const ENGINE_TOOL = {
  type: 'function',
  function: { name: 'look', description: 'Looks', parameters: { type: 'object' }, strict: false }
}
const OTHER = { type: 'function', name: 'ask' }
const ENGINE_OTHER = { type: 'function', function: { name: 'ask', strict: true } }

t.test('converts request fields for the engine', async t => {
  const schema = { type: 'object', properties: {} }
  const table: [Record<string, unknown>, Record<string, unknown>][] = [
    [{ input: 'Hi', stream: true, store: false, metadata: { a: 'b' }, user: 'x', include: [] }, {}],
    [
      { max_output_tokens: 5, options: { num_predict: 9, min_p: 0.1 } },
      { max_tokens: 5, min_p: 0.1 }
    ],
    [
      { temperature: 0, top_p: 0.5, options: { temperature: 1, seed: 3 } },
      { temperature: 0, top_p: 0.5, seed: 3 }
    ],
    [
      { stop: ['x'], min_p: 0.2, n: 3, messages: [], temperature: null },
      { stop: ['x'], min_p: 0.2 }
    ],
    [{ tools: [TOOL, OTHER] }, { tools: [ENGINE_TOOL, ENGINE_OTHER] }],
    [{ tools: [TOOL], tool_choice: 'none' }, {}],
    [
      { tools: [TOOL], tool_choice: 'required' },
      { tools: [ENGINE_TOOL], tool_choice: 'required' }
    ],
    [
      { tools: [TOOL, OTHER], tool_choice: { type: 'function', name: 'ask' } },
      { tools: [ENGINE_OTHER], tool_choice: 'required' }
    ],
    [
      {
        tools: [TOOL, OTHER],
        tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [{ type: 'function', name: 'look' }] },
        parallel_tool_calls: false
      },
      { tools: [ENGINE_TOOL], tool_choice: 'auto', parallel_tool_calls: false }
    ],
    [{ tool_choice: 'auto', tools: [] }, {}],
    [{ text: { format: { type: 'text' } } }, {}],
    [{ text: { format: { type: 'json_object' } } }, { response_format: { type: 'json_object' } }],
    [
      { text: { format: { type: 'json_schema', name: 'x', schema, strict: true } } },
      {
        response_format: {
          type: 'json_schema',
          json_schema: { name: 'x', schema, strict: true, description: undefined }
        }
      }
    ],
    [{ reasoning: { effort: 'low', summary: 'auto' } }, { reasoning_effort: 'low' }],
    [{ include: ['message.output_text.logprobs'] }, { logprobs: true, top_logprobs: 0 }],
    [
      { top_logprobs: 4, tools: [TOOL] },
      { logprobs: true, top_logprobs: 4, tools: [ENGINE_TOOL] }
    ]
  ]
  for (const [request, fields] of table) t.strictSame(engineFields(request).fields, fields, JSON.stringify(request))

  t.strictSame(parseRequestOptions({ num_ctx: 512, options: { num_ctx: 99, num_parallel: 2 } }).load, {
    num_ctx: 512,
    num_parallel: 2
  })
  for (const [request, overflow] of [
    [{}, undefined],
    [{ truncation: 'auto' }, 'drop_oldest'],
    [{ truncation: 'disabled', options: { context_overflow: 'drop_oldest' } }, 'error'],
    [{ options: { context_overflow: 'drop_oldest' } }, 'drop_oldest'],
    [{ context_overflow: 'drop_oldest', options: { context_overflow: 'error' } }, 'drop_oldest']
  ] as const) {
    t.equal(engineFields(request).overflow, overflow, JSON.stringify(request))
  }
})

t.test('ignores unsupported tools that agents send to every server', async t => {
  const group = {
    type: 'namespace',
    name: 'crm',
    description: 'Customers.',
    tools: [TOOL, { type: 'custom', name: 'x' }]
  }
  const { tools, fields } = engineFields({
    tools: [{ type: 'web_search' }, TOOL, group, { type: 'local_shell' }, { ...group, name: 'none', tools: [] }]
  })
  t.match(tools, [TOOL, { type: 'namespace', name: 'crm', description: 'Customers.', tools: [TOOL] }])
  t.equal(tools.length, 2, 'the reply lists only supported tools')
  const offered = fields.tools as { function: { name: string } }[]
  t.strictSame(
    offered.map(tool => tool.function.name),
    [TOOL.name, `crm__${TOOL.name}`]
  )
})

t.test('refuses unsupported features', async t => {
  const table: [Record<string, unknown>, string, string][] = [
    [{ background: true }, 'unsupported_capability', 'background'],
    [{ conversation: 'conv_1' }, 'unsupported_capability', 'conversation'],
    [{ prompt: { id: 'pmpt_1' } }, 'unsupported_capability', 'prompt'],
    [{ context_management: [{ type: 'compaction' }] }, 'unsupported_capability', 'context_management'],
    [{ moderation: { model: 'x' } }, 'unsupported_capability', 'moderation'],
    [{ tools: [{ type: 'web_search' }, { type: 'mcp' }] }, 'unsupported_capability', 'tools[0].type'],
    [{ tools: [TOOL, { type: 'namespace', tools: [TOOL] }] }, 'invalid_request', 'tools[1].name'],
    [{ tools: [{ type: 'namespace', name: 'x' }] }, 'invalid_request', 'tools[0].tools'],
    [{ tools: [{ type: 'namespace', name: 'x', tools: ['y'] }] }, 'invalid_request', 'tools[0].tools[0]'],
    [
      { tools: [{ type: 'namespace', name: 'x', tools: [{ type: 'function' }] }] },
      'invalid_request',
      'tools[0].tools[0].name'
    ],
    [
      { tools: [TOOL, { type: 'web_search' }], tool_choice: { type: 'function', name: 'web_search' } },
      'invalid_request',
      'tool_choice.name'
    ],
    [{ tools: [{ type: 'custom', name: 'x' }] }, 'unsupported_capability', 'tools[0].type'],
    [{ tools: [{ name: 'x' }] }, 'invalid_request', 'tools[0].type'],
    [{ tools: [{ type: 'function', function: { name: 'x' } }] }, 'invalid_request', 'tools[0].name'],
    [{ tools: [{ ...TOOL, parameters: 'x' }] }, 'invalid_request', 'tools[0].parameters'],
    [{ tool_choice: 'required' }, 'invalid_request', 'tool_choice'],
    [{ tools: [TOOL], tool_choice: 'some' }, 'invalid_request', 'tool_choice'],
    [{ tools: [TOOL], tool_choice: { type: 'web_search_preview' } }, 'invalid_request', 'tool_choice'],
    [{ tools: [TOOL], tool_choice: { type: 'function', name: 'ask' } }, 'invalid_request', 'tool_choice.name'],
    [
      { tools: [TOOL], tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [{ name: 'ask' }] } },
      'invalid_request',
      'tool_choice.tools[0].name'
    ],
    [{ tools: [TOOL], tool_choice: { type: 'allowed_tools', mode: 'auto' } }, 'invalid_request', 'tool_choice.tools'],
    [{ tools: [TOOL], tool_choice: { type: 'allowed_tools', tools: [TOOL] } }, 'invalid_request', 'tool_choice.mode'],
    [{ text: { format: { type: 'grammar' } } }, 'invalid_request', 'text.format.type'],
    [{ text: { format: { type: 'json_schema', name: 'x' } } }, 'invalid_request', 'text.format.schema'],
    [{ options: { top_k: 'x' } }, 'invalid_option', 'top_k']
  ]
  for (const [request, code, param] of table) {
    t.match(
      failure(() => engineFields(request)),
      { code, param },
      JSON.stringify(request)
    )
  }
  t.ok(engineFields({ background: false, conversation: null, prompt: null }), 'false and null are not requests')
})
