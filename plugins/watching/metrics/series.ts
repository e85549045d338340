import type { Metric, Registry } from 'prom-client'

/*
 * Counters and histograms that are updated with each request. prom-client looks up series by all labels on each update,
 * and buckets by their numbers as text, which takes a microsecond per value. Here the caller holds the series. The
 * registry prints them like its own.
 */

type Labels = Readonly<Record<string, string>>

/** One sample in the output of the registry. */
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

/** The distribution of values for one combination of labels. */
export class HistogramSeries {
  readonly labels: Labels
  readonly #bounds: readonly number[]
  /** Number of values in each bucket alone. The last bucket has no upper limit. */
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

/** A metric with one series for each combination of labels. Series without values are not printed. */
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

  /** Returns the series for these labels, which must always be in the same order. */
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

  /** @param options `buckets`: their upper limits, ascending */
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
