import type { Metric, Registry } from 'prom-client'

/*
 * Counters and histograms that are updated with each request. prom-client looks up series by all labels on each update,
 * and buckets by their numbers as text, which takes a microsecond per value. Here the caller keeps a reference to the
 * series. The registry prints them like its own.
 */

type Labels = Readonly<Record<string, string>>

/** The samples of one combination of labels. */
interface Series {
  /** The output; nothing before the first value. */
  print(): object[]
}

/** Registers a metric with one series for each combination of labels, which must always be in the same order. */
function seriesMetric<Of extends Series>(
  registry: Registry,
  about: { type: 'counter' | 'histogram'; name: string; help: string },
  create: (labels: Labels) => Of
) {
  const all = new Map<string, Of>()
  const get = async () => ({ ...about, aggregator: 'sum', values: [...all.values()].flatMap(series => series.print()) })
  registry.registerMetric({ ...about, get } as unknown as Metric)
  return {
    with(labels: Labels): Of {
      const key = JSON.stringify(Object.values(labels))
      const series = all.get(key) ?? create(labels)
      all.set(key, series)
      return series
    }
  }
}

export const seriesCounter = (registry: Registry, name: string, help: string) =>
  seriesMetric(registry, { type: 'counter', name, help }, labels => {
    const series = { value: 0, print: () => (series.value === 0 ? [] : [{ labels, value: series.value }]) }
    return series
  })

/** @param buckets their upper limits, ascending */
export const seriesHistogram = (registry: Registry, name: string, help: string, buckets: readonly number[]) =>
  seriesMetric(registry, { type: 'histogram', name, help }, sharedLabels => {
    /** Number of values in each bucket alone. The last bucket has no upper limit. */
    const counts: number[] = new Array(buckets.length + 1).fill(0)
    let sum = 0
    return {
      observe(value: number): void {
        let at = 0
        while (at < buckets.length && value > buckets[at]!) at++
        counts[at]!++
        sum += value
      },
      print() {
        let count = 0
        const printed = counts.map((more, at) => {
          count += more
          return { metricName: `${name}_bucket`, labels: { le: buckets[at] ?? '+Inf' }, sharedLabels, value: count }
        })
        if (count === 0) return []
        const total = (suffix: string, value: number) => ({
          metricName: name + suffix,
          labels: {},
          sharedLabels,
          value
        })
        return [...printed, total('_sum', sum), total('_count', count)]
      }
    }
  })

const OTHER = 'other'

/** Maximum number of models with their own label: each has hundreds of series. */
const MAX_MODELS = 100
const MAX_PAIRS = 1000

/**
 * Limits the number of series. The first used names get their own label until the restart. All further names share a
 * label.
 */
export class LabelValues {
  readonly #models = new Set<string>()
  readonly #pairs = new Set<string>()

  model = (name: string): string => (isAdmitted(this.#models, name, MAX_MODELS) ? name : OTHER)

  /** Returns the label of an existing key used with a model. @param model the result of `model`, or empty */
  key = (name: string, model: string): string => (isAdmitted(this.#pairs, `${model} ${name}`, MAX_PAIRS) ? name : OTHER)
}

const isAdmitted = (known: Set<string>, value: string, max: number) =>
  known.has(value) || (known.size < max && known.add(value).has(value))
