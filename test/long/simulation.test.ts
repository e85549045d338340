import t from 'tap'
import { simulateMany as simulateClusters } from '../plugins/machines/cluster/placement/simulation.ts'
import { simulateMany } from '../plugins/running/scheduler/simulation.ts'
import { record } from './support.ts'

const SEEDS = 10_000

t.test(`the scheduler's rules hold in ${SEEDS} random worlds`, t => {
  const began = Date.now()
  const { report, counts, longestWait } = simulateMany(1_000_001, SEEDS)
  t.equal(report, undefined)
  record(t, 'Simulation of the scheduler', {
    seeds: SEEDS,
    'what happened': Object.entries(counts)
      .sort((a, b) => b[1] - a[1])
      .map(([what, times]) => `${what} ${times}`)
      .join(', '),
    'longest wait for room': `${Math.round(longestWait * 100)} % of its bound`,
    seconds: Math.round((Date.now() - began) / 1000)
  })
  t.end()
})

t.test(`requests of a cluster are placed by the rules in ${SEEDS} random histories`, t => {
  t.equal(simulateClusters(1_000_001, SEEDS).report, undefined)
  t.end()
})
