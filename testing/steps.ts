import assert, { AssertionError } from 'node:assert/strict'
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
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      const fail = () => reject(new AssertionError({ message: `${name}: this did not end within ${this.#timeout} ms` }))
      timer = setTimeout(fail, this.#timeout)
    })
    try {
      return await Promise.race([(async () => work())(), late])
    } catch (error) {
      if (error instanceof AssertionError) throw error
      throw new AssertionError({ message: `${name}: ${error instanceof Error ? error.message : String(error)}` })
    } finally {
      clearTimeout(timer)
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
