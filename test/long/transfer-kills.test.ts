import t from 'tap'
import { killTransfers } from '../support/transfer-kills.ts'
import { record } from './support.ts'

const KILLS = 100

t.test('a hundred kills lose no downloaded byte and accept no wrong one', async t => {
  t.testdir()
  const { files, twice } = await killTransfers(t, KILLS)
  record(t, 'Kills of transfers', {
    'kill -9 of the process that fetches': KILLS,
    'files of 24 MiB, all right in the end': files,
    'fetched twice for each kill': `${(twice / KILLS / 2 ** 20).toFixed(1)} MiB (8 MiB may be)`
  })
})
