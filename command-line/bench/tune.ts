import type { TrialSettings, Tunable } from '../../core/contracts/trials.ts'
import { judge, type Pair, type Speeds, type Verdict } from './statistics.ts'

/** What loads a model with other settings and measures it. */
export interface TuningBench {
  /** What may be tried beside these settings; the most important first. */
  tunables(settings: TrialSettings): Promise<Tunable[]>
  /**
   * Measures with these settings; loads the model first where it runs with others.
   * @param seed the same work for the same number
   */
  measure(settings: TrialSettings, seed: number): Promise<Speeds | Failed>
}

/** The model cannot be loaded so. */
export interface Failed {
  failed: string
}

export const isFailed = (result: object): result is Failed => 'failed' in result

/** What became of one value. */
export interface Step {
  name: string
  value: string
  result: Exclude<Verdict['result'], 'undecided'> | 'does not work here' | 'changes answers'
  /** Why it does not work, or what it changes. */
  reason?: string
  verdict?: Verdict
}

export interface Tuning {
  steps: Step[]
  /** What was kept, together; empty where nothing was. */
  settings: TrialSettings
  /** All that was kept against what was there before, measured anew; undefined where nothing was kept. */
  confirmation: Verdict | undefined
}

export interface TuneOptions {
  /** What is there to begin with. */
  base: TrialSettings
  /** How much of each part a usual request has. */
  work: Readonly<Record<string, number>>
  /** Most pairs that one value is measured with. */
  most: number
  /** Whether values that change answers are tried too. */
  allowChanges: boolean
  onStep?: (step: Step) => void
  say?: (text: string) => void
}

/** Settings that say nothing of each other's speed are known by their text. */
const same = (a: TrialSettings, b: TrialSettings) => JSON.stringify(a) === JSON.stringify(b)

/**
 * Finds faster settings by measurement: one setting after the other, each of its values beside what was kept so far. In
 * the end all that was kept is measured anew against the beginning, since of many values that are tried one may look
 * faster by chance; what that does not confirm is not kept.
 * @throws what measuring the present settings fails with
 */
export async function tune(bench: TuningBench, options: TuneOptions): Promise<Tuning> {
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
    // Asked anew each time: what was kept is part of the settings of the others.
    const next = (await bench.tunables(kept)).find(({ name }) => !tried.has(name))
    if (!next) break
    tried.add(next.name)
    for (const [index, { label }] of next.values.entries()) {
      const { name, changes_answers: changes } = next
      if (changes !== undefined && !allowChanges) {
        note({ name, value: label, result: 'changes answers', reason: changes })
        continue
      }
      const settings = await settingsOf(bench, kept, name, index, label, next)
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
  if (same(kept, base)) return { steps, settings: base, confirmation: undefined }
  say?.('all of it together')
  const again = await compare(bench, base, kept, seed, options)
  if (isFailed(again)) throw new Error(`What worked a moment ago does not any more: ${again.failed}`)
  return { steps, settings: again.result === 'faster' ? kept : base, confirmation: again }
}

/** A value's settings on top of what is kept now: an earlier value of the same setting may have been kept. */
async function settingsOf(
  bench: TuningBench,
  kept: TrialSettings,
  name: string,
  index: number,
  label: string,
  asked: Tunable
): Promise<TrialSettings | undefined> {
  if (index === 0) return asked.values[0]!.settings
  const now = (await bench.tunables(kept)).find(tunable => tunable.name === name)
  return now?.values.find(value => value.label === label)?.settings
}

/**
 * Measures two settings in pairs, one right after the other, so that what slows the machine meets both; who is first
 * alternates, which also saves every second load.
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
        throw new Error(`The present settings do not work any more: ${measured.failed}`)
      }
      speeds.set(side, measured)
    }
    pairs.push({ present: speeds.get(present)!, trial: speeds.get(trial)! })
    const verdict = judge(pairs, work, most)
    if (verdict.result !== 'undecided') return verdict
  }
}
