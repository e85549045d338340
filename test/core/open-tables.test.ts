import t from 'tap'
import { OpenMap, OpenSet } from '../../core/system/open-tables.ts'

t.test('OpenMap and OpenSet behave like Map and Set in any order of operations', async t => {
  const [map, set] = [new OpenMap<number, string>(), new OpenSet<number>()]
  const expected = new Map<number, string>()
  let seed = 7
  const random = (below: number) => {
    seed = (seed * 16_807) % 2_147_483_647
    return seed % below
  }
  for (let step = 0; step < 5000; step++) {
    const key = random(100)
    // Sometimes there are many entries, sometimes few or none.
    if (random(100) < (step % 1000 < 500 ? 70 : 20)) {
      map.set(key, `${step}`)
      set.add(key)
      expected.set(key, `${step}`)
    } else {
      const isThere = expected.delete(key)
      if (map.delete(key) !== isThere || set.delete(key) !== isThere) t.fail(`step ${step}: ${key}`)
    }
    if (map.size !== expected.size || set.size !== expected.size) t.fail(`step ${step}: size`)
    if (map.get(key) !== expected.get(key) || set.has(key) !== expected.has(key)) t.fail(`step ${step}: ${key}`)
  }
  t.strictSame([...map], [...expected])
  t.strictSame([...map.values()], [...expected.values()])
  t.strictSame([...set], [...map.keys()])
  map.clear()
  t.equal(map.size, 0)
  t.strictSame([...map], [])
})

t.test('entries may be deleted during an iteration', async t => {
  const set = new OpenSet<number>()
  for (let thing = 0; thing < 100; thing++) set.add(thing)
  const met: number[] = []
  for (const thing of set) {
    met.push(thing)
    set.delete(thing)
  }
  t.equal(met.length, 100)
  t.equal(set.size, 0)
})
