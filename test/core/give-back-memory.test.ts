import t from 'tap'
import { residentMemory } from '../../scripts/bench/measuring.ts'
import { type Corral, startCorral, until } from '../support/corral.ts'

const MODEL = 'corral/tiny-chat'
/** Requests of one load, and how many are sent at once. */
const LOAD = 2000
const AT_ONCE = 50
/** Loads: V8 may collect all garbage of its own accord while the server rests after one. */
const LOADS = 3
/** MiB of garbage that V8 has room for after a load, at least. */
const YOUNG = 10

/** Collections of all garbage so far. */
async function fullCollections(corral: Corral): Promise<number> {
  const text = await (await corral.send('/metrics')).text()
  return Number(/^nodejs_gc_duration_seconds_count\{kind="major"\} (\d+)$/m.exec(text)?.[1] ?? 0)
}

async function putUnderLoad(corral: Corral): Promise<void> {
  for (let sent = 0; sent < LOAD; sent += AT_ONCE) {
    const answers = Array.from({ length: AT_ONCE }, () => corral.json('/api/show', { model: MODEL }))
    for (const { status } of await Promise.all(answers))
      if (status !== 200) throw new Error(`/api/show answered ${status}`)
  }
}

t.test(
  'a server gives back the memory that the garbage of a load took; with Node.js 20 compiled code stays',
  { skip: process.platform !== 'linux' && 'memory is read from /proc' },
  async t => {
    const corral = await startCorral(t)
    t.equal((await corral.json('/api/load', { model: MODEL, keep_alive: -1 })).status, 200)
    // The first one begins to count.
    await fullCollections(corral)
    for (let load = 1; load <= LOADS; load++) {
      await putUnderLoad(corral)
      const before = await fullCollections(corral)
      const pid = corral.process.pid!
      const loaded = residentMemory(pid)
      // Unlike a request, a look at this makes no garbage there.
      await until('memory is given back', () => residentMemory(pid) < loaded - YOUNG, 120_000)
      // V8 gives memory back at a collection of all garbage too, and then drops compiled code. Later ones need that.
      if (!process.versions.node.startsWith('20.') || (await fullCollections(corral)) === before) return
      t.comment(`V8 collected all garbage while corral rested after load ${load}`)
    }
    t.fail('only collections of all garbage gave memory back')
  }
)
