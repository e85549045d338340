import t from 'tap'
import { pointerList } from '../../../core/answers/answer-headers.ts'
import { CorralError } from '../../../core/errors.ts'
import { engineSchema } from '../../../runtimes/llama-server/engine-schema.ts'
import { TooCostly } from '../../../runtimes/llama-server/grammar-cost.ts'
import { unenforced, withEngineSchemas } from '../../../runtimes/llama-server/grammar-schemas.ts'
import { readFixture } from '../../support/fixture.ts'

type Schema = Record<string, unknown>
const cases = readFixture<{
  rewritten: { title: string; schema: Schema; made?: Schema }[]
  unfit: [path: string, schema: Schema][]
  malformed: [path: string, schema: Schema][]
  unenforced: [schema: Schema, places: string[]][]
  requests: { body: Schema; made?: Schema }[]
  tool: Schema
}>('schema-cases.yaml')
const word = { type: 'string' }
const digit = { type: 'integer' }
const object = (properties: object, ...required: string[]) => ({
  type: 'object',
  properties,
  ...(required.length > 0 && { required })
})

t.test('the schema conversion rewrites schemas in the form that llama.cpp enforces', async t => {
  for (const { title, schema, made = schema } of cases.rewritten) {
    t.strictSame(engineSchema(schema).schema, made, title)
  }
  const colors = Array.from({ length: 200 }, (_, index) => `color ${index}`)
  t.match(engineSchema({ enum: colors }).schema, { type: 'string', pattern: /^\^color / }, 'many texts of a format')
  t.same(engineSchema({ enum: colors }, false).schema, { enum: colors }, 'the model reads those of a tool')
  const { tool } = cases
  const text = JSON.stringify(engineSchema(tool, false).schema)
  t.equal(text, JSON.stringify(tool), 'a common tool schema reaches the model unchanged')
})

t.test('the schema conversion rejects malformed schemas, and schemas that no value fits, with the place', async t => {
  for (const [list, message] of [
    [cases.unfit, /No value can match/],
    [cases.malformed, /malformed/]
  ] as const) {
    for (const [path, schema] of list) {
      const expected = { code: 'invalid_request', message, details: { path } }
      t.throws(() => engineSchema(schema), expected, JSON.stringify(schema))
    }
  }
})

t.test('the schema conversion reports constraints that grammars do not enforce', async t => {
  const odd: [Schema, string[]] = [
    object({ 'a/b ~é,\ud800': { not: word } }),
    ['#/properties/a~1b%20~0%C3%A9%2C%EF%BF%BD/not']
  ]
  for (const [schema, places] of [...cases.unenforced, odd])
    t.same([...engineSchema(schema).unenforced].sort(), places.sort(), JSON.stringify(schema))

  const headerOf = (body: Schema) => pointerList(unenforced(body)) || undefined
  const schema = { not: word }
  t.equal(headerOf({ messages: [] }), undefined)
  t.equal(headerOf({ response_format: { type: 'text' }, json_schema: {} }), undefined)
  t.equal(headerOf({ json_schema: schema }), '#/not')
  t.equal(headerOf({ response_format: { json_schema: { schema } } }), '#/not')
  t.equal(headerOf({ response_format: { schema } }), '#/not')
  t.equal(headerOf({ tools: [{ function: { parameters: schema } }] }), undefined, 'only formats are reported')
  t.equal(headerOf({ response_format: null }), undefined)
  const many = { anyOf: Array.from({ length: 13 }, () => schema) }
  t.match(headerOf({ json_schema: many }), /^#\/anyOf\/0\/not, .*#\/anyOf\/9\/not, \+3$/)
  const long = { ...object({ ['a'.repeat(100_000)]: schema }), not: word }
  t.equal(headerOf({ json_schema: long }), '#/not, +1', 'a header stays short')
})

t.test('the schema conversion rewrites schemas in every place of a request', async t => {
  for (const { body, made = body } of cases.requests) t.strictSame(withEngineSchemas(body), made)
})

t.test('untrusted schemas take little time and memory', async t => {
  const times = (count: number, from: Schema, wrap: (schema: Schema, level: number) => Schema) => {
    let made = from
    for (let level = 0; level < count; level++) made = wrap(made, level)
    return made
  }
  const both = (a: Schema) => ({ anyOf: [a, { ...a, maxLength: 5 }] })
  const named = (count: number, of: (index: number) => Schema) => {
    return Object.fromEntries(Array.from({ length: count }, (_, index) => [`n${index}`, of(index)]))
  }
  const next = (index: number) => ({ $ref: `#/$defs/n${index + 1}` })
  const refused: Record<string, Schema> = {
    'alternatives that multiply': { allOf: Array.from({ length: 40 }, () => ({ anyOf: [word, { minLength: 1 }] })) },
    'nested alternatives': times(20, word, both),
    'lengths of many texts': object(named(200, () => ({ type: 'string', maxLength: 2000 })))
  }
  for (const [title, schema] of Object.entries(refused)) t.throws(() => engineSchema(schema), TooCostly, title)
  const accepted: Record<string, Schema> = {
    'chain of references': { $ref: '#/$defs/n0', $defs: { ...named(1500, next), n1500: word } },
    'chain of references beside keywords': {
      ...next(-1),
      title: 'x',
      $defs: { ...named(1500, index => ({ allOf: [next(index)], minLength: 1 })), n1500: word }
    },
    'nested lists that are written out': times(9, { type: 'boolean' }, items => ({
      type: 'array',
      prefixItems: [{ type: 'null' }],
      items,
      minItems: 17
    })),
    'comparisons that multiply': {
      oneOf: [{ $ref: '#/$defs/n0' }, digit],
      $defs: { ...named(5, index => ({ anyOf: Array.from({ length: 40 }, () => next(index)) })), n5: word }
    }
  }
  for (const [title, schema] of Object.entries(accepted)) {
    const { length } = JSON.stringify(engineSchema(schema).schema)
    t.ok(length < 32 * JSON.stringify(schema).length, title)
  }
  const ring = { $ref: '#/$defs/n0', $defs: named(9000, index => ({ $ref: `#/$defs/n${(index + 1) % 9000}` })) }
  t.throws(() => engineSchema(ring), CorralError, 'ring of references')
})
