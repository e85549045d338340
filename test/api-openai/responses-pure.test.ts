import { accumulateResponse } from 'openai/lib/responses/ResponseAccumulator'
import t, { type Test } from 'tap'
import { CorralError } from '../../core/errors.ts'
import type { Delta } from '../../core/http/engine-answer.ts'
import { engineMessages } from '../../plugins/api-openai/responses/engine-messages.ts'
import { engineFields } from '../../plugins/api-openai/responses/engine-request.ts'
import { readInput } from '../../plugins/api-openai/responses/input-items.ts'
import { pageOf } from '../../plugins/api-openai/responses/item-page.ts'
import type { Item } from '../../plugins/api-openai/responses/items.ts'
import type { ResponseHead, ResponseObject } from '../../plugins/api-openai/responses/response-object.ts'
import { type ResponseEvent, ResponseWriter } from '../../plugins/api-openai/responses/response-writer.ts'
import { StoredResponses } from '../../plugins/api-openai/responses/stored-responses.ts'
import { differs } from './declared-types.ts'

const none = () => undefined

/** Whom something fails with. */
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

t.test('what the client declares is really checked', async t => {
  t.match(differs('ResponseStreamEvent', { type: 'response.nothing', sequence_number: 0 }), /response\.nothing/)
  const delta = { type: 'response.output_text.delta', content_index: 0, item_id: 'x', output_index: 0, logprobs: [] }
  t.equal(differs('ResponseStreamEvent', { ...delta, sequence_number: 0, delta: 'x' }), undefined)
  t.match(differs('ResponseStreamEvent', { ...delta, sequence_number: 0, delta: 7 }), /delta is 7, no string/)
  t.match(differs('ResponseStreamEvent', { ...delta, delta: 'x' }), /sequence_number is missing/)
  t.match(differs('Response', { object: 'response' }), /id is missing/)
})

