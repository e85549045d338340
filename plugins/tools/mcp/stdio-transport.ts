import type { Writable } from 'node:stream'
import type { JSONRPCMessage, Transport } from '@modelcontextprotocol/client'
import { errorMessage } from '../../../core/errors.ts'
import { withResolver } from '../../../core/system/abort-signals.ts'
import { runTool } from '../../../core/system/child-process.ts'
import { LogTail } from '../../../core/system/log-tail.ts'

const GRACE_MS = 2000
const NEWLINE = 10

export interface ToolProgram {
  command: string
  arguments: readonly string[]
  environment: Readonly<Record<string, string>>
  directory: string | undefined
  /** Bytes. */
  maxMessage: number
  debug(line: string): void
}

/** MCP over the standard input and output of a program, which ends with corral. The SDK's transport does not ensure that. */
export class ProgramTransport implements Transport {
  onclose?: (() => void) | undefined
  onerror?: ((error: Error) => void) | undefined
  onmessage?: Transport['onmessage'] | undefined
  /* The SDK recognizes a local program by these two. */
  readonly pid = null
  readonly stderr = null
  readonly #program: ToolProgram
  readonly #stopping = new AbortController()
  readonly #tail = new LogTail()
  #input: Writable | undefined
  #ended: Promise<void> | undefined
  #pieces: Buffer[] = []
  #size = 0
  #excess: string | undefined

  constructor(program: ToolProgram) {
    this.#program = program
  }

  /** Why it was ended, or the last line of its error output, for messages. */
  lastLine(): string | undefined {
    return this.#excess ?? this.#tail.all().findLast(line => line.trim() !== '')
  }

  async start(): Promise<void> {
    const { command, arguments: args, environment, directory, debug } = this.#program
    const begun = withResolver()
    let failure: unknown
    const options = {
      signal: this.#stopping.signal,
      purpose: 'packages' as const,
      variables: environment,
      grace: GRACE_MS,
      ...(directory !== undefined && { cwd: directory }),
      onLine: (line: string) => {
        this.#tail.push(line)
        debug(line)
      },
      talk: {
        begin: (input: Writable) => {
          this.#input = input
          begun.resolve()
        },
        take: (bytes: Buffer) => this.#take(bytes)
      }
    }
    this.#ended = runTool(command, args, options)
      .then(
        () => undefined,
        error => {
          failure = error
          if (!this.#stopping.signal.aborted) this.onerror?.(error)
        }
      )
      .then(() => this.onclose?.())
    await Promise.race([begun.promise, this.#ended])
    if (!this.#input) throw failure
  }

  async send(message: JSONRPCMessage): Promise<void> {
    const input = this.#input
    if (!input?.writable) throw new Error('the program has ended')
    await new Promise<void>((sent, failed) => {
      input.write(`${JSON.stringify(message)}\n`, error => (error ? failed(error) : sent()))
    })
  }

  async close(): Promise<void> {
    this.#input?.end()
    this.#stopping.abort()
    await this.#ended
  }

  #take(bytes: Buffer): void {
    let from = 0
    for (let at = bytes.indexOf(NEWLINE); at !== -1; at = bytes.indexOf(NEWLINE, from)) {
      this.#pieces.push(bytes.subarray(from, at))
      from = at + 1
      const line = Buffer.concat(this.#pieces.splice(0)).toString()
      this.#size = 0
      if (line.trim() !== '') this.#read(line)
    }
    if (from < bytes.length) this.#pieces.push(bytes.subarray(from))
    this.#size += bytes.length - from
    if (this.#size > this.#program.maxMessage) {
      this.#pieces = []
      this.#excess = `(corral ended it, because it sent a message of more than ${this.#program.maxMessage} bytes)`
      void this.close()
    }
  }

  #read(line: string): void {
    try {
      this.onmessage?.(JSON.parse(line) as JSONRPCMessage)
    } catch (error) {
      // Programs that print other texts are common.
      this.#program.debug(`A line is not a message of MCP (${errorMessage(error)}).`)
    }
  }
}
