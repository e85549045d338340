import t from 'tap'
import { pointerList } from '../../../core/answers/answer-headers.ts'
import { CorralError } from '../../../core/errors.ts'
import { engineSchema } from '../../../runtimes/llama-server/engine-schema.ts'
import { TooCostly } from '../../../runtimes/llama-server/grammar-cost.ts'
import { unenforced, withEngineSchemas } from '../../../runtimes/llama-server/grammar-schemas.ts'

type Schema = Record<string, unknown>
const word = { type: 'string' }
const digit = { type: 'integer' }
const never = { type: 'string', minLength: 8, maxLength: 4 }
const object = (properties: object, ...required: string[]) => ({
  type: 'object',
  properties,
  ...(required.length > 0 && { required })
})
const FAR = 999_999_999_999_999

t.test('rewrites schemas in the form that llama.cpp enforces', async t => {
  const cases: [title: string, schema: Schema, made: Schema][] = [
    [
      'annotations and order stay',
      { description: 'd', ...object({ a: word }), title: 't' },
      { description: 'd', ...object({ a: word }), title: 't' }
    ],
    [
      'list of types stays',
      { type: ['string', 'null'], description: 'd' },
      { type: ['string', 'null'], description: 'd' }
    ],
    [
      'list of types with limits',
      { type: ['integer', 'null'], minimum: 0 },
      { anyOf: [{ type: 'integer', minimum: 0 }, { type: 'null' }] }
    ],
    [
      'anything',
      { properties: { a: true }, additionalProperties: true },
      { ...object({ a: {} }), additionalProperties: true }
    ],
    [
      'nulls that programs write for absent keywords',
      { type: 'object', properties: null, required: null, items: null, anyOf: null },
      object({})
    ],
    ['null as a value', { const: null, default: null }, { const: null, default: null }],
    ['only places', { prefixItems: [word, digit], items: false }, { type: 'array', prefixItems: [word, digit] }],
    [
      'as many places as required',
      { prefixItems: [word], items: digit, minItems: 2 },
      { type: 'array', prefixItems: [word, digit] }
    ],
    ['as many places as allowed', { prefixItems: [word, digit], maxItems: 1 }, { type: 'array', prefixItems: [word] }],
    ['no place for impossible items', { prefixItems: [word, false] }, { type: 'array', prefixItems: [word] }],
    [
      'places in the older form',
      { items: [word], additionalItems: false, minItems: 1 },
      { type: 'array', prefixItems: [word] }
    ],
    ['no items', { type: 'array', items: never }, { type: 'array', items: {}, maxItems: 0 }],
    [
      'required without a schema',
      { type: 'object', required: ['a'] },
      { ...object({ a: {} }, 'a'), additionalProperties: true }
    ],
    [
      'required and described by the others',
      { type: 'object', required: ['a'], additionalProperties: digit },
      { ...object({ a: digit }, 'a'), additionalProperties: digit }
    ],
    [
      'names that llama.cpp cannot exclude',
      { ...object({ 'a]': word }), additionalProperties: true },
      object({ 'a]': word })
    ],
    ['impossible optional property', object({ a: never, b: word }), object({ b: word })],
    ['impossible alternative', { anyOf: [never, word] }, { anyOf: [word] }],
    [
      'value that does not fit',
      { type: 'string', enum: ['a', 3, 'a', 'long'], maxLength: 2 },
      { type: 'string', enum: ['a'] }
    ],
    ['values by a pattern', { enum: ['ab', 'cb'], pattern: '^a' }, { enum: ['ab'] }],
    [
      'const within an enum',
      { allOf: [{ const: { a: 1, b: 2 } }, { enum: [7, { b: 2, a: 1 }] }] },
      { enum: [{ a: 1, b: 2 }] }
    ],
    [
      'fractions as limits of integers',
      { type: 'integer', minimum: 2.2, exclusiveMaximum: 4.5 },
      { type: 'integer', minimum: 3, maximum: 4 }
    ],
    [
      'exclusive limits of draft 4',
      { type: 'integer', minimum: 2, exclusiveMinimum: true, maximum: 9 },
      { type: 'integer', minimum: 3, maximum: 9 }
    ],
    [
      'integers with one limit',
      object({ a: { type: 'integer', minimum: 105 }, b: { type: 'integer', maximum: -1 } }),
      object({ a: { type: 'integer', minimum: 105, maximum: FAR }, b: { type: 'integer', maximum: -1, minimum: -FAR } })
    ],
    [
      'large integers',
      { type: 'integer', minimum: 1e17, maximum: 1e300 },
      { type: 'integer', minimum: 1e17, maximum: 9e18 }
    ],
    [
      'length limits within a pattern',
      { type: 'string', pattern: '^[a-z]+$', maxLength: 5 },
      { type: 'string', pattern: '^[a-z]{1,5}$' }
    ],
    [
      'keywords beside alternatives',
      { ...object({ a: word, b: word }), anyOf: [{ required: ['a'] }, { required: ['b'] }] },
      { anyOf: [object({ a: word, b: word }, 'a'), object({ a: word, b: word }, 'b')] }
    ],
    [
      'allOf',
      { allOf: [object({ a: word }, 'a'), object({ a: { maxLength: 3 }, b: digit }), { type: ['object', 'null'] }] },
      object({ a: { ...word, maxLength: 3 }, b: digit }, 'a')
    ],
    [
      'keywords beside a reference',
      { $defs: { a: { type: 'integer', minimum: 1 } }, $ref: '#/$defs/a', maximum: 3 },
      { type: 'integer', minimum: 1, maximum: 3 }
    ],
    [
      'exact number of properties',
      { ...object({ a: word, b: word }, 'a'), maxProperties: 1, additionalProperties: true },
      { ...object({ a: word }, 'a'), maxProperties: 1 }
    ],
    [
      'every property',
      { ...object({ a: word, b: word }), minProperties: 2, additionalProperties: false },
      { ...object({ a: word, b: word }, 'a', 'b'), minProperties: 2, additionalProperties: false }
    ],
    [
      'escapes in references',
      {
        ...object({ a: { $ref: '#/$defs/acme~1Flag' }, b: { $ref: '#/$defs/x%20~0y' } }),
        $defs: { 'acme/Flag': word, 'x ~y': digit }
      },
      { ...object({ a: { $ref: '#/$defs/d0' }, b: { $ref: '#/$defs/d1' } }), $defs: { d0: word, d1: digit } }
    ],
    [
      'names that llama.cpp confuses',
      {
        ...object({ a: { $ref: '#/$defs/x_y' }, b: { $ref: '#/definitions/x-y' }, c: { $ref: '#/$defs/plain' } }),
        definitions: { 'x-y': digit },
        $defs: { x_y: word, plain: word }
      },
      {
        ...object({ a: { $ref: '#/$defs/d0' }, b: { $ref: '#/$defs/d1' }, c: { $ref: '#/$defs/plain' } }),
        $defs: { d0: word, d1: digit, plain: word }
      }
    ],
    [
      'wrapped reference',
      { allOf: [{ $ref: '#/$defs/a' }], description: 'd', $defs: { a: word } },
      { $ref: '#/$defs/a', description: 'd', $defs: { a: word } }
    ],
    [
      'itself',
      object({ next: { $ref: '#' } }),
      { ...object({ next: { $ref: '#/$defs/d0' } }), $defs: { d0: object({ next: { $ref: '#/$defs/d0' } }) } }
    ],
    [
      'itself in an alternative',
      object({ next: { anyOf: [{ type: 'null' }, { $ref: '#' }] } }, 'next'),
      {
        ...object({ next: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/d0' }] } }, 'next'),
        $defs: { d0: object({ next: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/d0' }] } }, 'next') }
      }
    ],
    [
      'endless values are left out',
      {
        ...object({ a: word, b: { $ref: '#/$defs/endless' } }),
        $defs: { endless: object({ next: { $ref: '#/$defs/endless' } }, 'next') }
      },
      object({ a: word })
    ],
    [
      'values are not schemas',
      { enum: [{ items: false }], default: { $ref: '#' } },
      { enum: [{ items: false }], default: { $ref: '#' } }
    ],
    [
      'names are not keywords',
      object({ items: word, $ref: word, toString: word }),
      object({ items: word, $ref: word, toString: word })
    ]
  ]
  for (const [title, schema, made] of cases) t.strictSame(engineSchema(schema).schema, made, title)
  const colors = Array.from({ length: 200 }, (_, index) => `color ${index}`)
  t.match(engineSchema({ enum: colors }).schema, { type: 'string', pattern: /^\^color / }, 'many texts of a format')
  t.same(engineSchema({ enum: colors }, false).schema, { enum: colors }, 'the model reads those of a tool')
  const tool = {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    type: 'object',
    description: 'd',
    required: ['path', 'edits'],
    additionalProperties: false,
    properties: {
      path: { description: 'd', type: 'string', format: 'uri', minLength: 1, default: '/' },
      ratio: { type: 'number', maximum: 1, exclusiveMinimum: 0, multipleOf: 0.1 },
      lines: { type: ['integer', 'null'], default: null },
      mode: { enum: ['a', 'b'], type: 'string' },
      edits: { minItems: 1, type: 'array', uniqueItems: true, items: { $ref: '#/$defs/Edit', description: 'd' } },
      more: { type: 'object', additionalProperties: { type: 'string' }, properties: {}, maxProperties: 9 },
      choice: { anyOf: [{ type: 'string' }, { type: 'null' }], title: 't' }
    },
    $defs: { Edit: { type: 'object', properties: { old: { type: 'string', pattern: '^[a-z]+$' } }, required: ['old'] } }
  }
  t.equal(
    JSON.stringify(engineSchema(tool, false).schema),
    JSON.stringify(tool),
    'a common tool schema reaches the model unchanged'
  )
})

t.test('rejects schemas that no value fits, with the place', async t => {
  const cases: [path: string, schema: Schema][] = [
    ['#/properties/code/minLength', object({ code: never }, 'code')],
    ['#/minItems', { type: 'array', minItems: 3, maxItems: 2 }],
    ['#/minItems', { type: 'array', minItems: 3, uniqueItems: true, items: { enum: [1, 2, 1] } }],
    ['#/minProperties', { type: 'object', minProperties: 3, maxProperties: 2 }],
    ['#/minProperties', { ...object({ a: word }), additionalProperties: false, minProperties: 2 }],
    ['#/maxProperties', { ...object({ a: word, b: word }, 'a', 'b'), maxProperties: 1 }],
    ['#/minimum', { type: 'integer', minimum: 5, maximum: 4 }],
    ['#/minimum', { type: 'number', minimum: 0.5, maximum: 0.4 }],
    ['#/minimum', { type: 'number', minimum: 3, exclusiveMaximum: 3 }],
    ['#/exclusiveMinimum', { minimum: 1, exclusiveMinimum: 4, exclusiveMaximum: 4 }],
    ['#', { type: 'integer', minimum: 3.2, maximum: 3.8 }],
    ['#/properties/n', object({ n: { type: 'integer', exclusiveMinimum: 3, exclusiveMaximum: 4 } }, 'n')],
    ['#', { type: 'integer', minimum: 6, maximum: 9, multipleOf: 5 }],
    ['#', { type: 'integer', minimum: 1e30 }],
    ['#', { enum: [] }],
    ['#', { const: 1, enum: [2] }],
    ['#', { const: 'a', type: 'integer' }],
    ['#', { const: 'abc', pattern: '^x' }],
    ['#', { enum: [1, 2], minimum: 3 }],
    ['#/properties/a', object({ a: false }, 'a')],
    ['#/additionalProperties', { ...object({}, 'a'), additionalProperties: false }],
    ['#/additionalProperties/minLength', { ...object({}, 'a'), additionalProperties: never }],
    ['#/allOf/1/type', { allOf: [word, digit] }],
    [
      '#/allOf/1/additionalProperties',
      { allOf: [object({ a: word }, 'a'), { ...object({ b: word }), additionalProperties: false }] }
    ],
    ['#/anyOf/0/minLength', { anyOf: [never, false] }],
    ['#/minLength', { type: 'string', pattern: '^[a-z]{2}$', minLength: 3 }],
    ['#/maxLength', { type: 'string', pattern: 'abc', maxLength: 2 }],
    ['#/minLength', { type: 'string', minLength: 1_000_000 }],
    ['#/minItems', { type: 'array', items: word, minItems: 10_000_000 }],
    ['#/items', { type: 'array', prefixItems: [word], items: false, minItems: 2 }],
    ['#/not', { not: {} }],
    ['#', { $ref: '#' }],
    ['#/anyOf/0', { anyOf: [{ $ref: '#' }] }],
    ['#/properties/next', object({ next: { $ref: '#' } }, 'next')],
    ['#/$defs/a', { $ref: '#/$defs/a', $defs: { a: false } }],
    ['#/$defs/a/minLength', { $ref: '#/$defs/a', $defs: { a: never } }]
  ]
  for (const [path, schema] of cases) {
    t.throws(
      () => engineSchema(schema),
      { code: 'invalid_request', message: /No value can match/, details: { path } },
      JSON.stringify(schema)
    )
  }
})

t.test('rejects malformed schemas, with the place', async t => {
  const cases: [path: string, schema: Schema][] = [
    ['#/type', { type: 'nonsense' }],
    ['#/type', { type: [] }],
    ['#/properties', { properties: 7 }],
    ['#/properties/a', { properties: { a: 'odd' } }],
    ['#/items', { items: 'odd' }],
    ['#/allOf', { allOf: 7 }],
    ['#/anyOf', { anyOf: [] }],
    ['#/enum', { enum: 'a' }],
    ['#/pattern', { type: 'string', pattern: '^(a$' }],
    ['#/pattern', { type: 'string', pattern: '^a{8,4}$' }],
    ['#/pattern', { pattern: 7 }],
    ['#/minLength', { type: 'string', minLength: -1 }],
    ['#/maxItems', { type: 'array', maxItems: 1.5 }],
    ['#/minimum', { type: 'integer', minimum: '1' }],
    ['#/multipleOf', { type: 'integer', multipleOf: 0 }],
    ['#/$ref', { $ref: '#/$defs/none' }],
    ['#/$ref', { $ref: '#/constructor' }],
    ['#/$ref', { $ref: 'https://example.com/schema' }],
    ['#/$ref', { $ref: 7 }]
  ]
  for (const [path, schema] of cases) {
    t.throws(
      () => engineSchema(schema),
      { code: 'invalid_request', message: /malformed/, details: { path } },
      JSON.stringify(schema)
    )
  }
})

t.test('reports constraints that grammars do not enforce', async t => {
  const cases: [schema: Schema, places: string[]][] = [
    [object({ a: { type: 'integer', minimum: 1, maximum: 3, multipleOf: 1 } }, 'a'), []],
    [{ type: 'array', items: { type: 'string', maxLength: 3 }, minItems: 1, uniqueItems: false }, []],
    [{ type: 'string', pattern: '^a+$' }, []],
    [{ type: 'string', format: 'date-time' }, []],
    [{ anyOf: [word, { type: 'null' }], title: 'A', default: null }, []],
    [
      object({ price: { type: 'number', minimum: 0, exclusiveMaximum: 9.5 } }),
      ['#/properties/price/minimum', '#/properties/price/exclusiveMaximum']
    ],
    [{ type: ['number', 'null'], maximum: 1 }, ['#/maximum']],
    [{ type: 'integer', multipleOf: 5 }, ['#/multipleOf']],
    [{ type: 'array', items: { anyOf: [{ uniqueItems: true }] } }, ['#/items/anyOf/0/uniqueItems']],
    [{ prefixItems: [{}, { not: word }] }, ['#/prefixItems/1/not']],
    [{ additionalProperties: { contains: {} }, $defs: { unused: { if: {} } } }, ['#/additionalProperties/contains']],
    [{ $ref: '#/$defs/a', $defs: { a: { if: {} } } }, ['#/$defs/a/if']],
    [{ type: 'string', pattern: '(?=a)' }, ['#/pattern']],
    [{ type: 'string', pattern: '^(ab)+$', maxLength: 3 }, ['#/maxLength']],
    [{ allOf: [{ pattern: '^a' }, { pattern: 'b$' }, { pattern: '^a' }] }, ['#/allOf/1/pattern']],
    [{ type: 'string', maxLength: 3000 }, ['#/maxLength']],
    [{ type: 'array', items: word, maxItems: 3000 }, ['#/maxItems']],
    [{ type: 'array', prefixItems: [word], minItems: 1000 }, ['#/minItems']],
    [{ type: 'string', format: 'email' }, ['#/format']],
    [{ ...object({ a: false }), additionalProperties: true }, ['#/properties/a']],
    [
      { ...object({ a: word, b: word, c: word }), maxProperties: 2, minProperties: 1 },
      ['#/maxProperties', '#/minProperties']
    ],
    [{ oneOf: [word, digit] }, []],
    [{ oneOf: [{ type: 'number' }, digit] }, ['#/oneOf']],
    [{ oneOf: [{ anyOf: [word, digit] }, { type: 'null' }] }, []],
    [{ oneOf: [{ anyOf: [word, digit] }, digit] }, ['#/oneOf']],
    [{ oneOf: [{}, digit] }, ['#/oneOf']],
    [
      {
        oneOf: [{ $ref: '#/$defs/a' }, object({ kind: { enum: ['b', 'c'] } }, 'kind')],
        $defs: { a: object({ kind: { const: 'a' } }, 'kind') }
      },
      []
    ],
    [{ oneOf: [object({ kind: { const: 'a' } }), object({ kind: { const: 'b' } })] }, ['#/oneOf']],
    [object({ 'a/b ~é,\ud800': { not: word } }), ['#/properties/a~1b%20~0%C3%A9%2C%EF%BF%BD/not']],
    [{ ...object({ not: word }), enum: [{ not: 1 }] }, ['#/properties']]
  ]
  for (const [schema, places] of cases)
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

t.test('rewrites schemas in every place of a request', async t => {
  const none = { type: 'array', items: false }
  const made = { type: 'array', items: {}, maxItems: 0 }
  const tool = (parameters: unknown) => ({ type: 'function', function: { name: 'f', parameters } })
  const cases: [Schema, object][] = [
    [{ messages: [] }, { messages: [] }],
    [{ json_schema: none }, { json_schema: made }],
    [
      { response_format: { type: 'json_object', schema: none } },
      { response_format: { type: 'json_object', schema: made } }
    ],
    [
      { response_format: { json_schema: { name: 'a', schema: none } } },
      { response_format: { json_schema: { name: 'a', schema: made } } }
    ],
    [{ tools: [tool(none), { type: 'odd' }] }, { tools: [tool(made), { type: 'odd' }] }],
    [
      { response_format: 'odd', json_schema: 7, tools: 'odd' },
      { response_format: 'odd', json_schema: 7, tools: 'odd' }
    ]
  ]
  for (const [body, asked] of cases) t.strictSame(withEngineSchemas(body), asked)
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
    'comparisons that multiply': {
      oneOf: [{ $ref: '#/$defs/n0' }, digit],
      $defs: { ...named(5, index => ({ anyOf: Array.from({ length: 40 }, () => next(index)) })), n5: word }
    },
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
    }))
  }
  for (const [title, schema] of Object.entries(accepted)) {
    const { length } = JSON.stringify(engineSchema(schema).schema)
    t.ok(length < 32 * JSON.stringify(schema).length, title)
  }
  t.throws(
    () =>
      engineSchema({
        $ref: '#/$defs/n0',
        $defs: named(9000, index => ({ $ref: `#/$defs/n${(index + 1) % 9000}` }))
      }),
    CorralError,
    'ring of references'
  )
})
