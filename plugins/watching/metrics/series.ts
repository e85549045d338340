import type { Metric, Registry } from 'prom-client'

/*
 * Counters and histograms for what is counted with each request. prom-client's own look up their series by all labels each
 * time, and buckets by their numbers as text, which takes a microsecond for a value; here whoever counts keeps the series.
 * The registry prints them like its own.
 */

type Labels = Readonly<Record<string, string>>

/** A line of what the registry prints. */
interface Value {
  metricName?: string
  labels: Record<string, string | number>
  sharedLabels?: Labels
  value: number
}

export interface CounterSeries {
  labels: Labels
  value: number
}

/** The distribution of values under one combination of labels. */
export class HistogramSeries {
  readonly labels: Labels
  readonly #bounds: readonly number[]
  /** How many values each bucket has, without those of the buckets below; the last one has no bound. */
  readonly counts: number[]
  sum = 0

  constructor(labels: Labels, bounds: readonly number[]) {
    this.labels = labels
    this.#bounds = bounds
    this.counts = new Array(bounds.length + 1).fill(0)
  }

  observe(value: number): void {
    const bounds = this.#bounds
    let at = 0
    while (at < bounds.length && value > bounds[at]!) at++
    this.counts[at]!++
    this.sum += value
  }
}

/** A metric with one series for each combination of labels; those that have counted nothing are not printed. */
abstract class SeriesMetric<Series extends { labels: Labels }> {
  abstract readonly type: 'counter' | 'histogram'
  readonly name: string
  readonly help: string
  readonly #series = new Map<string, Series>()

  constructor({ name, help }: { name: string; help: string }, registry: Registry) {
    this.name = name
    this.help = help
    registry.registerMetric(this as unknown as Metric)
  }

  /** The series of these labels, which must come in the same order each time. */
  with(labels: Labels): Series {
    const key = JSON.stringify(Object.values(labels))
    let series = this.#series.get(key)
    if (!series) {
      series = this.make(labels)
      this.#series.set(key, series)
    }
    return series
  }

  /** Called by the registry. */
  async get(): Promise<object> {
    const { name, help, type } = this
    return { name, help, type, aggregator: 'sum', values: [...this.#series.values()].flatMap(each => this.print(each)) }
  }

  protected abstract make(labels: Labels): Series
  protected abstract print(series: Series): Value[]
}

export class SeriesCounter extends SeriesMetric<CounterSeries> {
  readonly type = 'counter'

  protected make(labels: Labels): CounterSeries {
    return { labels, value: 0 }
  }

  protected print({ labels, value }: CounterSeries): Value[] {
    return value === 0 ? [] : [{ labels, value }]
  }
}

export class SeriesHistogram extends SeriesMetric<HistogramSeries> {
  readonly type = 'histogram'
  readonly #bounds: readonly number[]

  /** @param options `buckets`: their upper bounds, rising */
  constructor(options: { name: string; help: string; buckets: readonly number[] }, registry: Registry) {
    super(options, registry)
    this.#bounds = options.buckets
  }

  protected make(labels: Labels): HistogramSeries {
    return new HistogramSeries(labels, this.#bounds)
  }

  protected print({ labels: sharedLabels, counts, sum }: HistogramSeries): Value[] {
    let count = 0
    const buckets = counts.map((more, at) => {
      count += more
      return {
        metricName: `${this.name}_bucket`,
        labels: { le: this.#bounds[at] ?? '+Inf' },
        sharedLabels,
        value: count
      }
    })
    if (count === 0) return []
    return [
      ...buckets,
      { metricName: `${this.name}_sum`, labels: {}, sharedLabels, value: sum },
      { metricName: `${this.name}_count`, labels: {}, sharedLabels, value: count }
    ]
  }
}
