import { Ajv } from 'ajv'
import t from 'tap'
import { parseRequestOptions } from '../../../../core/models/options.ts'
import { addedTools } from '../../../../plugins/apis/openai/responses/call-items.ts'
import { engineMessages, engineRequest, readInput } from '../../../../plugins/apis/openai/responses/response-request.ts'
import type { Item } from '../../../../plugins/apis/openai/responses/schemas.ts'
import { readCases } from '../../../support/cases.ts'
import { randomNumbers } from '../../../support/random.ts'
import { randomValue, sdkShapes } from '../../../support/sdk-types.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { refusal } from './bodies.ts'
import { mustBe, typeFaults } from './declared-types.ts'
import { RESPONSES, randomItems } from './random-items.ts'
import { TOOL } from './support.ts'

const CASES = readCases('responses-requests')

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

t.test('converts input to messages for the engine', async t => {
  const table: [string, string | unknown[], unknown[], string?][] = CASES.messages
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
  for (const item of items) mustBe('ResponseItem', item)
})

t.test('refuses invalid input and names the place', async t => {
  const table: [unknown, string, string][] = CASES.invalidItems
  for (const [item, code, param] of table) {
    const found = refusal(() => messagesOf([item]))
    t.match(found, { code, param }, JSON.stringify(item))
    t.match(found!.message, /[.!]$/)
  }
})

t.test('converts request fields for the engine', async t => {
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

t.test('offers tools that the client runs and names the ones that are left out', async t => {
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

t.test('offers tools of every type and obeys every choice', async t => {
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

t.test("accepts every history that the SDK's types allow", async t => {
  const types = new Set<unknown>()
  for (let seed = 1; seed <= trialCount(2000); seed++) {
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

t.test("offers or names every tool of the SDK's types", async t => {
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

t.test('refuses unsupported features', async t => {
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

t.test('replies have the types that the official client declares', async t => t.equal(typeFaults(), ''))
