import t from 'tap'
import { dateAt } from '../../core/system/clock.ts'

t.test('dates of a time stay equal until the system clock is set, and follow it then', async t => {
  const { now } = Date
  t.teardown(() => Object.assign(Date, { now }))
  const moment = performance.now() + 60_000
  const date = dateAt(moment)
  t.ok(Math.abs(date.getTime() - now() - 60_000) < 1000)
  for (let turn = 0; turn < 1000; turn++) if (dateAt(moment).getTime() !== date.getTime()) t.fail('another date')
  Date.now = () => now() - 3_600_000
  t.ok(Math.abs(dateAt(moment).getTime() - date.getTime() + 3_600_000) < 1000)
  Date.now = now
  t.ok(Math.abs(dateAt(moment).getTime() - date.getTime()) < 1000)
})
