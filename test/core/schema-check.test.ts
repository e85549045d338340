import t from 'tap'
import { Type } from 'typebox'
import { allowedBy, faultSentence, findFault } from '../../core/system/schema-check.ts'
import { readCases } from '../support/fixture.ts'

t.test('faultSentence explains the first error of a value', async t => {
  const Item = Type.Object({ type: Type.Enum(['a', 'b']), size: Type.Optional(Type.Integer({ minimum: 1 })) })
  const schema = Type.Object(
    {
      items: Type.Array(Item),
      name: Type.Optional(Type.Union([Type.String({ minLength: 1 }), Type.Null()])),
      more: Type.Optional(Type.Record(Type.String(), Type.Number()))
    },
    { additionalProperties: false }
  )
  for (const [value, sentence] of readCases<[unknown, string][]>('core-cases.yaml', 'schemaFaults')) {
    const fault = findFault(schema, value)
    t.equal(fault && faultSentence(fault, 'The record'), sentence)
  }
  t.equal(findFault(schema, { items: [{ type: 'b', size: 2 }], name: null }), undefined)
  t.equal(allowedBy({ type: ['string', 'integer'], maximum: 5 }), 'text or a whole number, at most 5')
  t.equal(allowedBy({ type: 'string', pattern: '^[a-z]$' }), 'text that matches ^[a-z]$')
  t.equal(allowedBy({ type: 'string', pattern: '^[a-z]$', title: 'a small letter' }), 'a small letter')
  t.equal(allowedBy({ anyOf: [{ type: 'boolean' }, { const: 7 }] }), 'true or false or 7')
})
