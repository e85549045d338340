import type { Client } from '@modelcontextprotocol/client'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { version } from '../../../core/system/package-info.ts'
import { printable } from '../../../core/system/printable.ts'
import { withVariables } from './results.ts'
import { ProgramTransport } from './stdio-transport.ts'
import type { ToolServer } from './tool-settings.ts'

/** Bytes of a message of a server. Its connection ends if it sends more. */
const MAX_MESSAGE_BYTES = 16 * 2 ** 20
const MAX_PAGES = 16
const FIRST_DELAY_MS = 1000
const MAX_DELAY_MS = 60_000
/** Milliseconds for the question whether a server speaks the newest protocol. Old ones may not answer it at all. */
const PROBE_MS = 10_000
/** Calls in a row without an answer after which a server is started again. */
const MAX_TIMEOUTS = 2

export interface ConnectionOptions {
  /** Milliseconds. */
  start: number
  idle: number
  /** More variables that the settings may refer to. */
  variables: NodeJS.ProcessEnv
}

type Log = { debug(object: object, message: string): void; info(object: object, message: string): void }

interface Open {
  client: Client
  lastLine(): string | undefined
}

/** A connection to one server of tools: opened on first use, closed when idle, opened again after a growing delay. */
export class ToolConnection {
  readonly #name: string
  readonly #settings: ToolServer
  readonly #options: ConnectionOptions
  readonly #log: Log
  #open: Promise<Open> | undefined
  #isOpen = false
  #users = 0
  #idle: NodeJS.Timeout | undefined
  #failures = 0
  #nextAttempt = 0
  #timeouts = 0
  #isClosed = false
  /** Why it failed last. */
  fault: string | undefined
  lastUse = performance.now()

  constructor(name: string, settings: ToolServer, options: ConnectionOptions, log: Log) {
    this.#name = name
    this.#settings = settings
    this.#options = options
    this.#log = log
  }

  get state(): 'running' | 'stopped' | 'failed' {
    return this.#isOpen ? 'running' : this.fault === undefined ? 'stopped' : 'failed'
  }

  get isBusy(): boolean {
    return this.#users > 0
  }

