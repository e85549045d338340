import assert, { AssertionError } from 'node:assert/strict'
import { errorMessage } from '../core/errors.ts'
import { DeadlineError, within } from '../core/plugins/plugin-error.ts'
import type { TestCorral } from './test-corral.ts'

/** Runs the steps of a contract, each with a timeout. */
export class Steps {
  readonly #timeout: number

  /** @param timeout milliseconds for each step */
  constructor(timeout = 30_000) {
    this.#timeout = timeout
  }

  /** Waits for a step. @throws AssertionError that names the step if it times out or fails */
  async run<Result>(name: string, work: () => Promise<Result> | Result): Promise<Result> {
    try {
      return await within(this.#timeout, work)
    } catch (error) {
      if (error instanceof AssertionError) throw error
      const isLate = error instanceof DeadlineError
      const reason = isLate ? `this did not end within ${this.#timeout} ms` : errorMessage(error)
      throw new AssertionError({ message: `${name}: ${reason}` })
    }
  }

  /** Sends a request whose reply must have the status 200. @returns its body */
  async answered(corral: TestCorral, path: string, body?: unknown, headers?: Record<string, string>): Promise<any> {
    const reply = await this.run(path, () => corral.json(path, body, headers))
    assert.equal(reply.status, 200, `${path} answers 200: ${JSON.stringify(reply.body)}`)
    return reply.body
  }

  async events(corral: TestCorral, path: string, body: unknown): Promise<any[]> {
    return await this.run(`${path} as a stream`, () => corral.events(path, body))
  }
}
