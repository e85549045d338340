import t from 'tap'
import { pointerList } from '../../core/answers/pipeline.ts'
import { unenforced, unenforcedIn } from '../../runtimes/llama-server/grammar-schemas.ts'

t.test('what llama.cpp’s grammars do not enforce of a schema', async t => {
  const price = { type: 'number', minimum: 0, exclusiveMaximum: 9.5 }
  const cases: [schema: unknown, places: string[]][] = [
    [{ type: 'object', properties: { a: { type: 'integer', minimum: 1, maximum: 3 } }, required: ['a'] }, []],
    [{ type: 'array', items: { type: 'string', maxLength: 3 }, minItems: 1, uniqueItems: false }, []],
    [{ type: 'string', pattern: '^a+$' }, []],
    [{ type: 'string', format: 'date-time' }, []],
    [{ anyOf: [{ type: 'string' }, { type: 'null' }], title: 'A', default: null }, []],
    [{ properties: { price } }, ['#/properties/price/minimum', '#/properties/price/exclusiveMaximum']],
    [{ type: ['number', 'null'], maximum: 1 }, ['#/maximum']],
    [{ type: 'integer', multipleOf: 5 }, ['#/multipleOf']],
    [{ type: 'array', items: { anyOf: [{ uniqueItems: true }] } }, ['#/items/anyOf/0/uniqueItems']],
    [{ prefixItems: [{}, { not: {} }] }, ['#/prefixItems/1/not']],
    [
      { $defs: { a: { if: {} } }, additionalProperties: { contains: {} } },
      ['#/additionalProperties/contains', '#/$defs/a/if']
    ],
    [{ type: 'string', pattern: 'a', maxLength: 3 }, ['#/maxLength']],
    [{ type: 'string', format: 'email' }, ['#/format']],
    [{ $ref: '#/$defs/a', minimum: 3, description: 'a' }, ['#/minimum']],
    [{ type: 'object', properties: {}, anyOf: [{ required: ['a'] }] }, ['#/properties']],
    [{ properties: { 'a/b ~é,\ud800': { not: {} } } }, ['#/properties/a~1b%20~0%C3%A9%2C%EF%BF%BD/not']],
    // Names and values are not keywords.
    [{ properties: { not: { type: 'string' } }, enum: [{ not: 1 }] }, []],
    ['no schema', []],
    [{ properties: 7, oneOf: null, items: null }, ['#/properties', '#/items']],
    [{ properties: {}, allOf: [{ not: {} }] }, ['#/allOf', '#/allOf/0/not']],
    [{ items: 'odd', allOf: 7 }, []]
  ]
  for (const [schema, places] of cases) t.same(unenforcedIn(schema).sort(), places.sort(), JSON.stringify(schema))
})

t.test('a header names it', async t => {
  const headerOf = (body: object) => pointerList(unenforced(body as Record<string, unknown>)) || undefined
  const schema = { not: {} }
  t.equal(headerOf({ messages: [] }), undefined)
  t.equal(headerOf({ response_format: { type: 'text' }, json_schema: {} }), undefined)
  t.equal(headerOf({ json_schema: schema }), '#/not')
  t.equal(headerOf({ response_format: { json_schema: { schema } } }), '#/not')
  t.equal(headerOf({ response_format: { schema } }), '#/not')
  t.equal(headerOf({ tools: [{ function: { parameters: schema } }] }), undefined, 'those of tools are for calls')
  t.equal(headerOf({ response_format: null }), undefined)
  const many = { anyOf: Array.from({ length: 13 }, () => schema) }
  t.match(headerOf({ json_schema: many }), /^#\/anyOf\/0\/not, .*#\/anyOf\/9\/not, \+3$/)
  const long = { properties: { ['a'.repeat(100_000)]: schema }, not: {} }
  t.equal(headerOf({ json_schema: long }), '#/not, +1', 'a header stays short')
})
