import t from 'tap'
import { DEMO, startCorral } from '../support/corral.ts'

/* A stored response exists only for the key that made it. */

const KEYS = { victim: 'victim-0123456789-0123456789-0123456789', other: 'other-0123456789-0123456789-0123456789' }
type Owner = keyof typeof KEYS
const SECRET = 'The code of the vault is 4711.'

t.test('stored responses of another key cannot be read, continued or deleted', async t => {
  const corral = await startCorral(t, {
    config: `security:\n  api_keys: [${Object.values(KEYS).join(', ')}]\nlimits: { stored_responses: 3 }`
  })
  const as = (owner: Owner, path: string, body?: object, method?: string) =>
    corral.json(path, body, { ...(method && { method }), headers: { authorization: `Bearer ${KEYS[owner]}` } })
  const respond = (owner: Owner, more: object) =>
    as(owner, '/v1/responses', { model: DEMO, max_output_tokens: 4, temperature: 0, ...more })

  const { body: mine } = await respond('victim', { input: SECRET })
  const [item] = (await as('victim', `/v1/responses/${mine.id}/input_items`)).body.data
  t.match(item.content[0].text, SECRET)

  const reference = { type: 'item_reference', id: item.id }
  const attempts = (id: string): [string, string, object?, string?][] => [
    ['show', `/v1/responses/${id}`],
    ['stream', `/v1/responses/${id}?stream=true`],
    ['its input', `/v1/responses/${id}/input_items`],
    ['cancel', `/v1/responses/${id}/cancel`, {}],
    ['delete', `/v1/responses/${id}`, undefined, 'DELETE'],
    ['continue', '/v1/responses', { model: DEMO, input: 'Which code?', previous_response_id: id }],
    ['count', '/v1/responses/input_tokens', { model: DEMO, input: 'x', previous_response_id: id }]
  ]
  const absent = 'resp_0123456789abcdef0123456789abcdef'
  const withoutId = ({ status, body }: { status: number; body: any }) => ({ status, error: body.error })
  for (const [index, [what, path, body, method]] of attempts(mine.id).entries()) {
    const found = await as('other', path, body, method)
    t.match(found, { status: 404, body: { error: { code: 'response_not_found' } } }, what)
    const [, nowhere, same, how] = attempts(absent)[index]!
    const never = await as('other', nowhere, same && { ...same }, how)
    t.strictSame(withoutId(found), withoutId(never), 'as if it did not exist')
  }
  const quoting = await respond('other', { input: [{ role: 'user', content: 'Which code?' }, reference] })
  const nothing = await respond('other', {
    input: [
      { role: 'user', content: 'Which code?' },
      { ...reference, id: 'msg_0' }
    ]
  })
  t.equal(quoting.status, nothing.status)
  t.not(quoting.status, 200, 'an item of another key does not exist')
  t.notMatch(JSON.stringify(quoting.body), '4711')

  for (let count = 0; count < 5; count++) await respond('other', { input: `Response ${count}` })
  t.equal((await as('victim', `/v1/responses/${mine.id}`)).body.id, mine.id, 'no key evicts the responses of another')
  const { body: next } = await respond('victim', { input: 'Which code?', previous_response_id: mine.id })
  t.equal(next.previous_response_id, mine.id)
  for (let count = 0; count < 3; count++) await respond('victim', { input: `Response ${count}` })
  t.equal((await as('victim', `/v1/responses/${mine.id}`)).status, 404, 'each key stores as many as the limit allows')
})
