import assert from 'node:assert/strict'
import { failure as rejection } from '../support/failure.ts'
import { DIMENSION } from './trials.ts'

/** The reason for which a promise rejects, which must be of this type. */
export async function failure(
  promise: PromiseLike<unknown>,
  type: new (...args: never[]) => Error = Error
): Promise<any> {
  const error = await rejection(promise)
  assert.ok(error instanceof type, `not a ${type.name}: ${error}`)
  return error
}

/** For the texts red, blue and red again, in any number. */
export function sameVectors([red, blue, ...more]: number[][]): string {
  assert.equal(red!.length, DIMENSION)
  const distance = (other: number[]) => Math.max(...other.map((value, at) => Math.abs(value - red![at]!)))
  assert.ok(more.length > 0 && more.every(same => distance(same) < 1e-5))
  assert.ok(distance(blue!) > 1e-2)
  return `${DIMENSION} dimensions; equal texts have equal vectors`
}

/** The global fetch with a counter of its calls. */
export function countingFetch(): { fetch: typeof fetch; count(): number } {
  let count = 0
  return {
    fetch: (...args) => {
      count++
      return fetch(...args)
    },
    count: () => count
  }
}
