import { isDeepStrictEqual } from 'node:util'
import type { TrialSettings, Tunable } from '../../core/contracts/trials.ts'
import { judge, type Pair, type Speeds, type Verdict } from './statistics.ts'

/** Loads a model with trial settings and measures it. */
export interface TuningBench {
  /** Settings worth trying on top of these, most important first. */
  tunables(settings: TrialSettings): Promise<Tunable[]>
  /**
   * Measures these settings, reloading the model if it runs with others.
   * @param seed the same seed gives the same work
   */
  measure(settings: TrialSettings, seed: number): Promise<Speeds | Failed>
}

/** The model cannot be loaded with these settings. */
export interface Failed {
  failed: string
}

export const isFailed = (result: object): result is Failed => 'failed' in result

export interface Step {
  name: string
  value: string
  result: Exclude<Verdict['result'], 'undecided'> | 'does not work here' | 'changes answers'
  reason?: string
  verdict?: Verdict
}

export interface TuneOptions {
  /** The original settings. */
  base: TrialSettings
  /** Amount of each kind of work in a typical request. */
  work: Readonly<Record<string, number>>
  /** Maximum number of pairs for one value. */
  most: number
  /** Also tries values that change answers. */
  allowChanges: boolean
  onStep?: (step: Step) => void
  say?: (text: string) => void
}

/**
 * Finds faster settings by measurement. It tries one setting at a time and compares each of its values with the
 * settings adopted so far. Because one of many values may look faster by chance, the result is finally measured again
 * against the original settings, and dropped if the gain does not reproduce.
 * @returns all adopted settings combined (the original ones if none was faster), and their comparison with the original
 * ones
 * @throws if the current settings cannot be measured
 */
export async function tune(bench: TuningBench, options: TuneOptions) {
  const { base, allowChanges, onStep, say } = options
  const steps: Step[] = []
  const note = (step: Step) => {
    steps.push(step)
    onStep?.(step)
  }
  let kept = base
  let seed = 1
  const tried = new Set<string>()
  for (;;) {
    // Asked again each time, because the tunable settings depend on the adopted ones.
    const next = (await bench.tunables(kept)).find(({ name }) => !tried.has(name))
    if (!next) break
    tried.add(next.name)
    const { name, changes_answers: changes } = next
    for (const { label } of next.values) {
      if (changes !== undefined && !allowChanges) {
        note({ name, value: label, result: 'changes answers', reason: changes })
        continue
      }
      // The adopted settings may already contain an earlier value.
      const now = (await bench.tunables(kept)).find(tunable => tunable.name === name)
      const settings = now?.values.find(value => value.label === label)?.settings
      if (!settings) continue
      say?.(`${name}: ${label}`)
      const found = await compare(bench, kept, settings, seed, options)
      seed += options.most
      if (isFailed(found)) {
        note({ name, value: label, result: 'does not work here', reason: found.failed })
        continue
      }
      note({ name, value: label, result: found.result as Step['result'], verdict: found })
      if (found.result === 'faster') kept = settings
    }
  }
  if (isDeepStrictEqual(kept, base)) return { steps, settings: base, confirmation: undefined }
  say?.('all of it together')
  const again = await compare(bench, base, kept, seed, options)
  if (isFailed(again)) throw new Error(`The adopted settings no longer work: ${again.failed}`)
  return { steps, settings: again.result === 'faster' ? kept : base, confirmation: again }
}

/**
 * Measures two settings in alternating pairs, so that a slowdown of the machine affects both. Alternating also saves
 * every second load.
 */
async function compare(
  bench: TuningBench,
  present: TrialSettings,
  trial: TrialSettings,
  seed: number,
  { work, most }: Pick<TuneOptions, 'work' | 'most'>
): Promise<(Verdict & { result: Step['result'] | 'undecided' }) | Failed> {
  const pairs: Pair[] = []
  for (;;) {
    const number = seed + pairs.length
    const sides = pairs.length % 2 === 0 ? [present, trial] : [trial, present]
    const speeds = new Map<TrialSettings, Speeds>()
    for (const side of sides) {
      const measured = await bench.measure(side, number)
      if (isFailed(measured)) {
        if (side === trial) return measured
        throw new Error(`The current settings no longer work: ${measured.failed}`)
      }
      speeds.set(side, measured)
    }
    pairs.push({ present: speeds.get(present)!, trial: speeds.get(trial)! })
    const verdict = judge(pairs, work, most)
    if (verdict.result !== 'undecided') return verdict
  }
}
