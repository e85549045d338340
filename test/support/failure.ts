import { inspect } from 'node:util'

/** The reason for which a promise rejects. @throws Error if it does not reject */
export async function failure(promise: PromiseLike<unknown>): Promise<any> {
  return await promise.then(
    value => {
      throw new Error(`It did not fail but gave ${inspect(value, { depth: 1 })}`)
    },
    error => error
  )
}
