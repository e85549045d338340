/** Two-sided 95 % quantiles of Student's t for 1 degree of freedom and up. */
const T95 = [
  12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11,
  2.101, 2.093, 2.086
]

type Interval = Record<'low' | 'high', number>

/** Summary of repeated measurements. */
export interface Summary extends Interval {
  median: number
  least: number
  most: number
  /** Half the 95 % interval as a share of the median. With fewer than four values, half their range. */
  spread: number
  values: number[]
}

/** The mean with its 95 % interval. A single value has no known interval. */
function meanInterval(values: readonly number[]): Ratio {
  const count = values.length
  const mean = values.reduce((sum, value) => sum + value, 0) / count
  if (count < 2) return { mean, low: Number.NEGATIVE_INFINITY, high: Number.POSITIVE_INFINITY }
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (count - 1)
  const half = (T95[count - 2] ?? 1.96) * Math.sqrt(variance / count)
  return { mean, low: mean - half, high: mean + half }
}

/** @param values at least one */
export function summarize(values: readonly number[]): Summary {
  const sorted = values.toSorted((a, b) => a - b)
  const [least, most] = [sorted[0]!, sorted.at(-1)!]
  const median = (sorted[(sorted.length - 1) >> 1]! + sorted[sorted.length >> 1]!) / 2
  const { low, high } = meanInterval(values)
  const known = values.length > 1
  return {
    median,
    low: known ? low : median,
    high: known ? high : median,
    least,
    most,
    spread: median > 0 ? (values.length < 4 ? most - least : high - low) / 2 / median : 0,
    values: [...values]
  }
}

/** Speeds by kind of work, such as prefill or generation, in units per second. */
export type Speeds = Record<string, number>

/** A trial setting and the current setting, measured one right after the other. */
export interface Pair {
  present: Speeds
  trial: Speeds
}

/** Speed of the trial divided by the current speed. */
export type Ratio = Interval & { mean: number }

export interface Verdict {
  /** `undecided` asks for more pairs. */
  result: 'faster' | 'slower' | 'same' | 'undecided'
  /** Ratio for the mix of work in a typical request. */
  overall: Ratio
  parts: Record<string, Ratio>
}

/** A smaller gain is not worth a setting. */
export const MIN_GAIN = 0.03
/** Minimum number of pairs before a setting can be called faster. */
const MIN_PAIRS = 4
/** Minimum number of pairs before a setting can be given up. */
const MIN_PAIRS_TO_GIVE_UP = 2

/**
 * Decides whether a setting is faster than the current one. The first matching rule applies:
 *   1. undecided, while there are too few pairs, unless all of them show no gain
 *   2. faster, if the 95 % interval is above the margin and no part of the work became slower
 *   3. undecided, if more pairs are allowed and the mean is above the margin
 *   4. otherwise slower or the same
 * @param work amount of each part in a typical request, in the units of the speeds
 * @param most maximum number of pairs
 */
export function judge(pairs: readonly Pair[], work: Readonly<Record<string, number>>, most: number): Verdict {
  const parts: Record<string, Ratio> = {}
  for (const part of Object.keys(work))
    parts[part] = geometricMean(pairs.map(({ present, trial }) => trial[part]! / present[part]!))
  const timeOf = (speeds: Speeds) => Object.entries(work).reduce((sum, [part, units]) => sum + units / speeds[part]!, 0)
  const ratios = pairs.map(({ present, trial }) => timeOf(present) / timeOf(trial))
  const overall = geometricMean(ratios)
  const verdict = (result: Verdict['result']): Verdict => ({ result, overall, parts })

  const hopeless = pairs.length >= MIN_PAIRS_TO_GIVE_UP && Math.max(...ratios) <= 1 + MIN_GAIN
  const isLast = pairs.length >= most
  if (hopeless) return verdict(overall.mean < 1 - MIN_GAIN ? 'slower' : 'same')
  if (pairs.length < MIN_PAIRS && !isLast) return verdict('undecided')
  const partSlower = Object.values(parts).some(({ mean, high }) => high < 1 || mean < 1 - MIN_GAIN / 2)
  const isFaster = pairs.length >= MIN_PAIRS && overall.low > 1 + MIN_GAIN
  if (isFaster && !partSlower) return verdict('faster')
  if (!isLast && overall.mean > 1 + MIN_GAIN) return verdict('undecided')
  return verdict(overall.high < 1 || (overall.mean > 1 && partSlower) ? 'slower' : 'same')
}

/** Geometric mean: twice as fast and half as fast cancel each other out. */
function geometricMean(ratios: readonly number[]): Ratio {
  const { mean, low, high } = meanInterval(ratios.map(Math.log))
  return { mean: Math.exp(mean), low: Math.exp(low), high: Math.exp(high) }
}
