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

/** The pattern for a rejection with a CorralError. */
export const failing = (code: string | RegExp, message: string | RegExp) => ({ code, message })

/** The pattern for a refusal of the native API, as `Corral.json` returns it. */
export const refusedWith = (status: number, code: string | RegExp, error: string | RegExp = /./) => ({
  status,
  body: { code, error }
})
