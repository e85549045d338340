import { Ajv } from 'ajv'
import t from 'tap'
import { CorralError, ERROR_STATUS, type ErrorCode } from '../../../../core/errors.ts'
import { engineMessages } from '../../../../plugins/apis/anthropic/history.ts'
import { anthropicErrorBody } from '../../../../plugins/apis/anthropic/index.ts'
import { engineRequest } from '../../../../plugins/apis/anthropic/message-request.ts'
import { MessagesRequest } from '../../../../plugins/apis/anthropic/schemas.ts'
import { readCases } from '../../../support/cases.ts'
import { randomNumbers } from '../../../support/random.ts'
import { randomValue, sdkShapes } from '../../../support/sdk-types.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { result, user } from './support.ts'

const CASES = readCases('anthropic-requests')

type Request = Parameters<typeof engineRequest>[0]

const hi: Request = { model: 'a/b', messages: [{ role: 'user', content: 'Hi' }] }
const tool = { name: 'get', description: 'Gets', input_schema: { type: 'object', properties: {} } }
const other = { name: 'set', input_schema: { type: 'object' } }

t.test('converts request fields for the engine', t => {
  const table: [what: string, request: object, wanted: object, defaults?: object][] = CASES.fields
  for (const [what, request, wanted, defaults = {}] of table) {
    t.strictSame(engineRequest({ ...hi, ...request } as Request, defaults as never).body, wanted, what)
  }
  t.end()
})

t.test('offers the tools that clients run, and names the other ones', t => {
  const table: [what: string, request: object, wanted: object, ignored: string[]][] = CASES.tools
  for (const [what, request, wanted, named] of table) {
    const { body, ignored } = engineRequest({ ...hi, ...request } as Request, {})
    const { tools, tool_choice } = body
    t.strictSame(JSON.parse(JSON.stringify({ tools, tool_choice })), wanted, what)
    t.strictSame(ignored, named, what)
  }
  t.end()
})

t.test("offers every client tool of the SDK's types with its published parameters", t => {
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

t.test('refuses invalid requests and names the place', t => {
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
