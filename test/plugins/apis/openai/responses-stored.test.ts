import t from 'tap'
import { CorralError } from '../../../../core/errors.ts'
import type { ResponseObject } from '../../../../plugins/apis/openai/responses/response-writer.ts'
import type { Item } from '../../../../plugins/apis/openai/responses/schemas.ts'
import { itemPage, StoredResponses } from '../../../../plugins/apis/openai/responses/stored-responses.ts'
import { randomBelow } from '../../../support/random.ts'

function stored(id: string, input: Item[], output: Item[], more: object = {}) {
  return { response: { id, output, ...more } as unknown as ResponseObject, input }
}
const itemOf = (id: string, text: string): Item => ({
  type: 'message',
  id,
  status: 'completed',
  role: 'user',
  content: [{ type: 'input_text', text }]
})

const ME = 'key:me'

/** Deletes a response, unless it was removed before. */
function remove(responses: StoredResponses, id: string): void {
  try {
    responses.delete(ME, id)
  } catch (error) {
    if (!(error instanceof CorralError) || error.code !== 'response_not_found') throw error
  }
}

t.test('stored responses: the oldest are dropped, shared items are kept', async t => {
  const [first, second, third] = ['1', '2', '3'].map(id => itemOf(`msg_${id}`, 'x'.repeat(1000)))
  const all = [
    stored('a', [first!], []),
    stored('b', [first!, second!], []),
    stored('c', [first!, second!, third!], []),
    stored('d', [itemOf('msg_4', 'x')], [])
  ]
  const roomy = new StoredResponses(1e6, 1000)
  const sizes = all.map(response => {
    roomy.add(ME, response)
    return roomy.bytes
  })
  t.ok(sizes[1]! < 2.2 * sizes[0]!, 'shared items are counted once')
  t.strictSame(roomy.get(ME, 'a').input, [first])
  t.strictSame([...roomy.itemsById(ME).keys()], ['msg_1', 'msg_2', 'msg_3', 'msg_4'])

  const responses = new StoredResponses(roomy.bytes - 1, 1000)
  for (const response of all) responses.add(ME, response)
  t.throws(() => responses.get(ME, 'a'), { code: 'response_not_found', param: 'response_id' })
  responses.get(ME, 'd')
  responses.add(ME, stored('e', [itemOf('msg_5', 'x'.repeat(5000))], []))
  t.throws(() => responses.get(ME, 'e', 'previous_response_id'), {
    code: 'response_not_found',
    param: 'previous_response_id'
  })
  t.strictSame(responses.get(ME, 'c').input, [first, second, third], 'a response that is too large evicts no others')
  for (const id of ['b', 'c', 'd']) responses.delete(ME, id)
  t.equal(responses.bytes, 0)
  t.equal(responses.itemsById(ME).size, 0)
  const nothing = new StoredResponses(0, 1000)
  nothing.add(ME, stored('a', [first!], []))
  t.equal(nothing.bytes, 0)
})

t.test('stored responses: the size stays correct after adds and deletes', async t => {
  const next = randomBelow(9)
  const responses = new StoredResponses(20_000, 1000)
  const items = Array.from({ length: 40 }, (_, index) => itemOf(`msg_${index}`, 'x'.repeat(next(900))))
  const ids: string[] = []
  for (let step = 0; step < 500; step++) {
    if (next(4)) {
      ids.push(`r${step}`)
      const input = Array.from({ length: next(8) }, () => items[next(items.length)]!)
      responses.add(ME, stored(`r${step}`, input, [items[next(items.length)]!], { text: 'y'.repeat(next(3000)) }))
    } else if (ids.length > 0) {
      remove(responses, ids.splice(next(ids.length), 1)[0]!)
    }
    if (responses.bytes > 20_000) t.fail(`holds ${responses.bytes} bytes`)
  }
  for (const id of ids) remove(responses, id)
  t.equal(responses.bytes, 0)
})

t.test('stored responses: owners are isolated', async t => {
  const one = itemOf('msg_1', 'secret')
  const responses = new StoredResponses(1e6, 2)
  responses.add(ME, stored('a', [one], []))
  const missing = { code: 'response_not_found' }
  t.throws(() => responses.get('key:other', 'a'), missing)
  t.throws(() => responses.delete('key:other', 'a'), missing)
  t.equal(responses.itemsById('key:other').size, 0)
  responses.add('key:other', stored('a', [], []))
  t.strictSame(responses.get(ME, 'a').input, [one], 'ids do not collide')

  for (const id of ['b', 'c', 'd']) responses.add('key:other', stored(id, [], []))
  t.throws(() => responses.get('key:other', 'b'), missing, 'the limit per owner applies')
  responses.get('key:other', 'c')
  responses.get(ME, 'a')
})

t.test('stored responses: no owner can evict those of others', async t => {
  const small = stored('small', [itemOf('msg_1', 'x')], [])
  const responses = new StoredResponses(10_000, 1000)
  responses.add(ME, small)
  for (let step = 0; step < 100; step++) {
    responses.add('key:other', stored(`r${step}`, [itemOf(`msg_${step}`, 'x'.repeat(900))], []))
    if (responses.bytes > 10_000) t.fail(`holds ${responses.bytes} bytes`)
  }
  t.equal(responses.get(ME, 'small').input.length, 1)
  responses.get('key:other', 'r99')
  t.throws(() => responses.get('key:other', 'r0'), { code: 'response_not_found' })
})

t.test('lists items in pages', async t => {
  const items = ['a', 'b', 'c', 'd', 'e'].map(id => itemOf(id, ''))
  const ids = (page: ReturnType<typeof itemPage>) => page.data.map(({ id }) => id).join('')
  t.equal(ids(itemPage(items, {})), 'edcba')
  t.equal(ids(itemPage(items, { order: 'asc' })), 'abcde')
  const page = itemPage(items, { limit: 2, after: 'd' })
  t.match(page, { object: 'list', first_id: 'c', last_id: 'b', has_more: true })
  t.match(itemPage(items, { limit: 2, after: 'b' }), { first_id: 'a', last_id: 'a', has_more: false })
  t.match(itemPage([], {}), { data: [], first_id: null, last_id: null, has_more: false })
  // Pages make progress even if several items have the same id.
  const same = ['a', 'x', 'x', 'b'].map(id => itemOf(id, ''))
  t.equal(ids(itemPage(same, { order: 'asc', limit: 2, after: 'x' })), 'b')
})
