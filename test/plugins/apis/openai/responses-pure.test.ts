import { Ajv } from 'ajv'
import { accumulateResponse } from 'openai/lib/responses/ResponseAccumulator'
import t, { type Test } from 'tap'
import type { Delta } from '../../../../core/contracts/engines.ts'
import { CorralError } from '../../../../core/errors.ts'
import { parseRequestOptions } from '../../../../core/models/options.ts'
import { addedTools } from '../../../../plugins/apis/openai/responses/call-items.ts'
import { engineMessages, engineRequest, readInput } from '../../../../plugins/apis/openai/responses/response-request.ts'
import {
  type ResponseEvent,
  type ResponseHead,
  type ResponseObject,
  ResponseWriter
} from '../../../../plugins/apis/openai/responses/response-writer.ts'
import type { Item } from '../../../../plugins/apis/openai/responses/schemas.ts'
import { itemPage, StoredResponses } from '../../../../plugins/apis/openai/responses/stored-responses.ts'
import { readCases } from '../../../support/cases.ts'
import { randomBelow, randomNumbers } from '../../../support/random.ts'
import { randomValue, sdkShapes } from '../../../support/sdk-types.ts'
import { thorough } from '../../../support/thorough.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { mustBe, typeFaults } from './declared-types.ts'
import { RESPONSES, randomItems } from './random-items.ts'
import { refusal, TOOL } from './support.ts'

const CASES = readCases('responses-requests')

t.test('the check against declared types detects differences', thorough, async t => {
  const delta = { type: 'response.output_text.delta', content_index: 0, item_id: 'x', output_index: 0, logprobs: [] }
  mustBe('ResponseStreamEvent', { ...delta, sequence_number: 0, delta: 'x' })
  mustBe('ResponseStreamEvent', { type: 'response.nothing', sequence_number: 0 })
  mustBe('ResponseStreamEvent', { ...delta, sequence_number: 0, delta: 7 })
  mustBe('ResponseStreamEvent', { ...delta, delta: 'x' })
  mustBe('Response', { object: 'response' })
  const faults = typeFaults()
  const expected = [/response\.nothing/, /'number' is not assignable to type 'string'/, /'sequence_number' is missing/]
  for (const fault of [...expected, /missing the following properties from type 'Response': id/]) t.match(faults, fault)
  const lines = [...faults.matchAll(/^\S+\((\d+),/gm)].map(([, line]) => Number(line))
  const wrong = [...new Set(lines)].map(line => line - lines[0]!)
  t.same(wrong, [0, 1, 2, 3], 'each wrong value is a fault, and the right one on the line before is none')
})

function headOf(request: object = {}): ResponseHead {
  const given = { model: 'corral/tiny-chat', input: 'Hi', ...request }
  return {
    id: 'resp_1',
    createdAt: 1,
    request: given,
    engine: engineRequest(given, parseRequestOptions(given)),
    sampling: { temperature: 0.7, top_p: 0.9 },
    truncation: 'disabled'
  }
}

/** Runs a writer and checks the rules that apply to every stream. */
function write(t: Test, head: ResponseHead, deltas: Delta[]): { events: ResponseEvent[]; response: ResponseObject } {
  const writer = new ResponseWriter(head)
  // Copies the events, because later pieces must not change them.
  const sent = (events: ResponseEvent[]) => structuredClone(events)
  const events = deltas.flatMap(delta => sent(writer.add([delta])))
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
    mustBe('ResponseStreamEvent', event)
    snapshot = accumulateResponse(event as never, snapshot)
    const { type, item, item_id, delta } = event as { type: string; item?: any; item_id?: string; delta?: string }
    if (type === 'response.output_item.added') {
      expect(open.size === 0, 'nested item')
      open.add(item.id)
      added.push(item.id)
    }
    if (item_id) expect(open.has(item_id), `${type} outside of its item`)
    if (type.endsWith('.delta')) texts.set(item_id, (texts.get(item_id) ?? '') + delta)
    const whole =
      event.text ??
      (type === 'response.function_call_arguments.done' ? event.arguments : undefined) ??
      (type === 'response.custom_tool_call_input.done' ? event.input : undefined)
    if (whole !== undefined) expect(whole === (texts.get(item_id) ?? ''), `${type} differs from its pieces`)
    if (type === 'response.output_item.done') {
      expect(open.delete(item.id), 'end without a start of an item')
      expect(JSON.stringify(item) === JSON.stringify(response.output[event.output_index as number]), 'item differs')
    }
  })
  expect(open.size === 0, 'an item without an end')
  expect(events[0]?.type === 'response.created' && events[1]?.type === 'response.in_progress', 'wrong start')
  expect(events.at(-1)?.type === `response.${response.status}`, 'wrong end')
  expect(JSON.stringify(added) === JSON.stringify(response.output.map(({ id }) => id)), 'wrong order of items')
  mustBe('Response', response)
  t.strictSame(faults, [], 'events')
  t.match(snapshot, JSON.parse(JSON.stringify(response)), 'the client assembles the same response from the events')
}

