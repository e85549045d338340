import t from 'tap'
import { engineSchema, withEngineSchemas } from '../../runtimes/llama-server/grammar-schemas.ts'

const word = { type: 'string' }
const digit = { type: 'integer' }

t.test('schemas are rewritten for grammars', async t => {
  const cases: [title: string, schema: object, made: object][] = [
    ['nothing to do', { type: 'object', properties: { a: word } }, { type: 'object', properties: { a: word } }],
    [
      'anything',
      { properties: { a: true }, additionalProperties: true },
      { properties: { a: {} }, additionalProperties: true }
    ],
    ['any items', { type: 'array', items: true }, { type: 'array', items: {} }],
    ['no items', { type: 'array', items: false }, { type: 'array', items: {}, maxItems: 0 }],
    ['no items, but one at least', { items: false, minItems: 1 }, { items: false, minItems: 1 }],
    ['only places', { prefixItems: [word, digit], items: false }, { prefixItems: [word, digit] }],
    ['places and others', { prefixItems: [word], items: digit }, { prefixItems: [word] }],
    ['as many as must be', { prefixItems: [word], items: digit, minItems: 3 }, { prefixItems: [word, digit, digit] }],
    ['others of any kind', { prefixItems: [word], minItems: 2 }, { prefixItems: [word, {}] }],
    [
      'more than there are places',
      { prefixItems: [word], items: false, minItems: 2 },
      { prefixItems: [word], items: false, minItems: 2 }
    ],
    ['too many to write out', { prefixItems: [word], minItems: 1e9 }, { prefixItems: [word], minItems: 1e9 }],
    ['as many as may be', { prefixItems: [word, digit], maxItems: 1 }, { prefixItems: [word] }],
    ['none may be', { prefixItems: [word], maxItems: 0 }, { items: {}, maxItems: 0 }],
    ['the older word', { items: [word], additionalItems: false, minItems: 1 }, { prefixItems: [word] }],
    [
      'deep inside',
      { anyOf: [{ $defs: { a: { allOf: [{ items: false }] } } }] },
      { anyOf: [{ $defs: { a: { allOf: [{ items: {}, maxItems: 0 }] } } }] }
    ],
    [
      'values are no schemas',
      { enum: [{ items: false }], default: { $ref: '#' } },
      { enum: [{ items: false }], default: { $ref: '#' } }
    ],
    ['names are no words', { properties: { items: word, $ref: word } }, { properties: { items: word, $ref: word } }],
    [
      'the whole',
      { properties: { next: { $ref: '#' } }, $defs: { whole: word } },
      {
        properties: { next: { $ref: '#/$defs/whole-' } },
        $defs: { whole: word, 'whole-': { properties: { next: { $ref: '#/$defs/whole-' } } } }
      }
    ],
    ['nothing but itself', { $ref: '#' }, { $ref: '#' }]
  ]
  for (const [title, schema, made] of cases) t.strictSame(engineSchema(schema as never), made, title)
})

t.test('where requests have schemas', async t => {
  const none = { type: 'array', items: false }
  const made = { type: 'array', items: {}, maxItems: 0 }
  const tool = (parameters: unknown) => ({ type: 'function', function: { name: 'f', parameters } })
  const cases: [object, object][] = [
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
  for (const [body, asked] of cases) t.strictSame(withEngineSchemas(body as never), asked)
})

t.test('lists that are written out within each other do not multiply', async t => {
  let schema: Record<string, unknown> = { type: 'boolean' }
  for (let level = 0; level < 9; level++) {
    schema = { type: 'array', prefixItems: [{ type: 'null' }], items: schema, minItems: 17 }
  }
  t.ok(JSON.stringify(engineSchema(schema)).length < 32 * JSON.stringify(schema).length)
})