  /** Uses the server, which is started if needed. @throws CorralError `tools_unavailable`; errors of `work` */
  async use<Result>(work: (client: Client) => Promise<Result>): Promise<Result> {
    clearTimeout(this.#idle)
    this.#users++
    try {
      const open = await this.#opened()
      const result = await work(open.client).catch(async error => {
        if (!isUnknownSession(error)) throw error
        // The server was started again, and has done nothing for a session that it does not know.
        if ((await this.#open) === open) await this.#stop()
        return await work((await this.#opened()).client)
      })
      this.#failures = 0
      this.#timeouts = 0
      this.fault = undefined
      return result
    } finally {
      this.#users--
      this.lastUse = performance.now()
      if (this.#users === 0) this.#idle = setTimeout(() => void this.#stop(), this.#options.idle).unref()
    }
  }

  async #opened(): Promise<Open> {
    this.#open ??= this.#connect()
    const open = this.#open
    try {
      return await open
    } catch (error) {
      if (this.#open === open) this.#open = undefined
      throw error
    }
  }

  /** A call was not answered in time. */
  noteTimeout(): void {
    this.#timeouts++
    if (this.#timeouts >= MAX_TIMEOUTS) void this.#stop()
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await this.#stop()
  }

  async #stop(): Promise<void> {
    clearTimeout(this.#idle)
    const open = this.#open
    this.#open = undefined
    this.#isOpen = false
    this.#timeouts = 0
    const opened = await open?.catch(() => undefined)
    await opened?.client.close().catch(() => {})
  }

  async #connect(): Promise<Open> {
    const wait = this.#nextAttempt - performance.now()
    if (this.#isClosed || wait > 0) {
      const again = Math.max(1, Math.ceil(wait / 1000))
      throw this.#unavailable(`${this.fault ?? 'it was removed'}. It is tried again in ${again} s`, again)
    }
    try {
      const open = await this.#attempt('auto').catch(error => {
        // Some old programs end at the first question of the newest protocol, or refuse an older one after it.
        if (this.#settings.url === undefined && /closed during the|initialize handshake/.test(errorMessage(error)))
          return this.#attempt('legacy')
        throw error
      })
      open.client.onclose = () => this.#noteEnd(open)
      this.#isOpen = true
      this.#log.info({ server: this.#name }, `The tool server "${this.#name}" was started.`)
      return open
    } catch (error) {
      this.#noteFailure(reasonText(error))
      throw this.#unavailable(this.fault!, undefined, error)
    }
  }

  #noteEnd({ lastLine }: Open): void {
    // Otherwise corral has stopped it.
    if (!this.#isOpen) return
    this.#open = undefined
    this.#isOpen = false
    const last = lastLine()
    this.#noteFailure(`it ended${last === undefined ? '' : `. Its last line: ${printable(last, 400)}`}`)
  }

  #noteFailure(fault: string): void {
    this.fault = fault
    this.#nextAttempt = performance.now() + Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#failures)
    this.#failures++
    this.#log.info({ server: this.#name }, `The tool server "${this.#name}" failed: ${fault}`)
  }

  #unavailable(why: string, retryAfter?: number, cause?: unknown): CorralError {
    const message = `The tool server "${this.#name}" cannot be used: ${why}. An admin can examine it with "corral mcp check ${this.#name}".`
    return new CorralError('tools_unavailable', message, { cause, ...(retryAfter !== undefined && { retryAfter }) })
  }

  async #attempt(mode: 'auto' | 'legacy'): Promise<Open> {
    const { Client } = await import('@modelcontextprotocol/client')
    const { transport, lastLine } = await this.#transport()
    const client = new Client(
      { name: 'corral', version },
      {
        capabilities: {},
        listMaxPages: MAX_PAGES,
        versionNegotiation: { mode, probe: { timeoutMs: Math.min(PROBE_MS, this.#options.start) } },
        // Compiling a server's schemas and patterns would let it block corral.
        jsonSchemaValidator: {
          getValidator: () => input => ({ valid: true, data: input as never, errorMessage: undefined })
        }
      }
    )
    try {
      await client.connect(transport, { timeout: this.#options.start })
    } catch (error) {
      await client.close().catch(() => {})
      await transport.close().catch(() => {})
      const last = lastLine()
      if (last === undefined) throw error
      throw new Error(`${reasonText(error)}. Its last line: ${printable(last, 400)}`, { cause: error })
    }
    return { client, lastLine }
  }

  async #transport() {
    const { command, arguments: args = [], environment = {}, directory, url, headers = {} } = this.#settings
    const variables = { ...process.env, ...this.#options.variables }
    const filled = (texts: Record<string, string>) =>
      Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, withVariables(text, variables)]))
    if (url === undefined) {
      const transport = new ProgramTransport({
        command: command!,
        arguments: args,
        environment: filled(environment),
        directory,
        maxMessage: MAX_MESSAGE_BYTES,
        debug: line => this.#log.debug({ server: this.#name }, line)
      })
      return { transport, lastLine: () => transport.lastLine() }
    }
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client')
    const transport = new StreamableHTTPClientTransport(new URL(url), {
      // A redirect could lead anywhere, for example into a private network.
      requestInit: { headers: filled(headers), redirect: 'error' },
      fetch: async (address, init) => bounded(await fetch(address, init))
    })
    return { transport, lastLine: () => undefined }
  }
}

function isUnknownSession(error: unknown): boolean {
  const { status } = error as { status?: number }
  return status === 404 || (status === 400 && /session/i.test(errorMessage(error)))
}

/** Ends a reply whose message is too large. Events of a stream are separate messages. */
function bounded(response: Response): Response {
  if (!response.body) return response
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream') === true
  let size = 0
  const limit = new TransformStream<Uint8Array, Uint8Array>({
    transform(piece, controller) {
      if (isStream && /\n\r?\n/.test(Buffer.from(piece.buffer, piece.byteOffset, piece.length).toString('latin1')))
        size = 0
      size += piece.length
      if (size > MAX_MESSAGE_BYTES) controller.error(new Error(`it sent more than ${MAX_MESSAGE_BYTES} bytes`))
      else controller.enqueue(piece)
    }
  })
  const { status, statusText, headers } = response
  return new Response(response.body.pipeThrough(limit), { status, statusText, headers })
}

/** Returns the reason of a failure and of its cause, which `fetch` hides. */
export function reasonText(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? ` (${error.cause.message})` : ''
  return printable(`${errorMessage(error)}${cause}`.replace(/\.$/, ''), 400)
}