t.test('the Responses API writes reasoning, text and calls as events', async t => {
  const { events, response } = write(t, headOf({ tools: [TOOL] }), CASES.deltas)
  t.strictSame(
    events.map(({ type }) => type.replace('response.', '')),
    CASES.eventNames
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

t.test('calls of namespaced functions name their namespace', async t => {
  const group = { type: 'namespace', name: 'crm', description: 'Customers.', tools: [TOOL] }
  const { response } = write(t, headOf({ tools: [TOOL, group] }), [
    { toolCalls: [{ index: 0, name: 'look', arguments: '{}' }] },
    { toolCalls: [{ index: 1, name: 'crm__look', arguments: '{}' }] },
    { finish: 'stop' }
  ])
  const [plain, grouped] = response.output
  t.match(grouped, { type: 'function_call', name: 'look', namespace: 'crm' })
  t.match(plain, { type: 'function_call', name: 'look' })
  t.notOk('namespace' in plain!)
  t.match(response.tools, [TOOL, group])
})

const TYPES = ['local_shell', 'shell', 'apply_patch', 'computer'].map(type => ({ type }))
const HOSTED_TYPES = [...TYPES, { type: 'custom', name: 'patch' }, { type: 'tool_search', execution: 'client' }]

t.test('calls of tools of every type come back as items of their type', async t => {
  const calls: [string, unknown][] = CASES.calls
  const pieces = calls.flatMap(([name, given], index) => [
    { toolCalls: [{ index, id: `c${index}`, name, arguments: '' }] },
    ...JSON.stringify(given)
      .match(/.{1,3}/gs)!
      .map(part => ({ toolCalls: [{ index, arguments: part }] }))
  ])
  const { events, response } = write(t, headOf({ tools: HOSTED_TYPES }), [...pieces, { finish: 'tool_calls' }])
  const exec = { type: 'exec', command: ['ls'], env: { A: 'b' }, timeout_ms: 5, user: null, working_directory: null }
  t.match(response.output, [
    {
      type: 'custom_tool_call',
      id: /^ctc_/,
      call_id: 'c0',
      name: 'patch',
      input: '*** "Ä" 🦙\n\\',
      status: 'completed'
    },
    { type: 'local_shell_call', call_id: 'c1', action: exec, status: 'completed' },
    { type: 'shell_call', action: { commands: ['ls', 'pwd'], timeout_ms: null, max_output_length: null } },
    { type: 'apply_patch_call', operation: { type: 'create_file', path: 'x', diff: '+a' } },
    { type: 'apply_patch_call', operation: { type: 'delete_file', path: 'x' } },
    { type: 'computer_call', actions: [{ type: 'click', x: 1, y: 2, button: 'left' }], pending_safety_checks: [] },
    { type: 'tool_search_call', call_id: 'c6', execution: 'client', arguments: { query: 'mail' } }
  ])
  t.ok(
    events.filter(({ type }) => type === 'response.custom_tool_call_input.delta').length > 3,
    'text arrives in pieces'
  )
  t.match(response.tools, HOSTED_TYPES)
})

t.test('truncated calls of tools of every type are incomplete', async t => {
  const cases: [string, string, object][] = CASES.truncatedCalls
  for (const [name, text, item] of cases) {
    const deltas: Delta[] = [{ toolCalls: [{ index: 0, name, arguments: text }] }, { finish: 'length' }]
    const { response } = write(t, headOf({ tools: HOSTED_TYPES }), deltas)
    t.match(response, { status: 'incomplete', output: [item] }, `${name} ${text}`)
  }
})

t.test('truncated answers are incomplete, and empty answers are complete', async t => {
  const cut = write(t, headOf(), [{ content: 'Once' }, { finish: 'length' }]).response
  t.match(cut, {
    status: 'incomplete',
    completed_at: null,
    incomplete_details: { reason: 'max_output_tokens' },
    output: [{ status: 'incomplete', content: [{ text: 'Once' }] }]
  })
  const thought = write(t, headOf(), [{ thinking: 'Hm' }, { finish: 'length' }]).response
  t.match(thought, { status: 'incomplete', output: [{ type: 'reasoning', status: 'incomplete' }] })
  t.equal(thought.output.length, 1)
  const empty = write(t, headOf(), [{ finish: 'stop' }]).response
  t.match(empty, { status: 'completed', output: [{ type: 'message', content: [{ text: '' }] }] })
})

t.test('log probabilities are returned as requested', async t => {
  const token = (text: string, logprob: number) => ({ id: 7, token: text, bytes: [...Buffer.from(text)], logprob })
  const given = [{ ...token('Pa', -0.1), top_logprobs: [token('Pa', -0.1), token('Ro', -2)] }]
  const told = { token: 'Pa', bytes: [80, 97], logprob: -0.1 }
  for (const [request, expected] of [
    [{}, []],
    [{ include: ['message.output_text.logprobs'] }, [{ ...told, top_logprobs: [] }]],
    [{ top_logprobs: 1 }, [{ ...told, top_logprobs: [told] }]]
  ] as const) {
    const { events, response } = write(t, headOf(request), [{ content: 'Pa', logprobs: given }])
    t.strictSame((response.output[0] as any).content[0].logprobs, expected, JSON.stringify(request))
    t.strictSame(events.find(({ type }) => type === 'response.output_text.delta')!.logprobs, expected)
  }
})

t.test('a failure ends the events with an error', async t => {
  const broken = new CorralError('engine_crashed', 'It broke.')
  for (const [code, word] of CASES.failures) {
    const events = new ResponseWriter(headOf()).fail(new CorralError(code, 'It broke.', { retryAfter: 2 }))
    const message = `It broke.${code === 'queue_full' ? ' Try again in 2 s.' : ''}`
    t.match(events[2], { type: 'response.failed', response: { error: { code: word, message } } })
  }
  const writer = new ResponseWriter(headOf())
  const events = [...writer.add([{ content: 'Once' }]), ...writer.fail(broken)]
  t.strictSame(
    events.map(({ sequence_number, type }) => [sequence_number, type]),
    CASES.failedEvents
  )
  for (const event of events) mustBe('ResponseStreamEvent', event)
  t.match(events[5]!.response, { status: 'failed', output: [{ status: 'incomplete', content: [{ text: 'Once' }] }] })
  t.match(events[6], { code: 'engine_crashed', message: 'It broke.', param: null, error: { type: 'server_error' } })
})

t.test('events are well-formed for random answers', async t => {
  const next = randomBelow(5)
  const text = () => ['a', 'ä', '€', '🦙', ' b', '\n', '{"'][next(7)]!
  for (let round = 0; round < trialCount(100); round++) {
    let called = -1
    const deltas = Array.from({ length: next(12) }, (): Delta => {
      switch (next(5)) {
        case 0:
          return { thinking: text() }
        case 1:
          return { content: text() }
        case 2:
          called++
          return {
            toolCalls: [{ index: called, id: `id${called}`, name: 'f', arguments: next(2) ? text() : '' }]
          }
        case 3:
          return called < 0 ? {} : { content: text(), toolCalls: [{ index: called, arguments: text() }] }
        default:
          return { thinking: text(), content: text() }
      }
    })
    deltas.push({ finish: next(2) ? 'stop' : 'length' })
    write(t, headOf(), deltas)
  }
})

const ajv = new Ajv()
const none = () => undefined
/** Builds the engine's request, without the input. */
const engineFields = (request: object) =>
  engineRequest(request, parseRequestOptions(request as Record<string, unknown>))

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

t.test('the Responses API converts input to messages for the engine', async t => {
  const table: [string, string | unknown[], unknown[], string?][] = CASES.messages
  for (const [what, input, expected, instructions] of table) {
    t.strictSame(messagesOf(input, instructions).messages, expected, what)
  }
})

t.test('the Responses API reports the input item of each message', async t => {
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

t.test('the Responses API completes items and resolves references', async t => {
  const stored: Item = CASES.stored
  const items = readInput(
    [user('Hi'), { type: 'item_reference', id: 'fc_1' }, { id: 'fc_1' }, { ...user('Hi'), id: 'msg_mine' }],
    id => (id === 'fc_1' ? stored : undefined)
  )
  t.match(items[0], { id: /^msg_[0-9a-f]{48}$/, status: 'completed', content: [{ type: 'input_text', text: 'Hi' }] })
  t.equal(items[1], stored)
  t.equal(items[2], stored, 'a reference without a type')
  t.equal(items[3]!.id, 'msg_mine')
  for (const item of items) mustBe('ResponseItem', item)
})

t.test('the Responses API refuses invalid input and names the place', async t => {
  const table: [unknown, string, string][] = CASES.invalidItems
  for (const [item, code, param] of table) {
    const found = refusal(() => messagesOf([item]))
    t.match(found, { code, param }, JSON.stringify(item))
    t.match(found!.message, /[.!]$/)
  }
})

t.test('the Responses API converts request fields for the engine', async t => {
  const table: [Record<string, unknown>, Record<string, unknown>][] = CASES.fields
  for (const [request, fields] of table) {
    t.strictSame(JSON.parse(JSON.stringify(engineFields(request).fields)), fields, JSON.stringify(request))
  }

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

t.test('the Responses API offers tools that the client runs and names the ones that are left out', async t => {
  const group = { type: 'namespace', name: 'crm', description: 'Customers.', tools: [TOOL, { type: 'web_search' }] }
  const { tools, fields } = engineFields({
    tools: [{ type: 'web_search' }, TOOL, group, { type: 'local_shell' }, { ...group, name: 'none', tools: [] }]
  })
  t.match(tools.shown, [TOOL, { ...group, tools: [TOOL] }, { type: 'local_shell' }])
  t.equal(tools.shown.length, 3, 'the reply lists only offered tools')
  t.strictSame(tools.ignored, ['web_search', 'crm.web_search'])
  const offered = fields.tools as { function: { name: string } }[]
  t.strictSame(
    offered.map(tool => tool.function.name),
    [TOOL.name, `crm__${TOOL.name}`, 'local_shell']
  )
})

t.test('the Responses API offers tools of every type and obeys every choice', async t => {
  const table: [
    string,
    Record<string, unknown>,
    { names?: string[]; choice?: string; ignored?: string[] },
    unknown[]?
  ][] = CASES.tools
  for (const [what, request, { names = [], choice, ignored = [] }, added = []] of table) {
    const placed = added.flatMap((item, index) => addedTools(item as object, ['input', index]))
    const { fields, tools } = engineRequest(request, parseRequestOptions(request), placed)
    const offered = (fields.tools ?? []) as { function: { name: string; parameters?: object } }[]
    t.strictSame(
      offered.map(tool => tool.function.name),
      names,
      what
    )
    t.equal(fields.tool_choice, choice, what)
    t.strictSame(tools.ignored, ignored, what)
    for (const tool of offered) ajv.compile(tool.function.parameters ?? {})
  }
})

t.test("the Responses API accepts every history that the SDK's types allow", async t => {
  const types = new Set<unknown>()
  for (let seed = 1; seed <= trialCount(500); seed++) {
    const items = randomItems(t, seed)
    for (const item of items) types.add(item.type)
    try {
      const read = readInput(items, none).map(item => ({ item }))
      const added = read.flatMap(({ item }) => addedTools(item, ['input']))
      engineMessages(read)
      engineRequest({}, parseRequestOptions({}), added)
    } catch (error) {
      t.fail(`seed ${seed}: ${(error as Error).message} in ${JSON.stringify(items)}`)
    }
  }
  t.ok(types.size > 28, `${types.size} types of items`)
})

t.test("the Responses API offers or names every tool of the SDK's types", async t => {
  const [{ of }] = sdkShapes(t.testdir(), RESPONSES, ['Tool'], 'openai') as any
  for (const shape of of) {
    const tool = randomValue(shape, randomNumbers(1)) as { type: string }
    const { tools } = engineFields({ tools: [{ ...tool, environment: undefined }] })
    const isOffered = /^(function|custom|namespace|computer|computer_use_preview|local_shell|shell|apply_patch)$/.test(
      tool.type
    )
    const isEmpty = tool.type === 'namespace' && (tool as unknown as { tools: [] }).tools.length === 0
    t.equal(tools.offered.length > 0, isOffered && !isEmpty, tool.type)
    t.equal(tools.ignored.length, isOffered || tool.type === 'tool_search' ? 0 : 1, tool.type)
  }
})

t.test('the Responses API refuses unsupported features', async t => {
  const table: [Record<string, unknown>, string, string][] = CASES.unsupported
  for (const [request, code, param] of table) {
    t.match(
      refusal(() => engineFields(request)),
      { code, param },
      JSON.stringify(request)
    )
  }
  t.ok(engineFields({ background: false, conversation: null, prompt: null }), 'false and null are not requests')
})

t.test('replies have the types that the official client declares', thorough, async t => t.equal(typeFaults(), ''))

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

const ME = 'key:me'

/** Deletes a response, unless it was removed before. */
function remove(responses: StoredResponses, id: string): void {
  try {
    responses.delete(ME, id)
  } catch (error) {
    if (!(error instanceof CorralError) || error.code !== 'response_not_found') throw error
  }
}

t.test('stored responses: the oldest are dropped, shared items are kept', async t => {
  const [first, second, third] = ['1', '2', '3'].map(id => itemOf(`msg_${id}`, 'x'.repeat(1000)))
  const all = [
    stored('a', [first!], []),
    stored('b', [first!, second!], []),
    stored('c', [first!, second!, third!], []),
    stored('d', [itemOf('msg_4', 'x')], [])
  ]
  const roomy = new StoredResponses(1e6, 1000)
  const sizes = all.map(response => {
    roomy.add(ME, response)
    return roomy.bytes
  })
  t.ok(sizes[1]! < 2.2 * sizes[0]!, 'shared items are counted once')
  t.strictSame(roomy.get(ME, 'a').input, [first])
  t.strictSame([...roomy.itemsById(ME).keys()], ['msg_1', 'msg_2', 'msg_3', 'msg_4'])

  const responses = new StoredResponses(roomy.bytes - 1, 1000)
  for (const response of all) responses.add(ME, response)
  t.throws(() => responses.get(ME, 'a'), { code: 'response_not_found', param: 'response_id' })
  responses.get(ME, 'd')
  responses.add(ME, stored('e', [itemOf('msg_5', 'x'.repeat(5000))], []))
  t.throws(() => responses.get(ME, 'e', 'previous_response_id'), {
    code: 'response_not_found',
    param: 'previous_response_id'
  })
  t.strictSame(responses.get(ME, 'c').input, [first, second, third], 'a response that is too large evicts no others')
  for (const id of ['b', 'c', 'd']) responses.delete(ME, id)
  t.equal(responses.bytes, 0)
  t.equal(responses.itemsById(ME).size, 0)
  const nothing = new StoredResponses(0, 1000)
  nothing.add(ME, stored('a', [first!], []))
  t.equal(nothing.bytes, 0)
})

t.test('stored responses: the size stays correct after adds and deletes', async t => {
  const next = randomBelow(9)
  const responses = new StoredResponses(20_000, 1000)
  const items = Array.from({ length: 40 }, (_, index) => itemOf(`msg_${index}`, 'x'.repeat(next(900))))
  const ids: string[] = []
  for (let step = 0; step < 500; step++) {
    if (next(4)) {
      ids.push(`r${step}`)
      const input = Array.from({ length: next(8) }, () => items[next(items.length)]!)
      responses.add(ME, stored(`r${step}`, input, [items[next(items.length)]!], { text: 'y'.repeat(next(3000)) }))
    } else if (ids.length > 0) {
      remove(responses, ids.splice(next(ids.length), 1)[0]!)
    }
    if (responses.bytes > 20_000) t.fail(`holds ${responses.bytes} bytes`)
  }
  for (const id of ids) remove(responses, id)
  t.equal(responses.bytes, 0)
})

t.test('stored responses: owners are isolated', async t => {
  const one = itemOf('msg_1', 'secret')
  const responses = new StoredResponses(1e6, 2)
  responses.add(ME, stored('a', [one], []))
  const missing = { code: 'response_not_found' }
  t.throws(() => responses.get('key:other', 'a'), missing)
  t.throws(() => responses.delete('key:other', 'a'), missing)
  t.equal(responses.itemsById('key:other').size, 0)
  responses.add('key:other', stored('a', [], []))
  t.strictSame(responses.get(ME, 'a').input, [one], 'ids do not collide')

  for (const id of ['b', 'c', 'd']) responses.add('key:other', stored(id, [], []))
  t.throws(() => responses.get('key:other', 'b'), missing, 'the limit per owner applies')
  responses.get('key:other', 'c')
  responses.get(ME, 'a')
})

t.test('stored responses: no owner can evict those of others', async t => {
  const small = stored('small', [itemOf('msg_1', 'x')], [])
  const responses = new StoredResponses(10_000, 1000)
  responses.add(ME, small)
  for (let step = 0; step < 100; step++) {
    responses.add('key:other', stored(`r${step}`, [itemOf(`msg_${step}`, 'x'.repeat(900))], []))
    if (responses.bytes > 10_000) t.fail(`holds ${responses.bytes} bytes`)
  }
  t.equal(responses.get(ME, 'small').input.length, 1)
  responses.get('key:other', 'r99')
  t.throws(() => responses.get('key:other', 'r0'), { code: 'response_not_found' })
})

t.test('the Responses API lists items in pages', async t => {
  const items = ['a', 'b', 'c', 'd', 'e'].map(id => itemOf(id, ''))
  const ids = (page: ReturnType<typeof itemPage>) => page.data.map(({ id }) => id).join('')
  t.equal(ids(itemPage(items, {})), 'edcba')
  t.equal(ids(itemPage(items, { order: 'asc' })), 'abcde')
  const page = itemPage(items, { limit: 2, after: 'd' })
  t.match(page, { object: 'list', first_id: 'c', last_id: 'b', has_more: true })
  t.match(itemPage(items, { limit: 2, after: 'b' }), { first_id: 'a', last_id: 'a', has_more: false })
  t.match(itemPage([], {}), { data: [], first_id: null, last_id: null, has_more: false })
  // Pages make progress even if several items have the same id.
  const same = ['a', 'x', 'x', 'b'].map(id => itemOf(id, ''))
  t.equal(ids(itemPage(same, { order: 'asc', limit: 2, after: 'x' })), 'b')
})