t.test('input as messages of the engine', async t => {
  const table: [string, string | unknown[], unknown[], string?][] = [
    ['text', 'Hi', [user('Hi')]],
    ['instructions', 'Hi', [{ role: 'system', content: 'Be brief.' }, user('Hi')], 'Be brief.'],
    ['a message without a type', [{ role: 'user', content: 'Hi' }], [user('Hi')]],
    ['one part of text', [{ type: 'message', ...user([{ type: 'input_text', text: 'Hi' }]) }], [user('Hi')]],
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
      'a sound, and nothing of it but data and format',
      [user([{ type: 'input_audio', input_audio: { data: 'UklGR', format: 'wav', url: 'http://127.0.0.1/' } }])],
      [user([{ type: 'input_audio', input_audio: { data: 'UklGR', format: 'wav' } }])]
    ],
    [
      'instructions and what the system says first are one message',
      [{ role: 'developer', content: 'You are Leo.' }, { role: 'system', content: 'Rhyme.' }, user('Hi')],
      [{ role: 'system', content: 'Be brief.\n\nYou are Leo.\n\nRhyme.' }, user('Hi')],
      'Be brief.'
    ],
    [
      'what the system says later stays where it is',
      [user('Hi'), { role: 'developer', content: 'Now rhyme.' }],
      [user('Hi'), { role: 'system', content: 'Now rhyme.' }]
    ],
    [
      'reasoning, text and calls of one turn are one message',
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
      'a summary where there is no more of the reasoning; calls without text',
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
      'reasoning that was cut off, and a call that was',
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
      'two messages of the assistant stay two; a refusal is what it said',
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

t.test('places of what messages are made of', async t => {
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

t.test('items in full', async t => {
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

t.test('input that cannot be read', async t => {
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
    [call('call_1', 'look', '{'), 'invalid_request', 'input[0].arguments'],
    [{ ...call('call_1', 'look'), arguments: {} }, 'invalid_request', 'input[0].arguments'],
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

const TOOL = { type: 'function', name: 'look', description: 'Looks', parameters: { type: 'object' }, strict: false }
const ENGINE_TOOL = {
  type: 'function',
  function: { name: 'look', description: 'Looks', parameters: { type: 'object' }, strict: false }
}
const OTHER = { type: 'function', name: 'ask' }
const ENGINE_OTHER = { type: 'function', function: { name: 'ask', strict: true } }

t.test('what a request asks of the engine', async t => {
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
    [{ include: ['message.output_text.logprobs'] }, { n_probs: 1, post_sampling_probs: false }],
    [
      { top_logprobs: 4, tools: [TOOL] },
      { n_probs: 4, post_sampling_probs: false, tools: [ENGINE_TOOL] }
    ]
  ]
  for (const [request, fields] of table) t.strictSame(engineFields(request).fields, fields, JSON.stringify(request))

  t.strictSame(engineFields({ num_ctx: 512, options: { num_ctx: 99, num_parallel: 2 } } as object).load, {
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
    t.equal(engineFields(request as object).overflow, overflow, JSON.stringify(request))
  }
})

t.test('requests for what there is not', async t => {
  const table: [Record<string, unknown>, string, string][] = [
    [{ background: true }, 'unsupported_capability', 'background'],
    [{ conversation: 'conv_1' }, 'unsupported_capability', 'conversation'],
    [{ prompt: { id: 'pmpt_1' } }, 'unsupported_capability', 'prompt'],
    [{ context_management: [{ type: 'compaction' }] }, 'unsupported_capability', 'context_management'],
    [{ moderation: { model: 'x' } }, 'unsupported_capability', 'moderation'],
    [{ tools: [TOOL, { type: 'web_search' }] }, 'unsupported_capability', 'tools[1].type'],
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
  t.ok(engineFields({ background: false, conversation: null, prompt: null } as object), 'what says no is no wish')
})

function headOf(request: object = {}): ResponseHead {
  const given = { model: 'corral/tiny-chat', input: 'Hi', ...request }
  return {
    id: 'resp_1',
    createdAt: 1,
    request: given,
    engine: engineFields(given),
    sampling: { temperature: 0.7, top_p: 0.9 },
    truncation: 'disabled'
  }
}

const piece = (given: Partial<Delta>): Delta => ({ content: '', thinking: '', toolCalls: [], ...given })

/** Runs a writer over pieces, and checks what holds of every stream of events. */
function write(t: Test, head: ResponseHead, deltas: Delta[]): { events: ResponseEvent[]; response: ResponseObject } {
  const writer = new ResponseWriter(head)
  // What was sent is what it was then: later pieces change nothing of it.
  const sent = (events: ResponseEvent[]) => structuredClone(events)
  const events = deltas.flatMap(delta => sent(writer.take(delta)))
  const last = writer.complete()
  events.push(...sent(last.events))
  check(t, events, last.response)
  return { events, response: last.response }
}

function check(t: Test, events: ResponseEvent[], response: ResponseObject): void {
  const faults: unknown[] = []
  const expect = (holds: boolean, what: unknown) => {
    if (!holds) faults.push(what)
  }
  let snapshot: any
  const texts = new Map<unknown, string>()
  const open = new Set<unknown>()
  const added: unknown[] = []
  events.forEach((event, index) => {
    expect(event.sequence_number === index, `sequence number ${event.sequence_number} at ${index}`)
    expect(differs('ResponseStreamEvent', event) === undefined, differs('ResponseStreamEvent', event))
    snapshot = accumulateResponse(event as never, snapshot)
    const { type, item, item_id, delta } = event as { type: string; item?: any; item_id?: string; delta?: string }
    if (type === 'response.output_item.added') {
      expect(open.size === 0, 'an item begins before the one before has ended')
      open.add(item.id)
      added.push(item.id)
    }
    if (item_id) expect(open.has(item_id), `${type} outside of its item`)
    if (type.endsWith('.delta')) texts.set(item_id, (texts.get(item_id) ?? '') + delta)
    const whole = event.text ?? (type === 'response.function_call_arguments.done' ? event.arguments : undefined)
    if (whole !== undefined) expect(whole === (texts.get(item_id) ?? ''), `${type} is not what its pieces join to`)
    if (type === 'response.output_item.done') {
      expect(open.delete(item.id), 'an item ended that had not begun')
      expect(JSON.stringify(item) === JSON.stringify(response.output[event.output_index as number]), 'item differs')
    }
  })
  expect(open.size === 0, 'an item has not ended')
  expect(events[0]?.type === 'response.created' && events[1]?.type === 'response.in_progress', 'the beginning')
  expect(events.at(-1)?.type === `response.${response.status}`, 'the end')
  expect(JSON.stringify(added) === JSON.stringify(response.output.map(({ id }) => id)), 'items in their order')
  expect(differs('Response', response) === undefined, differs('Response', response))
  t.strictSame(faults, [], 'events')
  t.match(snapshot, JSON.parse(JSON.stringify(response)), 'what the client makes of the events is the response')
}

t.test('events of an answer with everything', async t => {
  const usage = (completionTokens: number) => ({ promptTokens: 20, cachedTokens: 5, completionTokens })
  const { events, response } = write(t, headOf({ tools: [TOOL] }), [
    piece({ promptRead: 1 }),
    piece({ thinking: 'H', usage: usage(1) }),
    piece({ thinking: 'm.', usage: usage(3) }),
    piece({ content: 'Let ', usage: usage(5) }),
    piece({ content: 'me see.' }),
    piece({ toolPieces: [{ index: 0, id: 'X'.repeat(32), name: 'look', arguments: '' }] }),
    piece({ toolPieces: [{ index: 0, arguments: '{"a":' }] }),
    piece({
      toolPieces: [
        { index: 0, arguments: '1}' },
        { index: 1, id: 'own:1', name: 'ask', arguments: '{}' }
      ]
    }),
    piece({ toolPieces: [{ index: 2, name: 'look', arguments: '{}' }] }),
    piece({ finish: 'stop', usage: usage(40) })
  ])
  t.strictSame(
    events.map(({ type }) => type.replace('response.', '')),
    [
      ...['created', 'in_progress'],
      ...['output_item.added', 'content_part.added', 'reasoning_text.delta', 'reasoning_text.delta'],
      ...['reasoning_text.done', 'content_part.done', 'output_item.done'],
      ...['output_item.added', 'content_part.added', 'output_text.delta', 'output_text.delta'],
      ...['output_text.done', 'content_part.done', 'output_item.done'],
      ...['output_item.added', 'function_call_arguments.delta', 'function_call_arguments.delta'],
      ...['function_call_arguments.done', 'output_item.done'],
      ...['output_item.added', 'function_call_arguments.delta', 'function_call_arguments.done', 'output_item.done'],
      ...['output_item.added', 'function_call_arguments.delta', 'function_call_arguments.done', 'output_item.done'],
      'completed'
    ]
  )
  t.match(response, {
    status: 'completed',
    incomplete_details: null,
    tools: [TOOL],
    output: [
      { type: 'reasoning', id: /^rs_/, content: [{ text: 'Hm.' }], status: 'completed' },
      { type: 'message', id: /^msg_/, content: [{ text: 'Let me see.' }], status: 'completed' },
      { type: 'function_call', id: /^fc_/, call_id: `call_${'X'.repeat(32)}`, name: 'look', arguments: '{"a":1}' },
      { type: 'function_call', call_id: 'own:1', name: 'ask', arguments: '{}' },
      { type: 'function_call', call_id: /^call_[0-9a-f]{48}$/, name: 'look', arguments: '{}' }
    ],
    usage: {
      input_tokens: 20,
      input_tokens_details: { cached_tokens: 5 },
      output_tokens: 40,
      output_tokens_details: { reasoning_tokens: 3 },
      total_tokens: 60
    }
  })
})

t.test('answers that are cut, or empty', async t => {
  const cut = write(t, headOf(), [piece({ content: 'Once' }), piece({ finish: 'length' })]).response
  t.match(cut, {
    status: 'incomplete',
    completed_at: null,
    incomplete_details: { reason: 'max_output_tokens' },
    output: [{ status: 'incomplete', content: [{ text: 'Once' }] }]
  })
  const thought = write(t, headOf(), [piece({ thinking: 'Hm' }), piece({ finish: 'length' })]).response
  t.match(thought, { status: 'incomplete', output: [{ type: 'reasoning', status: 'incomplete' }] })
  t.equal(thought.output.length, 1)
  const empty = write(t, headOf(), [piece({ finish: 'stop' })]).response
  t.match(empty, { status: 'completed', output: [{ type: 'message', content: [{ text: '' }] }] })
})

t.test('log probabilities', async t => {
  const token = (text: string, logprob: number) => ({ id: 7, token: text, bytes: [...Buffer.from(text)], logprob })
  const given = [{ ...token('Pa', -0.1), top_logprobs: [token('Pa', -0.1), token('Ro', -2)] }]
  const told = { token: 'Pa', bytes: [80, 97], logprob: -0.1 }
  for (const [request, expected] of [
    [{}, []],
    [{ include: ['message.output_text.logprobs'] }, [{ ...told, top_logprobs: [] }]],
    [{ top_logprobs: 1 }, [{ ...told, top_logprobs: [told] }]]
  ] as const) {
    const { events, response } = write(t, headOf(request), [piece({ content: 'Pa', logprobs: given })])
    t.strictSame((response.output[0] as any).content[0].logprobs, expected, JSON.stringify(request))
    t.strictSame(events.find(({ type }) => type === 'response.output_text.delta')!.logprobs, expected)
  }
})

t.test('an answer that breaks off', async t => {
  const broken = new CorralError('engine_crashed', 'It broke.')
  for (const [code, word] of [
    ['engine_crashed', 'server_error'],
    ['queue_full', 'rate_limit_exceeded'],
    ['context_exceeded', 'invalid_prompt']
  ] as const) {
    const events = new ResponseWriter(headOf()).fail(new CorralError(code, 'It broke.'))
    t.match(events[2], { type: 'response.failed', response: { error: { code: word, message: 'It broke.' } } })
  }
  const writer = new ResponseWriter(headOf())
  const events = [...writer.take(piece({ content: 'Once' })), ...writer.fail(broken)]
  t.strictSame(
    events.map(({ sequence_number, type }) => [sequence_number, type]),
    [
      [0, 'response.created'],
      [1, 'response.in_progress'],
      [2, 'response.output_item.added'],
      [3, 'response.content_part.added'],
      [4, 'response.output_text.delta'],
      [5, 'response.failed'],
      [6, 'error']
    ]
  )
  for (const event of events) t.equal(differs('ResponseStreamEvent', event), undefined)
  t.match(events[5]!.response, { status: 'failed', output: [{ status: 'incomplete', content: [{ text: 'Once' }] }] })
  t.match(events[6], { code: 'engine_crashed', message: 'It broke.', param: null, error: { type: 'server_error' } })
})

/** Numbers that are the same in each run. */
function random(seed: number): (below: number) => number {
  let state = seed
  return below => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
}

t.test('events of any answer', async t => {
  const next = random(5)
  const text = () => ['a', 'ä', '€', '🦙', ' b', '\n', '{"'][next(7)]!
  for (let round = 0; round < 150; round++) {
    let called = -1
    const deltas = Array.from({ length: next(12) }, () => {
      switch (next(5)) {
        case 0:
          return piece({ thinking: text() })
        case 1:
          return piece({ content: text() })
        case 2:
          called++
          return piece({
            toolPieces: [{ index: called, id: `id${called}`, name: 'f', arguments: next(2) ? text() : '' }]
          })
        case 3:
          return called < 0 ? piece({}) : piece({ content: text(), toolPieces: [{ index: called, arguments: text() }] })
        default:
          return piece({ thinking: text(), content: text() })
      }
    })
    deltas.push(piece({ finish: next(2) ? 'stop' : 'length' }))
    write(t, headOf(), deltas)
  }
})

function stored(id: string, input: Item[], output: Item[], more: object = {}) {
  return { response: { id, output, ...more } as unknown as ResponseObject, input }
}
const itemOf = (id: string, text: string): Item => ({
  type: 'message',
  id,
  status: 'completed',
  role: 'user',
  content: [{ type: 'input_text', text }]
})

t.test('stored responses: the oldest go, what they share stays', async t => {
  const [first, second, third] = ['1', '2', '3'].map(id => itemOf(`msg_${id}`, 'x'.repeat(1000)))
  const all = [
    stored('a', [first!], []),
    stored('b', [first!, second!], []),
    stored('c', [first!, second!, third!], []),
    stored('d', [itemOf('msg_4', 'x')], [])
  ]
  const roomy = new StoredResponses(1e6)
  const sizes = all.map(response => {
    roomy.add(response)
    return roomy.bytes
  })
  t.ok(sizes[1]! < 2.2 * sizes[0]!, 'what two responses share is counted once')
  t.strictSame(roomy.get('a').input, [first])
  t.strictSame([...roomy.itemsById().keys()], ['msg_1', 'msg_2', 'msg_3', 'msg_4'])

  const responses = new StoredResponses(roomy.bytes - 1)
  for (const response of all) responses.add(response)
  t.match(
    failure(() => responses.get('a')),
    { code: 'response_not_found', param: 'response_id' }
  )
  responses.get('d')
  responses.add(stored('e', [itemOf('msg_5', 'x'.repeat(5000))], []))
  t.match(
    failure(() => responses.get('e', 'previous_response_id')),
    { code: 'response_not_found', param: 'previous_response_id' }
  )
  t.strictSame(responses.get('c').input, [first, second, third], 'one that is too large takes no room from others')
  for (const id of ['b', 'c', 'd']) {
    try {
      responses.delete(id)
    } catch (error) {
      t.match(error, { code: 'response_not_found' })
    }
  }
  t.equal(responses.bytes, 0)
  t.equal(responses.itemsById().size, 0)
  const nothing = new StoredResponses(0)
  nothing.add(stored('a', [first!], []))
  t.equal(nothing.bytes, 0)
})

t.test('stored responses: bytes are counted right whatever comes and goes', async t => {
  const next = random(9)
  const responses = new StoredResponses(20_000)
  const items = Array.from({ length: 40 }, (_, index) => itemOf(`msg_${index}`, 'x'.repeat(next(900))))
  const ids: string[] = []
  for (let step = 0; step < 500; step++) {
    if (next(4)) {
      ids.push(`r${step}`)
      const input = Array.from({ length: next(8) }, () => items[next(items.length)]!)
      responses.add(stored(`r${step}`, input, [items[next(items.length)]!], { text: 'y'.repeat(next(3000)) }))
    } else if (ids.length > 0) {
      try {
        responses.delete(ids.splice(next(ids.length), 1)[0]!)
      } catch {
        // It had to go before.
      }
    }
    if (responses.bytes > 20_000) t.fail(`holds ${responses.bytes} bytes`)
  }
  for (const id of ids) {
    try {
      responses.delete(id)
    } catch {
      // It had to go before.
    }
  }
  t.equal(responses.bytes, 0)
})

t.test('pages of items', async t => {
  const items = ['a', 'b', 'c', 'd', 'e'].map(id => itemOf(id, ''))
  const ids = (page: ReturnType<typeof pageOf>) => page.data.map(({ id }) => id).join('')
  t.equal(ids(pageOf(items, {})), 'edcba')
  t.equal(ids(pageOf(items, { order: 'asc' })), 'abcde')
  const page = pageOf(items, { limit: 2, after: 'd' })
  t.match(page, { object: 'list', first_id: 'c', last_id: 'b', has_more: true })
  t.match(pageOf(items, { limit: 2, after: 'b' }), { first_id: 'a', last_id: 'a', has_more: false })
  t.match(pageOf([], {}), { data: [], first_id: null, last_id: null, has_more: false })
  // Pages end even where a client gave its items one id.
  const same = ['a', 'x', 'x', 'b'].map(id => itemOf(id, ''))
  t.equal(ids(pageOf(same, { order: 'asc', limit: 2, after: 'x' })), 'b')
})
