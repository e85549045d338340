import t from 'tap'
import { memoryChurn } from '../support/memory-churn.ts'

t.test('reservations stay within the budget with three models, 16 clients and killed engines', async t => {
  const seed = Number(process.env.CORRAL_LONG_SEED ?? Date.now() % 1e6)
  t.comment(JSON.stringify(await memoryChurn(t, 1, seed)))
})
