import { Counter, Histogram, Registry } from 'prom-client'
import t from 'tap'
import { seriesCounter, seriesHistogram } from '../../../../plugins/watching/metrics/series.ts'

const buckets = [0.1, 0.25, 1, 10]
const options = { name: 'time_seconds', help: 'Time' }
const total = { name: 'things_total', help: 'Things' }
const values = [0.1, 0.1000001, 0, 0.25, 5, 11, 10, 1e9, 0.3]
const labels = [
  { model: 'a/b', kind: 'x' },
  { model: 'a/b', kind: 'with "quotes" and\nlines' },
  { model: '', kind: 'x' }
]

t.test('series are printed like those of prom-client', async t => {
  const own = new Registry()
  const theirs = new Registry()
  const histogram = seriesHistogram(own, options.name, options.help, buckets)
  const counter = seriesCounter(own, total.name, total.help)
  const labelNames = ['model', 'kind']
  const other = new Histogram({ ...options, buckets, labelNames, registers: [theirs] })
  const otherCounter = new Counter({ ...total, labelNames, registers: [theirs] })
  t.equal(await own.metrics(), await theirs.metrics(), 'none')
  // A series without values is not printed.
  histogram.with({ model: 'c', kind: 'd' })
  counter.with({ model: 'c', kind: 'd' })
  for (const [at, value] of values.entries()) {
    const of = labels[at % labels.length]!
    histogram.with(of).observe(value)
    other.observe(of, value)
    counter.with({ ...of }).value += at + 1
    otherCounter.inc(of, at + 1)
  }
  t.equal(await own.metrics(), await theirs.metrics())
  t.match(await own.metrics(), 'time_seconds_bucket{le="0.1",model="a/b",kind="x"} 1')
  t.throws(() => seriesCounter(own, total.name, total.help), /already/)
})
