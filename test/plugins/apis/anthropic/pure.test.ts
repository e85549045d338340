import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Ajv } from 'ajv'
import t from 'tap'
import type { Delta, EngineFields } from '../../../../core/contracts/engines.ts'
import { CorralError, ERROR_STATUS, type ErrorCode } from '../../../../core/errors.ts'
import { ClearedSteps, clearContext } from '../../../../plugins/apis/anthropic/context-management.ts'
import { engineMessages } from '../../../../plugins/apis/anthropic/history.ts'
import { anthropicErrorBody } from '../../../../plugins/apis/anthropic/index.ts'
import { MessageEvents } from '../../../../plugins/apis/anthropic/message-events.ts'
import { engineRequest } from '../../../../plugins/apis/anthropic/message-request.ts'
import { type Edit, type MessageEvent, MessagesRequest } from '../../../../plugins/apis/anthropic/schemas.ts'
import { readCases } from '../../../support/cases.ts'
import { each } from '../../../support/each.ts'
import { randomNumbers } from '../../../support/random.ts'
import { randomValue, sdkShapes } from '../../../support/sdk-types.ts'
import { thorough } from '../../../support/thorough.ts'
import { trialCount } from '../../../support/trial-count.ts'

const CASES = readCases('anthropic')

/** Parts of conversations in Anthropic's format. */
const PNG = 'iVBORw0KGgo='
const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: PNG } }
const text = (of: string) => ({ type: 'text', text: of })
const user = (content: unknown) => ({ role: 'user', content })
const assistant = (content: unknown) => ({ role: 'assistant', content })
const result = (id: string, more: object = {}) => ({ type: 'tool_result', tool_use_id: id, ...more })
const use = (id: string, name: string, input: object) => ({ type: 'tool_use', id, name, input })

t.test('the Messages API converts conversations for the engine', t => {
  const table: [what: string, given: unknown[], wanted: unknown[], system?: unknown][] = CASES.messages
  for (const [what, messages, wanted, system] of table) {
    t.strictSame(engineMessages({ messages, system } as never).messages, wanted, what)
  }
  t.end()
})

