import t from 'tap'
import { killTransfers } from '../../../../support/transfer-kills.ts'

t.test('ten kills during a transfer: partial data are continued and the file is correct', async t => {
  t.testdir()
  await killTransfers(t, 10)
})
