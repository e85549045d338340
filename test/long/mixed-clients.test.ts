import { execFileSync, fork } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync } from 'node:fs'
import { constants, setPriority } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { median, percentile, residentMemory } from '../../scripts/bench/measuring.ts'
import { type Corral, DEMO, startCorral, until } from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { ATTACKS, type Findings, type Orders } from './hostile-clients.ts'
import { record } from './support.ts'

const MINUTES = Number(process.env.CORRAL_LONG_MINUTES ?? 20)
/** How long the honest clients are alone (milliseconds). */
const ALONE = 60_000
const HONEST = ['ann', 'ben', 'cem']
const CONFIG = 'defaults:\n  num_parallel: 8\nlimits:\n  reader_stall: 10s\n  stuck_after: 5s\n'

/** Creates a key with the real command line. */
function createKey({ home }: Corral, name: string): string {
  const main = join(packageRoot, 'dist', 'command-line', 'main.js')
  return execFileSync(process.execPath, [main, 'key', 'create', name, '--yes'], {
    env: { ...process.env, CORRAL_HOME: home, CORRAL_LLAMA_CPP: engineBuildFolder() },
    cwd: home,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit']
  }).trim()
}

interface HonestWork {
  /** Milliseconds to the first token of each answer, alone and then beside malicious clients. */
  alone: number[]
  beside: number[]
  /** Codes and statuses of requests without an answer. */
  failures: Set<string>
}

/** Three clients that ask short questions one after the other and measure each first token. */
function startHonest(corral: Corral, keys: readonly string[], state: { isAttacked: boolean; ended: boolean }) {
  const work: HonestWork = { alone: [], beside: [], failures: new Set() }
  async function client(key: string, name: string): Promise<void> {
    const headers = { authorization: `Bearer ${key}` }
    for (let turn = 0; !state.ended; turn++) {
      const began = performance.now()
      const times = state.isAttacked ? work.beside : work.alone
      const messages = [{ role: 'user', content: `${name} asks ${turn}` }]
      const body = { model: DEMO, max_tokens: 16, stream: true, messages }
      const response = await corral.send('/v1/chat/completions', body, { headers })
      let first: number | undefined
      let text = ''
      // The first bytes that are not a comment contain the first token.
      for await (const chunk of response.body!) {
        text += Buffer.from(chunk)
        if (text.includes('data: ')) first ??= performance.now() - began
      }
      if (response.status === 200 && text.includes('data: [DONE]')) times.push(first!)
      else work.failures.add(`${response.status} ${text.slice(-300)}`)
      await sleep(200)
    }
  }
  return { work, ended: Promise.all(HONEST.map((name, index) => client(keys[index]!, name))) }
}

/** Starts the malicious clients. @returns a function that ends them and returns their findings */
async function attack(orders: Orders): Promise<() => Promise<Findings>> {
  const child = fork(join(import.meta.dirname, 'hostile-clients.js'))
  await once(child, 'spawn')
  // With low priority, as if on their own machine: they get the processor time that the servers do not use.
  setPriority(child.pid!, constants.priority.PRIORITY_LOW)
  child.send(orders)
  return async () => {
    const answer = once(child, 'message')
    child.send('end')
    return (await answer)[0] as Findings
  }
}

/*
 * The malicious clients and other programs use the same processors as the server, which slows down all requests. A
 * second server shows how much of that is corral's fault: it has the same honest clients at the same moments, but no
 * attackers.
 */
t.test(
  `honest clients are answered beside ${Object.keys(ATTACKS).length} malicious ones for ${MINUTES} minutes`,
  async t => {
    const corral = await startCorral(t, { config: CONFIG })
    const other = await startCorral(t, { config: CONFIG })
    const honestKeys = HONEST.map(name => createKey(corral, name))
    const otherKeys = HONEST.map(name => createKey(other, name))
    const keys = Object.fromEntries(
      Object.keys(ATTACKS).map(name => [name, createKey(corral, name.replaceAll(' ', '-'))])
    )
    const state = { isAttacked: false, ended: false }
    const here = startHonest(corral, honestKeys, state)
    const there = startHonest(other, otherKeys, state)

    const memory: number[] = []
    const descriptors: number[] = []
    async function watch(): Promise<void> {
      while (!state.ended) {
        memory.push(residentMemory(corral.process.pid!))
        descriptors.push(readdirSync(`/proc/${corral.process.pid}/fd`).length)
        await sleep(1000)
      }
    }

    await sleep(ALONE)
    const endAttack = await attack({ url: corral.url, keys })
    state.isAttacked = true
    const watched = watch()
    await sleep(MINUTES * 60_000)
    state.ended = true
    const met = await endAttack()
    await Promise.all([here.ended, there.ended, watched])

    for (const [name, outcomes] of Object.entries(met)) {
      const text = `${name}: ${JSON.stringify(outcomes)}`
      t.ok(Object.keys(outcomes).some(outcome => outcome !== 'cut') && !('internal' in outcomes), text)
    }
    t.same([...here.work.failures, ...there.work.failures], [], 'honest clients get answers')
    const { alone, beside } = here.work
    t.ok(beside.length > MINUTES * 20, `${beside.length} answers to honest clients`)
    const figures = (times: number[]) => `${median(times).toFixed(0)} and ${percentile(times, 0.99).toFixed(0)} ms`
    t.ok(
      percentile(beside, 0.99) <= 3 * percentile(there.work.beside, 0.99),
      `first tokens (median and p99) after ${figures(beside)}; at a server that nobody attacks ${figures(there.work.beside)}`
    )
    const third = Math.floor(memory.length / 3)
    const thirds = (values: number[]) =>
      [median(values.slice(third, 2 * third)), median(values.slice(2 * third))] as const
    const [memoryBefore, memoryAfter] = thirds(memory)
    const [descriptorsBefore, descriptorsAfter] = thirds(descriptors)
    t.ok(
      memoryAfter < memoryBefore * 1.2 + 30,
      `memory: ${memoryBefore.toFixed(0)} MiB, then ${memoryAfter.toFixed(0)} MiB`
    )
    t.ok(descriptorsAfter < descriptorsBefore * 1.2 + 20, `descriptors: ${descriptorsBefore}, then ${descriptorsAfter}`)
    const errors = corral
      .log()
      .split('\n')
      .filter(line => /"level":50/.test(line) && !/the engine died|loading failed/.test(line))
    t.same(errors, [], 'the server logged no internal fault')
    await until('all slots are free', async () => {
      const { body } = await corral.json('/api/ps', undefined, {
        headers: { authorization: `Bearer ${honestKeys[0]}` }
      })
      return body.models.every((model: any) => model.running === 0 && model.queued === 0)
    })
    t.equal(await corral.end('SIGTERM'), 0)

    record(t, 'Honest and hostile clients', {
      'minutes, honest clients, hostile ones': `${MINUTES}, ${HONEST.length}, ${Object.keys(ATTACKS).length}`,
      'answers to honest clients': beside.length,
      'their first token, median and p99': figures(beside),
      '… at the same time at a server that nobody attacks': figures(there.work.beside),
      '… before the attack': figures(alone),
      'memory of the gateway': `${memoryBefore.toFixed(0)} MiB in the middle third, ${memoryAfter.toFixed(0)} MiB in the last`,
      'open file descriptors': `${descriptorsBefore} in the middle third, ${descriptorsAfter} in the last`,
      ...Object.fromEntries(
        Object.entries(met).map(([name, outcomes]) => [
          name,
          Object.entries(outcomes)
            .map(([code, count]) => `${code} ${count}`)
            .join(', ')
        ])
      )
    })
  }
)
