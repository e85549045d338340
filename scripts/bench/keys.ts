import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { createKey } from '../../plugins/people/security/key-file.ts'
import { parseKeyLimits } from '../../plugins/people/security/key-limits.ts'
import type { Corral } from '../../test/support/corral.ts'
import { withEngineBuild } from './benched-engines.ts'
import { corralItself } from './benched-servers.ts'
import { MODEL, withCorral } from './corral-server.ts'
import { type Load, listWays, type Way } from './loads.ts'
import { type Estimate, estimate, median } from './measuring.ts'
import { runRound } from './rounds.ts'
import { warmUp } from './warmth.ts'

/** Disables everything optional. Usage is always recorded. */
const WITHOUT = 'audit:\n  enabled: false\nmetrics:\n  enabled: false\n'
const CONFIGURED_KEY = 'a-long-key-of-the-configuration'
const WITH = `security:\n  api_keys: ["${CONFIGURED_KEY}"]\n`
/** One limit of each kind, too high to be reached. */
const LIMITS = parseKeyLimits('1000000000/min,1000000000tok/day,max_tokens=4096')

const SLOTS = 16
export const LOAD: Load = { group: 'short', engines: ['burst'], stream: false, concurrent: 4, requests: 100, tokens: 8 }
/** Requests to each server before the measurement. */
const WARM_UP = 4000
/** Measures until the half-width of the ratio's 95 % interval is at most this. */
const MAX_INTERVAL_HALF_WIDTH = 0.02
/** Minimum number of process pairs for such an interval. */
const MIN_PAIRS = 6

/** Processor time of a request in microseconds, with and without keys, limits, audit and metrics. */
export interface KeysCost {
  without: number
  with: number
  ratio: Estimate
  /** Number of process pairs, and rounds of each. */
  pairs: number
  rounds: number
}

type Kind = Way & { home: string }

const bearer = (key: string) => ({ authorization: `Bearer ${key}` })

async function load(corral: Corral): Promise<void> {
  const options = { num_parallel: SLOTS, num_ctx: 1024 }
  const { status, body } = await corral.json(
    '/api/load',
    { model: MODEL, options, keep_alive: -1 },
    // A user's key cannot load models. The server without keys ignores it.
    { headers: bearer(CONFIGURED_KEY) }
  )
  if (status !== 200) throw new Error(`The model was not loaded: ${JSON.stringify(body)}`)
}

/**
 * Runs `use` with two new corrals, each with its own stand-in engine: one without keys, limits, audit and metrics, and
 * one with all of them.
 */
export async function withBoth(home: string, use: (without: Kind, withAll: Kind) => Promise<void>): Promise<void> {
  const homes = { without: mkdtempSync(join(home, 'without-')), withAll: mkdtempSync(join(home, 'with-')) }
  const { key } = await createKey(join(homes.withAll, 'keys.json'), { name: 'bench', role: 'user', limits: LIMITS })
  const limits = `limits:\n  num_parallel: ${SLOTS}\n`
  await withEngineBuild('burst', build => {
    const env = { CORRAL_LLAMA_CPP: build }
    return withCorral(
      homes.without,
      without =>
        withCorral(
          homes.withAll,
          async withAll => {
            const contenders = [corralItself(without), corralItself(withAll, bearer(key))] as const
            try {
              for (const corral of [without, withAll]) await load(corral)
              const [first, second] = contenders.map(contender => listWays(contender, LOAD)[0]!)
              await use({ ...first!, home: homes.without }, { ...second!, home: homes.withAll })
            } finally {
              for (const contender of contenders) await contender.client.close()
            }
          },
          { env, config: limits + WITH }
        ),
      { env, config: limits + WITHOUT }
    )
  })
}

const isPrecise = ({ median, low, high }: Estimate) => Math.max(high - median, median - low) <= MAX_INTERVAL_HALF_WIDTH

/**
 * Measures the cost of keys, limits, audit and metrics for a short answer. Identical processes differ by some percent
 * for their whole life because of V8's compilation. So each pair of new processes contributes one value: the median of
 * alternating rounds.
 * @param most maximum number of pairs if the precision is not reached
 * @param onPair called with the ratio of each pair
 */
export async function measureKeys(
  home: string,
  rounds: number,
  most: number,
  onPair: (ratio: number) => void
): Promise<KeysCost> {
  const times = { without: [] as number[], with: [] as number[] }
  const ratios: number[] = []
  while (ratios.length < most && !(ratios.length >= MIN_PAIRS && isPrecise(estimate(ratios)))) {
    await withBoth(home, async (without, withAll) => {
      await warmUp([without, withAll], WARM_UP)
      const measureCost = async (way: Way) => {
        const { processor, answers } = await runRound(way, LOAD)
        return processor / answers
      }
      const own: number[] = []
      for (let round = 0; round < rounds; round++) {
        const isFirst = round % 2 === 0
        const one = await measureCost(isFirst ? without : withAll)
        const other = await measureCost(isFirst ? withAll : without)
        const [off, on] = isFirst ? [one, other] : [other, one]
        times.without.push(off)
        times.with.push(on)
        own.push(on / off)
      }
      ratios.push(median(own))
      onPair(median(own))
    })
  }
  return {
    without: median(times.without),
    with: median(times.with),
    ratio: estimate(ratios),
    pairs: ratios.length,
    rounds
  }
}
