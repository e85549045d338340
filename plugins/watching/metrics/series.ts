import type { Metric, Registry } from 'prom-client'

/*
 * Counters and histograms that are updated with each request. prom-client looks up series by all labels on each update,
 * and buckets by their numbers as text, which takes a microsecond per value. Here the caller keeps a reference to the
 * series. The registry prints them like its own.
 */

type Labels = Readonly<Record<string, string>>

interface Value {
  metricName?: string
  labels: Record<string, string | number>
  sharedLabels?: Labels
  value: number
}

/** The samples of one combination of labels. */
interface Series {
  /** The output; nothing before the first value. */
  print(name: string): Value[]
}

class CounterSeries implements Series {
  readonly #labels: Labels
  value = 0

  constructor(labels: Labels) {
    this.#labels = labels
  }

  print(): Value[] {
    return this.value === 0 ? [] : [{ labels: this.#labels, value: this.value }]
  }
}

export class HistogramSeries implements Series {
  readonly #labels: Labels
  readonly #bounds: readonly number[]
  /** Number of values in each bucket alone. The last bucket has no upper limit. */
  readonly #counts: number[]
  #sum = 0

  constructor(labels: Labels, bounds: readonly number[]) {
    this.#labels = labels
    this.#bounds = bounds
    this.#counts = new Array(bounds.length + 1).fill(0)
  }

  observe(value: number): void {
    const bounds = this.#bounds
    let at = 0
    while (at < bounds.length && value > bounds[at]!) at++
    this.#counts[at]!++
    this.#sum += value
  }

  print(name: string): Value[] {
    const sharedLabels = this.#labels
    let count = 0
    const buckets = this.#counts.map((more, at) => {
      count += more
      return { metricName: `${name}_bucket`, labels: { le: this.#bounds[at] ?? '+Inf' }, sharedLabels, value: count }
    })
    if (count === 0) return []
    return [
      ...buckets,
      { metricName: `${name}_sum`, labels: {}, sharedLabels, value: this.#sum },
      { metricName: `${name}_count`, labels: {}, sharedLabels, value: count }
    ]
  }
}

/** A metric with one series for each combination of labels. */
class SeriesMetric<Of extends Series> {
  readonly type: 'counter' | 'histogram'
  readonly name: string
  readonly help: string
  readonly #make: (labels: Labels) => Of
  readonly #series = new Map<string, Of>()

  constructor(
    registry: Registry,
    about: { type: 'counter' | 'histogram'; name: string; help: string },
    make: (labels: Labels) => Of
  ) {
    this.type = about.type
    this.name = about.name
    this.help = about.help
    this.#make = make
    registry.registerMetric(this as unknown as Metric)
  }

  /** Returns the series for these labels, which must always be in the same order. */
  with(labels: Labels): Of {
    const key = JSON.stringify(Object.values(labels))
    const series = this.#series.get(key) ?? this.#make(labels)
    this.#series.set(key, series)
    return series
  }

  async get(): Promise<object> {
    const { name, help, type } = this
    const values = [...this.#series.values()].flatMap(series => series.print(name))
    return { name, help, type, aggregator: 'sum', values }
  }
}

export const seriesCounter = (registry: Registry, name: string, help: string) =>
  new SeriesMetric(registry, { type: 'counter', name, help }, labels => new CounterSeries(labels))

/** @param buckets their upper limits, ascending */
export const seriesHistogram = (registry: Registry, name: string, help: string, buckets: readonly number[]) =>
  new SeriesMetric(registry, { type: 'histogram', name, help }, labels => new HistogramSeries(labels, buckets))
