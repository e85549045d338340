import t from 'tap'
import { killTransfers } from '../../../../support/transfer-kills.ts'

t.test('a transfer survives ten kills: partial data is continued and the file is correct', async t => {
  t.testdir()
  await killTransfers(t, 10)
})
