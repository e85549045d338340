import t from 'tap'
import { realPython } from '../clients/python-scripts.ts'
import { fuzz } from '../fuzz/schemathesis.ts'
import { record } from './support.ts'

t.test(
  'ten thousand requests generated from the API document get documented replies',
  { ...realPython(), timeout: 3_600_000 },
  async t => {
    const { operations, cases, failures } = await fuzz(t, { examples: 100 })
    t.ok(cases > 10_000, `${cases} cases`)
    record(t, 'Fuzzing by schemathesis', {
      'operations of the API document': operations,
      requests: cases,
      'answered with 500, an unexplained 5xx, another status, type or shape than documented, or not at all': failures
    })
  }
)
