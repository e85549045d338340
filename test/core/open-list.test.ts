import t from 'tap'
import { OpenList, type OpenPlace } from '../../core/system/open-list.ts'

t.test('has all that were added and not removed, whatever the order', async t => {
  const list = new OpenList<{ name: number }>()
  const places = new Map<number, OpenPlace<{ name: number }>>()
  let seed = 7
  for (let name = 0; name < 2000; name++) {
    places.set(name, list.add({ name }))
    seed = (seed * 16_807) % 2_147_483_647
    if (seed % 3 === 0) continue
    const gone = [...places.keys()][seed % places.size]!
    t.equal(list.remove(places.get(gone)!), true)
    places.delete(gone)
  }
  t.equal(list.size, places.size)
  t.strictSame(
    list
      .all()
      .map(({ name }) => name)
      .sort((a, b) => a - b),
    [...places.keys()]
  )
})

t.test('a place is emptied once, and keeps nothing', async t => {
  const list = new OpenList<{ name: string }>()
  const [one, other] = [list.add({ name: 'one' }), list.add({ name: 'other' })]
  t.equal(list.remove(one), true)
  t.equal(one.thing, undefined)
  t.equal(list.remove(one), false)
  t.strictSame(list.all(), [{ name: 'other' }])
  t.equal(list.remove(other), true)
  t.equal(list.size, 0)
})

t.test('whoever goes through it may take others away', async t => {
  const list = new OpenList<{ name: number }>()
  const places = [0, 1, 2, 3].map(name => list.add({ name }))
  for (const { name } of list.all()) list.remove(places[name]!)
  t.equal(list.size, 0)
})
