import { readFileSync } from 'node:fs'
import t from 'tap'
import { startCorral, until } from '../../../support/corral.ts'

const MODEL = 'corral/tiny-chat'
/** Minimum MiB that a collection frees: a start leaves some 20, a model's answers more. */
const FREED = 5

/** Resident memory of a process in MiB, now and at its peak. */
function memoryOf(pid: number): { now: number; most: number } {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  const mib = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(status)![1]) / 1024
  return { now: mib('VmRSS'), most: mib('VmHWM') }
}

t.test(
  'corral releases its own memory when no model is loaded',
  {
    skip: process.platform !== 'linux' && 'memory is read from /proc'
  },
  async t => {
    const corral = await startCorral(t)
    const pid = corral.process.pid!
    await until('memory of the start is released', () => memoryOf(pid).now < memoryOf(pid).most - FREED)

    const load = await corral.json('/api/load', { model: MODEL, keep_alive: -1 })
    t.equal(load.status, 200)
    for (let round = 0; round < 20; round++) {
      const answers = Array.from({ length: 10 }, () =>
        corral.json('/v1/chat/completions', {
          model: MODEL,
          messages: [{ role: 'user', content: 'Hi' }],
          max_tokens: 1
        })
      )
      for (const { status } of await Promise.all(answers)) t.equal(status, 200)
    }
    const { now } = memoryOf(pid)
    t.equal((await corral.json('/api/generate', { model: MODEL, keep_alive: 0 })).status, 200)
    await until('memory of answers is released', () => memoryOf(pid).now < now - FREED)
    t.equal((await corral.json('/api/load', { model: MODEL })).status, 200, 'it still answers')
  }
)
