import t from 'tap'
import { measureTime, OPERATIONS } from '../../scripts/bench/growth.ts'

/**
 * An operation whose time grows with the number of entries would take 1,000 times as long here. A constant one takes
 * about as long, even on a busy machine.
 */
const MAX_COUNT = 20

for (const operation of OPERATIONS) {
  t.test(`${operation.name}: 10,000 ${operation.of} cost no more than 10`, async t => {
    const few = await measureTime(operation, 10, 10, 3)
    const many = await measureTime(operation, 10_000, 10, 3)
    t.ok(many < MAX_COUNT * few, `${many.toFixed(2)} µs with 10,000, ${few.toFixed(2)} µs with 10`)
  })
}
