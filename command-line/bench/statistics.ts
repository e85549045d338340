/** Two-sided 95 % quantiles of Student's t by degrees of freedom, from 1. */
const T95 = [
  12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11,
  2.101, 2.093, 2.086
]

export interface Interval {
  low: number
  high: number
}

/** What several measurements of one thing say. */
export interface Summary extends Interval {
  median: number
  least: number
  most: number
  /** Half of the 95 % interval as a share of the median; of fewer than four values, half of what is between them. */
  spread: number
  values: number[]
}

export function medianOf(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}

/** The mean with its 95 % interval; of a single value nothing is known but itself. */
export function meanInterval(values: readonly number[]): Interval & { mean: number } {
  const count = values.length
  const mean = values.reduce((sum, value) => sum + value, 0) / count
  if (count < 2) return { mean, low: Number.NEGATIVE_INFINITY, high: Number.POSITIVE_INFINITY }
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (count - 1)
  const half = (T95[count - 2] ?? 1.96) * Math.sqrt(variance / count)
  return { mean, low: mean - half, high: mean + half }
}

/** @param values at least one */
export function summarize(values: readonly number[]): Summary {
  const median = medianOf(values)
  const { low, high } = meanInterval(values)
  const known = values.length > 1
  return {
    median,
    low: known ? low : median,
    high: known ? high : median,
    least: Math.min(...values),
    most: Math.max(...values),
    spread: median > 0 ? (values.length < 4 ? Math.max(...values) - Math.min(...values) : high - low) / 2 / median : 0,
    values: [...values]
  }
}

// ---- which setting is faster

/** Speeds by what was done: reading a prompt, writing an answer. Units a second: more is better. */
export type Speeds = Record<string, number>

/** One setting measured beside the present one, one right after the other. */
export interface Pair {
  present: Speeds
  trial: Speeds
}

/** How many times as fast the trial is. */
export interface Ratio extends Interval {
  mean: number
}

export interface Verdict {
  /** undecided: more pairs are wanted. */
  result: 'faster' | 'slower' | 'same' | 'undecided'
  /** Of the time that a usual request takes. */
  overall: Ratio
  parts: Record<string, Ratio>
}

/** What is gained must be more than this: less is not worth a setting. */
export const MARGIN = 0.03
/** So many pairs at least until a setting counts as faster … */
const MIN_PAIRS = 4
/** … and so many until it is given up. */
const MIN_TO_GIVE_UP = 2

/**
 * Whether a setting is faster than the present one, in this order:
 *   1. undecided, while there are too few pairs, unless all so far say that nothing is gained;
 *   2. faster: its 95 % interval is above the present one by more than the margin, and no part of the work was measured
 *      slower;
 *   3. undecided, where more pairs may still come and the mean is above the margin;
 *   4. slower or the same.
 * @param work how much of each part a usual request has, in the units of the speeds
 * @param most so many pairs are measured at most
 */
export function judge(pairs: readonly Pair[], work: Readonly<Record<string, number>>, most: number): Verdict {
  const parts: Record<string, Ratio> = {}
  for (const part of Object.keys(work))
    parts[part] = ratioOf(pairs.map(({ present, trial }) => trial[part]! / present[part]!))
  const timeOf = (speeds: Speeds) => Object.entries(work).reduce((sum, [part, units]) => sum + units / speeds[part]!, 0)
  const ratios = pairs.map(({ present, trial }) => timeOf(present) / timeOf(trial))
  const overall = ratioOf(ratios)
  const verdict = (result: Verdict['result']): Verdict => ({ result, overall, parts })

  const hopeless = pairs.length >= MIN_TO_GIVE_UP && Math.max(...ratios) <= 1 + MARGIN
  const isLast = pairs.length >= most
  if (hopeless) return verdict(overall.mean < 1 - MARGIN ? 'slower' : 'same')
  if (pairs.length < MIN_PAIRS && !isLast) return verdict('undecided')
  const partSlower = Object.values(parts).some(({ mean, high }) => high < 1 || mean < 1 - MARGIN / 2)
  const isFaster = pairs.length >= MIN_PAIRS && overall.low > 1 + MARGIN
  if (isFaster && !partSlower) return verdict('faster')
  if (!isLast && overall.mean > 1 + MARGIN) return verdict('undecided')
  return verdict(overall.high < 1 || (overall.mean > 1 && partSlower) ? 'slower' : 'same')
}

/** The geometric mean: twice as fast and half as fast cancel each other. */
function ratioOf(ratios: readonly number[]): Ratio {
  const { mean, low, high } = meanInterval(ratios.map(Math.log))
  return { mean: Math.exp(mean), low: Math.exp(low), high: Math.exp(high) }
}
