import t from 'tap'
import { realPython } from '../clients/python-scripts.ts'
import { fuzz } from './schemathesis.ts'

// The same requests each time. test/long/fuzz.test.ts generates others.
t.setTimeout(1_200_000)

t.test('requests generated from the API document get documented replies', realPython(), async t => {
  const { operations, cases } = await fuzz(t, { examples: 5, seed: 1 })
  t.ok(operations > 60, `${operations} operations`)
  t.ok(cases > 1000, `${cases} cases`)
})
