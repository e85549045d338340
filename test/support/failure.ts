import { inspect } from 'node:util'

/** What a promise is rejected with. @throws Error when it is not */
export async function failure(promise: PromiseLike<unknown>): Promise<any> {
  return await promise.then(
    value => {
      throw new Error(`It did not fail but gave ${inspect(value, { depth: 1 })}`)
    },
    error => error
  )
}
