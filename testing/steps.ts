import assert, { AssertionError } from 'node:assert/strict'
import { errorMessage } from '../core/errors.ts'
import { DeadlineError, within } from '../core/plugins/plugin-error.ts'
import type { TestCorral } from './test-corral.ts'

/** Longest part of a value or of a log that a message shows. */
const MAX_SHOWN = 400

const cut = (text: string) => (text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text)

/** A value in a message: short, and never a failure itself. */
export function shown(value: unknown): string {
  if (typeof value === 'function') return 'a function'
  if (typeof value !== 'object') return typeof value === 'string' ? JSON.stringify(cut(value)) : String(value)
  try {
    return cut(JSON.stringify(value) ?? String(value))
  } catch {
    return Array.isArray(value) ? 'a list' : 'an object'
  }
}

/** Runs the steps of a contract, each with a timeout. */
export class Steps {
  readonly timeout: number

  /** @param timeout milliseconds for each step */
  constructor(timeout = 30_000) {
    this.timeout = timeout
  }

  /** Waits for a step. @throws AssertionError that names the step if it times out or fails */
  async run<Result>(name: string, work: () => Promise<Result> | Result): Promise<Result> {
    try {
      return await within(this.timeout, work)
    } catch (error) {
      throw this.failure(name, error)
    }
  }

  /** Limits a call whose errors the server reports. @throws AssertionError that names it if it times out */
  async limit<Result>(name: string, work: () => Promise<Result> | Result): Promise<Result> {
    return await within(this.timeout, work).catch(error => {
      throw error instanceof DeadlineError ? this.failure(name, error) : error
    })
  }

  /** The failure of a step, by anything that a plugin may throw. */
  failure(name: string, error: unknown): AssertionError {
    if (error instanceof AssertionError) return error
    if (error instanceof DeadlineError) {
      return new AssertionError({ message: `${name}: this did not end within ${this.timeout} ms` })
    }
    const isError = error instanceof Error
    const message = isError
      ? errorMessage(error)
      : `it throws ${shown(error)}, not an error: throw context.error(code, message)`
    const failure = new AssertionError({ message: `${name}: ${message}` })
    // The line of the plugin, not of the contract.
    if (isError) failure.cause = error
    return failure
  }

  /** Sends a request whose reply must have the status 200. @returns its body */
  async answered(corral: TestCorral, path: string, body?: unknown, headers?: Record<string, string>): Promise<any> {
    const reply = await this.run(path, () => corral.json(path, body, headers))
    return this.requireAnswer(corral, path, reply)
  }

  requireAnswer(corral: TestCorral, path: string, { status, body }: { status: number; body: any }): any {
    const logged = status >= 500 ? lastFailure(corral.log()) : ''
    assert.equal(status, 200, `${path} answers 200: ${JSON.stringify(body)}${logged}`)
    return body
  }

  async events(corral: TestCorral, path: string, body: unknown): Promise<any[]> {
    return await this.run(`${path} as a stream`, () => corral.events(path, body))
  }
}

/** The last failure in a log, as the end of a message: replies do not tell clients everything. */
function lastFailure(log: string): string {
  for (const line of log.trimEnd().split('\n').reverse()) {
    const { err } = JSON.parse(line || '{}') as { err?: { message?: string; stack?: string } }
    if (err) return ` (in the log: ${cut(err.stack ?? shown(err))})`
  }
  return ''
}
