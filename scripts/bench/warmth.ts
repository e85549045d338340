import { BASELINE } from './benched-servers.ts'
import { type Load, listWays, type Way } from './loads.ts'
import { type Estimate, estimate, median } from './measuring.ts'
import { runRound } from './rounds.ts'
import type { Servers } from './servers.ts'

/** Number of requests after which a process counts as warm, because V8 has compiled its hot code. */
export const WARM_AFTER = 2000
const FIRST = 20
const WARM_ROUNDS = 10

const SHORT: Load = { group: 'short', engines: ['burst'], stream: false, concurrent: 1, requests: FIRST, tokens: 8 }

/** Processor time of a request in microseconds, for corral and the bare pipe. */
export interface Warmth {
  state: string
  corral: number
  pipe: number
  ratio: Estimate
}

/** Maximum time to warm up a slow way. */
const WARM_UP_TIMEOUT_MS = 20_000

export async function warmUp(ways: readonly Way[], requests = WARM_AFTER): Promise<void> {
  const part = 100
  for (const way of ways) {
    const end = performance.now() + WARM_UP_TIMEOUT_MS
    for (let sent = 0; sent < requests && performance.now() < end; sent += part) {
      await runRound(way, { ...SHORT, stream: way.request.stream, concurrent: 4, requests: part, tokens: 0 })
    }
  }
}

/**
 * Compares the first requests of new processes with those of warm ones, using sequential short answers.
 * @param withFresh starts a new corral and pipe each time
 */
export async function measureWarmth(
  withFresh: (use: (servers: Servers) => Promise<void>) => Promise<void>,
  turns: number
): Promise<Warmth[]> {
  const cold: Record<'corral' | 'pipe', number[]> = { corral: [], pipe: [] }
  const warm: Record<'corral' | 'pipe', number[]> = { corral: [], pipe: [] }
  const measure = async (way: Way, times: typeof cold) => {
    const { processor, answers } = await runRound(way, SHORT)
    times[way.contender.name === BASELINE ? 'pipe' : 'corral'].push(processor / answers)
  }
  for (let turn = 0; turn < turns; turn++) {
    await withFresh(async ({ contenders }) => {
      const ways = contenders.map(contender => listWays(contender, SHORT)[0]!)
      for (const way of ways) await measure(way, cold)
      await warmUp(ways)
      for (let round = 0; round < WARM_ROUNDS; round++) {
        for (const way of round % 2 ? ways : ways.toReversed()) await measure(way, warm)
      }
    })
  }
  const row = (state: string, { corral, pipe }: typeof cold): Warmth => {
    const ratio = estimate(corral.map((time, index) => time / pipe[index]!))
    return { state, corral: median(corral), pipe: median(pipe), ratio }
  }
  return [row(`first ${FIRST} requests`, cold), row(`after ${WARM_AFTER} requests`, warm)]
}
