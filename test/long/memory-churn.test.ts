import t from 'tap'
import { memoryChurn } from '../support/memory-churn.ts'
import { record } from './support.ts'

const MINUTES = Number(process.env.CORRAL_LONG_MINUTES ?? 10)

t.test(`the budget holds for ${MINUTES} minutes with three models, sixteen clients and killed engines`, async t => {
  const seed = Number(process.env.CORRAL_LONG_SEED ?? Date.now() % 1e6)
  const figures = await memoryChurn(t, MINUTES, seed)
  record(t, 'Memory churn', {
    'minutes, clients, models': `${MINUTES}, 16, 3 (2 fit)`,
    requests: figures.requests,
    'how they ended': Object.entries(figures.outcomes)
      .map(([outcome, count]) => `${outcome} ${count}`)
      .join(', '),
    'engines killed with -9': figures.kills,
    'models unloaded for others': figures.evictions,
    'longest request': `${(figures.longestWait / 1000).toFixed(1)} s of ${(figures.bound / 1000).toFixed(1)} s allowed`,
    'most memory reserved': `${(figures.mostReserved / 1e6).toFixed(1)} MB of ${(figures.budget / 1e6).toFixed(1)} MB`,
    seed
  })
})
