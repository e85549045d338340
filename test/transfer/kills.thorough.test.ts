import t from 'tap'
import { killTransfers } from '../support/transfer-kills.ts'

t.test('ten kills: nothing is lost that was there, and nothing wrong is taken for right', async t => {
  t.testdir()
  await killTransfers(t, 10)
})
