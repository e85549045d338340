import t from 'tap'
import { memoryChurn } from '../support/memory-churn.ts'

t.test('memory budget: three models where two fit, 16 clients, engines killed, one minute', async t => {
  const seed = Number(process.env.CORRAL_LONG_SEED ?? Date.now() % 1e6)
  t.comment(JSON.stringify(await memoryChurn(t, 1, seed)))
})
