import t from 'tap'
import { residentMemory } from '../../scripts/bench/measuring.ts'
import { type Corral, startCorral, until } from '../support/corral.ts'

const MODEL = 'corral/tiny-chat'
/** Requests of one load, and how many are sent concurrently. */
const LOAD = 2000
const AT_ONCE = 50
/** Loads: V8 may collect all garbage by itself while the server is idle after one. */
const LOADS = 3
/** Minimum garbage in MiB that V8 has room for after a load. */
const YOUNG = 10

/** Number of full garbage collections so far. */
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
  'an idle server returns the memory of a load; with Node.js 20 compiled code stays',
  { skip: process.platform !== 'linux' && 'memory is read from /proc' },
  async t => {
    const corral = await startCorral(t)
    t.equal((await corral.json('/api/load', { model: MODEL, keep_alive: -1 })).status, 200)
    // The first call starts the count.
    await fullCollections(corral)
    for (let load = 1; load <= LOADS; load++) {
      await putUnderLoad(corral)
      const before = await fullCollections(corral)
      const pid = corral.process.pid!
      const loaded = residentMemory(pid)
      // Unlike a request, reading this makes no garbage in the server.
      await until('memory is returned', () => residentMemory(pid) < loaded - YOUNG, 120_000)
      // V8 also returns memory at a full garbage collection, which drops compiled code. Later versions need that.
      if (!process.versions.node.startsWith('20.') || (await fullCollections(corral)) === before) return
      t.comment(`V8 ran a full garbage collection while corral was idle after load ${load}`)
    }
    t.fail('only full garbage collections returned memory')
  }
)
