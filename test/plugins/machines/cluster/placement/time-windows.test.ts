import t from 'tap'
import { isInWindow, isTimeZone } from '../../../../../plugins/machines/cluster/placement/time-windows.ts'

t.test('isInWindow knows days, times and time zones', async t => {
  // 2026-03-27 is a Friday. Clocks in Berlin are set forward in the night to Sunday the 29th.
  const table: [window: string, at: string, expected: boolean, zone?: string][] = [
    ['Mon-Fri 08:00-18:00', '2026-03-27T08:00:00Z', true],
    ['Mon-Fri 08:00-18:00', '2026-03-27T07:59:59Z', false],
    ['Mon-Fri 08:00-18:00', '2026-03-27T18:00:00Z', false],
    ['Mon-Fri 08:00-18:00', '2026-03-28T12:00:00Z', false],
    ['Mon-Fri 08:00-18:00', '2026-03-27T07:30:00Z', true, 'Europe/Berlin'],
    ['Sun 02:30-03:30', '2026-03-29T01:15:00Z', true, 'Europe/Berlin'],
    ['08:00-18:00', '2026-03-29T12:00:00Z', true],
    ['Sat,Sun 00:00-24:00', '2026-03-29T23:59:00Z', true],
    ['Sat,Sun 00:00-24:00', '2026-03-30T00:00:00Z', false],
    ['Fri-Mon 12:00-13:00', '2026-03-29T12:30:00Z', true],
    ['Fri-Mon 12:00-13:00', '2026-03-31T12:30:00Z', false],
    ['Mon,Wed-Fri 12:00-13:00', '2026-03-26T12:30:00Z', true],
    ['Fri 22:00-02:00', '2026-03-28T01:59:00Z', true],
    ['Fri 22:00-02:00', '2026-03-27T01:59:00Z', false],
    ['Sun 22:00-02:00', '2026-03-30T00:30:00Z', true]
  ]
  for (const [window, at, expected, zone = 'UTC'] of table)
    t.equal(isInWindow(window, new Date(at), zone), expected, `${window} at ${at}`)
  t.type(isInWindow('00:00-24:00', new Date()), 'boolean', 'the zone of the system')
  t.same(['Europe/Berlin', 'UTC', 'Mars/Base'].map(isTimeZone), [true, true, false])
})
