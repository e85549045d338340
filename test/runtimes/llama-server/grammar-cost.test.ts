import { setImmediate as nextTurn } from 'node:timers/promises'
import t from 'tap'
import { grammarCheck } from '../../../runtimes/llama-server/grammar-bounds.ts'
import { readFixture } from '../../support/fixture.ts'

const check = grammarCheck({ size: 64 * 1024, ways: 20_000 })

/** Returns the code of the rejection, if any. */
async function refusal(request: object): Promise<string | undefined> {
  try {
    await check(request as Record<string, unknown>)
    return undefined
  } catch (error) {
    return (error as { code: string }).code
  }
}

const { honest, hostile, honestSchemas, hostileSchemas } = readFixture<{
  honest: Record<string, string>
  hostile: Record<string, string>
  honestSchemas: Record<string, object>
  hostileSchemas: Record<string, object>
}>('grammar-cases.yaml')

const HOSTILE: Record<string, string> = {
  ...hostile,
  'the same, written out': `root ::= ${'[a-z]? '.repeat(30)}`,
  'consecutive texts': `root ::= ${'[a-z]* '.repeat(8)}`,
  'the same by names': `root ::= ${'a '.repeat(12)}\na ::= [a-z]+ | ""`,
  'after a long text': `root ::= "${'once upon a time '.repeat(20)}" x\nx ::= ([a-z]?){0,30}`,
  'after a long text, in one rule': `root ::= "${'once upon a time '.repeat(20)}" ([a-z]?){0,30}`,
  'with other characters': `root ::= ${'[ぁ-ゟ]? '.repeat(30)}`,
  'with all characters but one': `root ::= ${'[^x]? '.repeat(30)}`,
  'with any character': `root ::= ${'.? '.repeat(30)}`,
  'behind a comment': `root ::= a # {\na ::= ${'[a-z]? '.repeat(30)}`,
  'rules that begin with the next one twice': `root ::= r0\n${Array.from({ length: 40 }, (_, rule) => `r${rule} ::= r${rule + 1} | r${rule + 1}`).join('\n')}\nr40 ::= "a"`,
  'two equal rules, one of which is replaced': `root ::= "a" b\na ::= x\nb ::= x\na ::= "a"\nx ::= ${'[a-z]? '.repeat(30)}`,
  parentheses: `root ::= ${'('.repeat(20_000)}"a"${')'.repeat(20_000)}`,
  'many rules': `root ::= r0\n${Array.from({ length: 3000 }, (_, rule) => `r${rule} ::= r${rule + 1}? r${rule + 1}?`).join('\n')}\nr3000 ::= "a"`
}

t.test('the grammar check rejects grammars that are too costly, and accepts legitimate ones', async t => {
  const windows = honest.json!.replaceAll('\n', '\r\n')
  for (const [name, grammar] of Object.entries({ ...honest, windows })) {
    t.equal(await refusal({ grammar }), undefined, name)
  }
  for (const [name, grammar] of Object.entries(HOSTILE)) t.equal(await refusal({ grammar }), 'over_limit', name)
  t.equal(await refusal({ grammar: `root ::= "${'a'.repeat(66_000)}"` }), 'over_limit', 'size')
  for (const grammar of ['root', 'root ::= (', 'root ::= "a', 'root ::= [a', 'root ::= *', 'root ::= a ::= b', '{']) {
    t.equal(await refusal({ grammar }), 'invalid_request', grammar)
  }
  t.equal(await refusal({ grammar: '' }), undefined)
  t.equal(await refusal({ grammar: null }), undefined)
})

const object = (properties: object, required = Object.keys(properties)) => ({ type: 'object', properties, required })
const union = (schema: object) => ({
  anyOf: [
    { type: 'array', items: schema },
    { type: 'array', items: schema, maxItems: 5 }
  ]
})
const times = (count: number, from: object, wrap: (schema: object) => object) =>
  Array(count).fill(0).reduce<object>(wrap, from)
const pattern = (text: string) => ({ type: 'string', pattern: text })