t.test('the Messages API reports where images are in the request', t => {
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

t.test("the Messages API accepts every history that the SDK's types allow", t => {
  const files: [string, string[]][] = [
    ['resources/messages/messages.d.ts', ['MessageParam', 'ContentBlock']],
    ['resources/beta/messages/messages.d.ts', ['BetaMessageParam', 'BetaContentBlock']]
  ]
  const ajv = new Ajv({ keywords: ['documented'] })
  const matches = ajv.compile(MessagesRequest)
  for (const [file, names] of files) {
    const [message, reply] = sdkShapes(t.testdir(), file, names)
    const types = new Set<unknown>()
    for (let seed = 1; seed <= trialCount(500); seed++) {
      const random = randomNumbers(seed)
      const turn = () => {
        const isAnswer = random() < 0.3
        return isAnswer
          ? assistant([randomValue(reply!, random)])
          : (randomValue(message!, random) as { content: unknown })
      }
      const messages = Array.from({ length: 1 + Math.floor(random() * 5) }, turn)
      for (const { content } of messages) if (Array.isArray(content)) for (const { type } of content) types.add(type)
      if (!matches({ model: 'a/b', max_tokens: 1, messages })) {
        t.fail(`${file}, seed ${seed}: ${ajv.errorsText(matches.errors)}`)
      }
      try {
        engineMessages({ messages } as never)
      } catch (error) {
        t.fail(`${file}, seed ${seed}: ${(error as Error).message} in ${JSON.stringify(messages)}`)
      }
    }
    t.ok(types.size >= 15, `${types.size} types of blocks in ${file}`)
  }
  t.end()
})

type Request = Parameters<typeof engineRequest>[0]

const hi: Request = { model: 'a/b', messages: [{ role: 'user', content: 'Hi' }] }
const tool = { name: 'get', description: 'Gets', input_schema: { type: 'object', properties: {} } }
const other = { name: 'set', input_schema: { type: 'object' } }

t.test('the Messages API converts request fields for the engine', t => {
  const table: [what: string, request: object, wanted: object, defaults?: object][] = CASES.fields
  for (const [what, request, wanted, defaults = {}] of table) {
    t.strictSame(engineRequest({ ...hi, ...request } as Request, defaults as never).body, wanted, what)
  }
  t.end()
})

t.test('the Messages API offers the tools that clients run, and names the other ones', t => {
  const table: [what: string, request: object, wanted: object, ignored: string[]][] = CASES.tools
  for (const [what, request, wanted, named] of table) {
    const { body, ignored } = engineRequest({ ...hi, ...request } as Request, {})
    const { tools, tool_choice } = body
    t.strictSame(JSON.parse(JSON.stringify({ tools, tool_choice })), wanted, what)
    t.strictSame(ignored, named, what)
  }
  t.end()
})

t.test("the Messages API offers every client tool of the SDK's types with its published parameters", t => {
  const file = 'resources/beta/messages/messages.d.ts'
  const names = ['BetaToolUnion', 'BetaClientToolUnion', 'BetaBrowserToolUseBlock', 'BetaComputerToolUseBlock']
  const shapes = sdkShapes(t.testdir(), file, [...names, 'BetaMemoryTool20250818Command']) as any[]
  const [all, ofClients, browser, computer, memory] = shapes.map(({ of }) => of)
  const offered = (tool: unknown) => engineRequest({ ...hi, tools: [tool] } as Request, {})
  for (const shape of all) {
    const tool = randomValue(shape, randomNumbers(1)) as { type?: string; defer_loading?: boolean; name?: string }
    const given = { ...tool, ...(tool.name === '' && { name: 'f' }), defer_loading: false }
    const { body, ignored } = offered(given)
    const isSearch = tool.type?.startsWith('tool_search')
    const count = ((body.tools as unknown[]) ?? []).length
    t.equal(count > 0, ofClients.includes(shape), `${tool.type} is a function only if clients run it`)
    t.equal(ignored.length, count > 0 || isSearch ? 0 : 1)
  }
  for (const [set, blocks] of Object.entries({ browser, computer })) {
    const configs = { file_upload: { enabled: true }, javascript_exec: { enabled: true } }
    const { body, called } = offered({ type: `${set}_toolset_20260801`, configs })
    const got = (body.tools as any[]).map(({ function: { name, parameters } }) => {
      const fields = Object.keys(parameters.properties).sort()
      return { ...called.get(name), fields, required: parameters.required.sort() }
    })
    const wanted = blocks.map(({ fields: block }: any) => {
      const { name, toolset_name, input } = Object.fromEntries(block.map((each: any) => [each.name, each.shape]))
      const fields = input.fields ?? []
      const namesOf = (some: any[]) => some.map(field => field.name).sort()
      const required = namesOf(fields.filter((field: any) => !field.optional))
      return { name: name.value, toolset_name: toolset_name.value, fields: namesOf(fields), required }
    })
    const byName = (a: { name: string }, b: { name: string }) => a.name.localeCompare(b.name)
    t.strictSame(got.sort(byName as never), wanted.sort(byName))
  }
  const [{ function: remember }] = offered({ type: 'memory_20250818', name: 'memory' }).body.tools as any[]
  const fields = new Set(memory.flatMap((command: any) => command.fields.map((field: any) => field.name)))
  t.strictSame(Object.keys(remember.parameters.properties).sort(), [...fields].sort())
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

t.test('the Messages API refuses invalid requests and names the place', t => {
  const table: [request: object, param: string, code?: ErrorCode][] = CASES.invalid
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
  for (let seed = 1; seed <= trialCount(1500); seed++) {
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
  t.ok(taken > 20, `${taken} requests were accepted`)
  t.end()
})

t.test("the Messages API renders errors in Anthropic's format", t => {
  const types: Partial<Record<ErrorCode, string>> = CASES.errorTypes
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
  t.equal(unknown.error.message, 'prompt is too long: As it is.')
  t.end()
})

const HEAD = { id: 'msg_1', model: 'a/b', stopSequences: ['END'] }

function answer(deltas: Delta[], head: Partial<typeof HEAD> & object = {}) {
  const writer = new MessageEvents({ ...HEAD, ...head })
  const events: MessageEvent[] = [...deltas.flatMap(given => writer.add([given])), ...writer.end()]
  return { events, message: writer.whole() }
}

t.test('the Messages API converts an answer to events and to a message', t => {
  const { events, message } = answer(CASES.deltas)
  t.strictSame(events, CASES.events as MessageEvent[])
  t.strictSame(message, CASES.message)
  t.end()
})

t.test('the Messages API reports the stop reason and drops incomplete parts', t => {
  const table: [what: string, deltas: Delta[], head: object, wanted: object][] = CASES.stops
  for (const [what, deltas, head, wanted] of table) {
    const { stop_reason, stop_sequence, content } = answer(deltas, head).message
    const blocks = (content as { id?: string }[]).map(({ id: _, ...block }) => block)
    t.strictSame({ stop_reason, stop_sequence, content: blocks }, wanted, what)
  }
  const cut: Delta[] = [
    { content: 'Hi' },
    { toolCalls: [{ index: 0, name: 'f', arguments: '{"a' }] },
    { finish: 'length' }
  ]
  const { events, message } = answer(cut)
  t.strictSame(message.content, [{ type: 'text', text: 'Hi' }], 'an incomplete call is dropped')
  t.equal(each(events, 'type').filter(type => type === 'content_block_start').length, 2, 'a stream contains it')
  t.end()
})

/** Returns an error in the order of events, if any. */
function fault(events: MessageEvent[]): string | undefined {
  if (events[0]?.type !== 'message_start' || events[1]?.type !== 'ping') return 'wrong start of the stream'
  if (events.at(-2)?.type !== 'message_delta' || events.at(-1)?.type !== 'message_stop')
    return 'wrong end of the stream'
  let open: string | undefined
  let index = 0
  for (const event of events.slice(2, -2)) {
    if (event.type === 'content_block_start') {
      if (open !== undefined) return 'nested block'
      open = event.content_block.type
    } else if (event.type === 'content_block_delta') {
      const kinds = {
        text: ['text_delta'],
        thinking: ['thinking_delta', 'signature_delta'],
        tool_use: ['input_json_delta']
      }
      if (!kinds[open as keyof typeof kinds]?.includes(event.delta.type)) return `${event.delta.type} in ${open}`
    } else if (event.type === 'content_block_stop') {
      if (open === undefined) return 'end without a start of a block'
      open = undefined
    } else return `unexpected ${event.type}`
    if (event.index !== index) return `block ${event.index} instead of ${index}`
    if (event.type === 'content_block_stop') index++
  }
  return open === undefined ? undefined : 'a block without an end'
}

t.test('the stream is well-formed and complete for random answers', t => {
  const PIECES = ['a', ' ', '\n\n', 'word ', '{', '"x"', '']
  const faults: string[] = []
  for (let seed = 1; seed <= trialCount(300); seed++) {
    const random = randomNumbers(seed)
    const pick = () => PIECES[Math.floor(random() * PIECES.length)]!
    const said = { text: '', thinking: '' }
    const calls: string[] = []
    const deltas: Delta[] = []
    for (let left = Math.floor(random() * 30); left > 0; left--) {
      const given: Delta = {}
      if (random() < 0.3) given.thinking = pick()
      if (random() < 0.4) given.content = pick()
      if (random() < 0.4) {
        given.toolCalls = []
        for (let more = 1 + Math.floor(random() * 3); more > 0; more--) {
          const begins = calls.length === 0 || random() < 0.3
          if (begins) calls.push('')
          const json = pick()
          calls[calls.length - 1] += json
          const index = calls.length - 1
          given.toolCalls.push({ index, ...(begins && { id: `c${index}`, name: `f${index}` }), arguments: json })
        }
      }
      said.text += given.content ?? ''
      said.thinking += given.thinking ?? ''
      deltas.push(given)
    }
    deltas.push({ finish: 'stop' })
    const { events } = answer(deltas)
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
      (words(got.thinking) === words(said.thinking) ? undefined : 'thinking is lost') ??
      (JSON.stringify(json) === JSON.stringify(calls) ? undefined : 'calls are lost') ??
      (names.every((name, index) => name === `f${index}`) ? undefined : 'calls are out of order')
    if (wrong) faults.push(`seed ${seed}: ${wrong}`)
  }
  t.strictSame(faults, [])
  t.end()
})

const RESULT = 'x'.repeat(1000)
const CLEARED = '[This result was removed to save space.]'

function conversation(uses: number) {
  const messages: Record<string, unknown>[] = [{ role: 'user', content: 'go' }]
  for (let use = 0; use < uses; use++) {
    const called = { name: use % 2 ? 'odd' : 'even', arguments: '{"a":1}' }
    messages.push({
      role: 'assistant',
      content: '',
      tool_calls: [{ id: `c${use}`, type: 'function', function: called }]
    })
    messages.push({ role: 'tool', tool_call_id: `c${use}`, content: RESULT })
  }
  return { messages }
}

let counts = 0
/** Counts each character as a token. */
async function count({ messages }: EngineFields): Promise<number> {
  counts++
  const lengths = (messages as any[]).map(({ content, reasoning_content: thought = '' }) => (content + thought).length)
  return lengths.reduce((sum, length) => sum + length, 0)
}

const TRIGGER = { type: 'input_tokens', value: 5000 }
const clear = (uses: number, more: Partial<Edit>, steps = new ClearedSteps(), window = 200_000, owner = 'one') =>
  clearContext(
    conversation(uses),
    [{ type: 'clear_tool_uses_20250919', ...more }],
    { model: 'a/b', owner, steps, window },
    count
  )

/** The indexes of cleared results. */
function clearedIn({ messages }: EngineFields): number[] {
  const results = (messages as any[]).filter(({ role }) => role === 'tool')
  return results.flatMap(({ content }, index) => (content === CLEARED ? [index] : []))
}

t.test('the Messages API clears all tool results but the last ones above the trigger', async t => {
  const { body, applied, tokens } = await clear(10, { trigger: TRIGGER })
  t.strictSame(clearedIn(body), [0, 1, 2, 3, 4, 5, 6])
  const removed = 7 * (1000 - CLEARED.length)
  t.strictSame(applied, [{ type: 'clear_tool_uses_20250919', cleared_tool_uses: 7, cleared_input_tokens: removed }])
  t.equal(tokens, (await count(conversation(10))) - removed)
  const table: [more: Partial<Edit>, wanted: number[]][] = [
    [{ trigger: TRIGGER, keep: { value: 9 } }, [0]],
    [{ trigger: TRIGGER, keep: { value: 5 }, exclude_tools: ['odd'] }, [0, 2, 4]],
    [{ trigger: { type: 'tool_uses', value: 9 } }, [0, 1, 2, 3, 4, 5, 6]],
    [{ trigger: TRIGGER, clear_at_least: { value: removed } }, [0, 1, 2, 3, 4, 5, 6]],
    [{ trigger: TRIGGER, clear_at_least: { value: removed + 1 } }, []],
    [{ trigger: { type: 'input_tokens', value: 11_000 } }, []],
    [{ trigger: { type: 'tool_uses', value: 10 } }, []],
    [{ trigger: TRIGGER, keep: { value: 10 } }, []],
    [{ trigger: TRIGGER, exclude_tools: ['odd', 'even'] }, []]
  ]
  for (const [more, wanted] of table) {
    const context = await clear(10, more)
    t.strictSame(clearedIn(context.body), wanted, JSON.stringify(more))
    t.equal(context.applied.length, wanted.length > 0 ? 1 : 0)
  }
})

t.test('the Messages API clears inputs only if asked', async t => {
  const inputs = async (given: boolean | string[]) => {
    const { body } = await clear(6, { trigger: TRIGGER, clear_tool_inputs: given })
    const calls = (body.messages as any[]).flatMap(({ tool_calls = [] }) => tool_calls)
    return calls.map(call => call.function.arguments)
  }
  const kept = '{"a":1}'
  t.strictSame(await inputs(false), Array(6).fill(kept))
  t.strictSame(await inputs(true), ['{}', '{}', '{}', kept, kept, kept])
  t.strictSame(await inputs(['odd']), [kept, '{}', kept, kept, kept, kept])
})

t.test('the Messages API clears more only when the rest reaches the trigger, for the prompt cache', async t => {
  const steps = new ClearedSteps()
  const numbers: number[] = []
  for (let uses = 1; uses <= 12; uses++) {
    const { body } = await clear(uses, { trigger: TRIGGER }, steps)
    numbers.push(clearedIn(body).length)
    t.ok((await count(body)) <= 5000)
  }
  t.strictSame(numbers, [0, 0, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8])
  const first = clearedIn((await clear(12, { trigger: TRIGGER })).body).length
  const other = clearedIn((await clear(12, { trigger: TRIGGER }, steps, 200_000, 'two')).body).length
  t.equal(other, first, "another owner's conversation is cleared as if nobody else had asked")
  t.not(first, 8)
})

t.test('the Messages API remembers across restarts how far conversations were cleared', async t => {
  const file = join(t.testdir(), 'cache', 'cleared.json')
  const first = new ClearedSteps(file)
  await clear(5, { trigger: TRIGGER }, first)
  await clear(7, { trigger: TRIGGER }, first)
  await first.close()
  const later = new ClearedSteps(file)
  t.strictSame(clearedIn((await clear(8, { trigger: TRIGGER }, later)).body), [0, 1, 2, 3], 'not the fifth')
  await later.close()
  const warnings: string[] = []
  writeFileSync(file, '["a"')
  const damaged = new ClearedSteps(file, { warn: (_: unknown, text: string) => void warnings.push(text) } as never)
  t.match(warnings, [/not JSON/])
  await clear(5, { trigger: TRIGGER }, damaged)
  await damaged.close()
  t.equal(JSON.parse(readFileSync(file, 'utf8')).length, 1)
})

t.test('the Messages API forgets the longest unused conversations above its limit', thorough, async t => {
  const file = join(t.testdir(), 'cleared.json')
  const steps = new ClearedSteps(file)
  const begin = { value: 5, type: 'tool_uses' }
  const clearAt = async (uses: number, from: ClearedSteps) =>
    clearedIn((await clear(uses, { trigger: begin, keep: { value: 1 } }, from)).body).length
  t.equal(await clearAt(6, steps), 5)
  for (let others = 0; others < 999; others++) steps.add(`other ${others}`)
  t.equal(await clearAt(7, steps), 5, 'the 1000th conversation has replaced none')
  steps.add('one more')
  t.notOk(steps.has('other 0'))
  t.equal(await clearAt(8, steps), 5, 'conversations in use stay')
  await steps.close()
  const later = new ClearedSteps(file, { warn: (_: unknown, text: string) => t.fail(text) } as never)
  t.equal(await clearAt(9, later), 5, 'the file within the limit is read again')
  for (let others = 0; others < 1000; others++) later.add(`new ${others}`)
  t.equal(await clearAt(10, later), 9, 'a forgotten conversation is cleared as if it were new')
  await later.close()
})

t.test('the Messages API clears before the context is full, although the trigger is higher', async t => {
  for (const more of [{}, { trigger: { type: 'input_tokens', value: 20_000 } }]) {
    const { body } = await clear(10, more, new ClearedSteps(), 10_000)
    t.equal(clearedIn(body).length, 7)
    t.strictSame((await clear(7, more, new ClearedSteps(), 10_000)).applied, [])
  }
})

t.test('the Messages API does not count a conversation that cannot reach the trigger', async t => {
  counts = 0
  t.strictSame((await clear(10, {})).applied, [])
  t.equal(counts, 0)
})

t.test('the Messages API clears the thinking of old turns', async t => {
  const said = (content: string, reasoning_content = '') => ({ role: 'assistant', content, reasoning_content })
  const user = { role: 'user', content: 'x' }
  const result = { role: 'tool', content: '' }
  const messages = [user, said('a', 'one'), user, said('b', 'two'), result, said('c', 'two'), user, said('d')]
  const edited = async (keep: unknown) => {
    const edits = [{ type: 'clear_thinking_20251015', keep }] as never
    const setting = { model: 'a/b', owner: 'one', steps: new ClearedSteps(), window: 1000 }
    const { body, applied } = await clearContext({ messages }, edits, setting, count)
    return [(body.messages as any[]).map(message => message.reasoning_content || ''), applied]
  }
  const unchanged = [['', 'one', '', 'two', '', 'two', '', ''], []]
  for (const keep of ['all', { type: 'all' }, { type: 'thinking_turns', value: 2 }]) {
    t.strictSame(await edited(keep), unchanged)
  }
  const report = { type: 'clear_thinking_20251015', cleared_thinking_turns: 1, cleared_input_tokens: 3 }
  for (const keep of [undefined, { type: 'thinking_turns', value: 1 }]) {
    t.strictSame(await edited(keep), [['', '', '', 'two', '', 'two', '', ''], [report]])
  }
})