const HONEST_SCHEMAS: Record<string, object> = {
  ...honestSchemas,
  'nested lists': times(6, { type: 'string', maxLength: 500 }, items => ({ type: 'array', items, maxItems: 100 })),
  'many properties': object(
    Object.fromEntries(Array.from({ length: 60 }, (_, i) => [`key${i}`, { type: 'string' }])),
    []
  ),
  'many nullable properties': object(
    Object.fromEntries(
      Array.from({ length: 150 }, (_, i) => [
        `key${i}`,
        { anyOf: [{ type: 'string' }, { type: 'null' }], default: null }
      ])
    ),
    []
  ),
  'many values': { enum: Array.from({ length: 300 }, (_, i) => `country ${i}`) },
  'a thousand values': { enum: Array.from({ length: 1000 }, (_, i) => `item-${i}`) }
}

const BRANCHING = pattern('^(([a-z]?[0-9]?){0,20}){0,20}$')

const HOSTILE_SCHEMAS: Record<string, object> = {
  ...hostileSchemas,
  'a pattern of optional letters': pattern(`^${'[a-z]?'.repeat(30)}$`),
  'a pattern behind a reference': {
    ...object({ a: { $ref: '#/$defs/x' } }),
    $defs: { x: pattern(`^${'.?'.repeat(40)}$`) }
  },
  'nested unions': times(16, { type: 'string' }, union),
  'very many properties': object(Object.fromEntries(Array.from({ length: 1500 }, (_, i) => [`p${i}`, {}])), []),
  'thousands of values that are not text': { enum: Array.from({ length: 8000 }, (_, i) => [i]) },
  'many long texts': union({
    type: 'array',
    items: { anyOf: Array.from({ length: 200 }, () => ({ type: 'string', maxLength: 2000 })) }
  })
}

t.test('the grammar check rejects costly JSON schemas in every place of a request', async t => {
  const places: [string, (schema: object) => object][] = [
    ['json_schema', schema => ({ json_schema: schema })],
    ['response_format', schema => ({ response_format: { type: 'json_schema', json_schema: { name: 'a', schema } } })],
    ['response_format.schema', schema => ({ response_format: { type: 'json_object', schema } })],
    ['tools', schema => ({ tools: [{ type: 'function', function: { name: 'f', parameters: schema } }] })]
  ]
  for (const [place, request] of places) {
    for (const [name, schema] of Object.entries(HONEST_SCHEMAS)) {
      t.equal(await refusal(request(schema)), undefined, `${place}: ${name}`)
    }
    for (const [name, schema] of Object.entries(HOSTILE_SCHEMAS)) {
      t.equal(await refusal(request(schema)), 'over_limit', `${place}: ${name}`)
    }
    t.equal(await refusal(request({ const: 'x'.repeat(66_000) })), 'over_limit', `${place}: size`)
    const unreadable = object({ a: BRANCHING, b: pattern('^a{2,1}$') })
    t.equal(await refusal(request(unreadable)), 'invalid_request', `${place}: beside a malformed pattern`)
  }
  const tool = { type: 'function', function: { name: 'f', parameters: { const: 'x'.repeat(60_000) } } }
  t.equal(await refusal({ tools: Array(10).fill(tool) }), undefined)
  t.equal(await refusal({ tools: Array(20).fill(tool) }), 'over_limit', 'size of all tools')
  const optional = (count: number) =>
    object(Object.fromEntries(Array.from({ length: count }, (_, at) => [`k${at}`, { type: 'string' }])), [])
  const withOptional = (tools: number, count: number) => ({
    tools: Array.from({ length: tools }, () => ({
      type: 'function',
      function: { name: 'f', parameters: optional(count) }
    }))
  })
  t.equal(await refusal(withOptional(60, 30)), undefined)
  t.equal(await refusal(withOptional(3, 200)), 'over_limit', 'optional properties of all tools, also from the cache')
  for (const request of [{ tools: [null, 1, { function: 1 }] }, { response_format: 'json' }, { json_schema: 'x' }]) {
    t.equal(await refusal(request), undefined, 'ignores values that are not schemas')
  }
})

t.test('other requests run between the tools of one request', async t => {
  const tool = (number: number) => ({ function: { parameters: object({ [`key${number}`]: { type: 'string' } }) } })
  const tools = Array.from({ length: 20 }, (_, number) => tool(number))
  let turns = 0
  let isDone = false
  const others = (async () => {
    for (; !isDone; turns++) await nextTurn()
  })()
  await check({ tools })
  isDone = true
  await others
  t.ok(turns >= tools.length, 'if they are new')
})
