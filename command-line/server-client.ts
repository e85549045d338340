import { request as httpRequest, type IncomingHttpHeaders, type IncomingMessage } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { createParser } from 'eventsource-parser'
import { errorMessage, isSystemError } from '../core/errors.ts'
import { abortAfter } from '../core/system/abort-signals.ts'
import { isObject, parseAnyJson } from '../core/system/json-object.ts'
import { CommandFailure, EXIT, exitCodeFor, failure, interruption } from './command-failure.ts'

/** Client of a corral server. Requests have no time limit, because a model may take minutes to load or to think. */
export interface ServerClient {
  /** Such as `http://127.0.0.1:11435`. */
  readonly address: string
  /** Whether requests use the private socket. */
  readonly bySocket: boolean
  /** Returns the reply's JSON. @throws CommandFailure with the server's message if it refuses */
  json<Reply>(method: Method, path: string, body?: unknown, signal?: AbortSignal): Promise<Reply>
  /** Reads the bytes of the reply to a POST. */
  bytes<Result>(
    path: string,
    body: unknown,
    read: (reply: IncomingMessage) => Promise<Result>,
    options?: { signal?: AbortSignal; headers?: Record<string, string> }
  ): Promise<Result>
  /** Yields the Server-Sent Events of the reply to a POST with `body`, or to a GET without it. */
  stream<Event extends object>(path: string, body?: unknown, options?: StreamOptions): AsyncGenerator<Event>
  /** A client for requests after the command was interrupted. Only its own signals abort it. */
  uninterrupted(): ServerClient
}

type Method = 'GET' | 'POST' | 'PUT' | 'DELETE'

interface StreamOptions {
  signal?: AbortSignal | undefined
  /** Receives comments about the current work (`loading 42%`). */
  onStatus?: (text: string) => void
  /** Receives the headers of the reply before the first event. */
  onHeaders?: (headers: IncomingHttpHeaders) => void
}

/** Where a command reaches a server. */
export interface ServerPlace {
  address: string
  /** The server's private socket, used instead of its address if this user can open it. */
  socket?: string | undefined
  /** Reason for not using the socket, as the end of a sentence. */
  why?: string
}

export interface ServerAccess extends ServerPlace {
  /** Sent as a bearer token. The private socket needs none. */
  apiKey: string | undefined
}

const NEVER = new AbortController().signal
/** Maximum number of moves to another server. */
const MAX_MOVES = 3

/** @param elsewhere finds another server for requests that this one refused because it is shutting down */
export function createClient({
  signal: ended,
  elsewhere,
  ...found
}: ServerAccess & { signal: AbortSignal; elsewhere?: () => Promise<ServerAccess | undefined> }): ServerClient {
  let access: ServerAccess = found

  async function send(...request: Parameters<typeof sendOnce>): Promise<IncomingMessage> {
    for (let left = MAX_MOVES; ; left--) {
      try {
        return await sendOnce(...request)
      } catch (error) {
        const next = left > 0 && wasNotTaken(request[0], error) ? await elsewhere?.() : undefined
        if (!next) throw error
        access = next
      }
    }
  }

  async function sendOnce(
    method: string,
    path: string,
    body: unknown,
    signal: AbortSignal,
    headers: Record<string, string> = {}
  ): Promise<IncomingMessage> {
    const { address, socket, apiKey } = access
    const payload = body === undefined ? undefined : JSON.stringify(body)
    signal.throwIfAborted()
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      // Without an agent each request closes its own connection, so that none keeps the process alive.
      const send = socket === undefined && address.startsWith('https:') ? httpsRequest : httpRequest
      const url = new URL(path, socket === undefined ? address : 'http://localhost')
      const request = send(url, {
        method,
        ...(socket !== undefined && { socketPath: socket }),
        agent: false,
        signal,
        headers: {
          accept: 'text/event-stream, application/json;q=0.9',
          ...headers,
          ...(payload !== undefined && {
            'content-type': 'application/json',
            'content-length': Buffer.byteLength(payload)
          }),
          ...(apiKey && socket === undefined && { authorization: `Bearer ${apiKey}` })
        }
      })
      request.once('response', resolve)
      request.once('error', error => reject(signal.aborted ? signal.reason : unreachable(address, error)))
      request.end(payload)
    })
    if (response.statusCode! >= 400) throw refusal(access, response.statusCode!, await readText(response, signal))
    return response
  }

  async function readText(response: IncomingMessage, signal: AbortSignal): Promise<string> {
    try {
      const chunks: Buffer[] = []
      for await (const chunk of response) chunks.push(chunk)
      return Buffer.concat(chunks).toString('utf8')
    } catch (error) {
      throw signal.aborted ? signal.reason : cutOff(access.address, error)
    }
  }

  return {
    get address() {
      return access.address
    },
    get bySocket() {
      return access.socket !== undefined
    },
    uninterrupted: () => createClient({ ...access, signal: NEVER, ...(elsewhere && { elsewhere }) }),
    async json<Reply>(method: Method, path: string, body?: unknown, signal?: AbortSignal) {
      const either = signal ? AbortSignal.any([signal, ended]) : ended
      const text = await readText(await send(method, path, body, either), either)
      return parseJson(access.address, text) as Reply
    },
    async bytes(path, body, read, { signal, headers } = {}) {
      const either = signal ? AbortSignal.any([signal, ended]) : ended
      const response = await send('POST', path, body, either, headers)
      return await read(response).catch(error => {
        throw either.aborted ? either.reason : cutOff(access.address, error)
      })
    },
    async *stream<Event extends object>(path: string, body?: unknown, options: StreamOptions = {}) {
      const { signal, onStatus, onHeaders } = options
      const either = signal ? AbortSignal.any([signal, ended]) : ended
      const response = await send(body === undefined ? 'GET' : 'POST', path, body, either)
      onHeaders?.(response.headers)
      const events: (Event & { error?: unknown; code?: unknown })[] = []
      const parser = createParser({
        onEvent: ({ data }) => {
          // The end mark of OpenAI's API.
          if (data !== '[DONE]') events.push(parseJson(access.address, data) as Event)
        },
        onComment: comment => onStatus?.(comment.trim())
      })
      const decoder = new TextDecoder()
      try {
        for await (const chunk of response) {
          parser.feed(decoder.decode(chunk, { stream: true }))
          for (const event of events.splice(0)) {
            if (typeof event.error === 'string') throw streamError(event)
            yield event
          }
        }
      } catch (error) {
        if (either.aborted) throw either.reason
        throw error instanceof CommandFailure ? error : cutOff(access.address, error)
      }
    }
  }
}

/**
 * Checks a server's health. `ok`: corral answers. `silent`: something accepts connections but does not answer in time.
 * @throws CommandFailure if its certificate is not trusted
 */
export async function healthAt(place: ServerPlace, timeout: number): Promise<'ok' | 'silent' | 'none'> {
  const { address } = place
  const tooLate = abortAfter(timeout)
  const client = createClient({ ...place, apiKey: undefined, signal: interruption() })
  try {
    const health = await client.json<{ status?: unknown }>('GET', '/api/health', undefined, tooLate)
    return health.status === 'ok' ? 'ok' : 'none'
  } catch (error) {
    interruption().throwIfAborted()
    if (error instanceof CommandFailure && certificateFault(address, error.cause)) throw error
    // Nothing is there, or another program, or a server that is shutting down: none of them is usable.
    return tooLate.aborted ? 'silent' : 'none'
  }
}

/** An error reported by the server, with its code, so that commands can handle it. */
export class ServerRefusal extends CommandFailure {
  readonly code: string | undefined
  /** Other fields of the reply, such as `choices`. */
  readonly details: Record<string, unknown>

  constructor(message: string, code: string | undefined, details: Record<string, unknown> = {}) {
    super(exitCodeFor(code), message)
    this.code = code
    this.details = details
  }
}

function streamError(event: { error?: unknown; code?: unknown }): ServerRefusal {
  return new ServerRefusal(String(event.error), typeof event.code === 'string' ? event.code : undefined, { ...event })
}

/** Whether the server did not process the request because it is shutting down or has gone. */
function wasNotTaken(method: string, error: unknown): boolean {
  if (!(error instanceof CommandFailure)) return false
  if (error instanceof ServerRefusal) return error.code === 'shutting_down'
  // After a broken connection it is unknown how much of the request the server received.
  return error.exitCode === EXIT.noServer || (method === 'GET' && isSystemError(error.cause, ...BROKEN))
}

function refusal({ address, why, apiKey }: ServerAccess, status: number, text: string): ServerRefusal {
  const hasKey = apiKey !== undefined
  const body = (parseAnyJson(text) ?? {}) as Record<string, unknown>
  const because = why === undefined ? '' : `, since ${why}`
  if (status === 401) {
    const problem = hasKey ? 'rejects the API key' : 'requires an API key'
    return new ServerRefusal(
      `The server at ${address} ${problem}. Set CORRAL_API_KEYS to one of its keys. "corral key create <name>" on its ` +
        `machine creates one. (The request used TCP${because}.)`,
      'unauthorized'
    )
  }
  // OpenAI's API, which the commands for speech use, and JSON-RPC.
  if (isObject(body.error)) return new ServerRefusal(String(body.error.message), String(body.error.code), body)
  if (typeof body.error !== 'string') {
    const problem = `The server at ${address} answered with status ${status}. It may not be corral.`
    return new ServerRefusal(problem, undefined)
  }
  if (body.code !== 'forbidden_role') return streamError(body)
  const key = hasKey ? 'with the key of CORRAL_API_KEYS' : 'without a key'
  return new ServerRefusal(
    `${body.error} The request used TCP ${key}${because}. Set CORRAL_API_KEYS to a key with this permission. ` +
      '"corral key create <name> --role operator|admin" on the server\'s machine creates one.',
    'forbidden_role'
  )
}

function parseJson(address: string, text: string): Record<string, unknown> {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw failure(`The reply from ${address} is not from corral. Check --host and --port.`, error)
  }
}

/** The connection was accepted and then dropped. */
const BROKEN = ['ECONNRESET', 'EPIPE']

function unreachable(address: string, error: unknown): CommandFailure {
  if (isSystemError(error, ...BROKEN)) return cutOff(address, error)
  const fault = certificateFault(address, error)
  if (fault !== undefined) return failure(fault, error)
  // Node.js gives no message if a name has several addresses and none answers.
  const reason = errorMessage(error) || String((error as NodeJS.ErrnoException).code)
  const problem = `No server is running at ${address} (${reason}).`
  return new CommandFailure(EXIT.noServer, `${problem} Start one with: corral serve`, error)
}

const cutOff = (address: string, error: unknown) =>
  failure(
    `The connection to ${address} closed before the reply was complete (${errorMessage(error)}). Try again.`,
    error
  )

const UNTRUSTED = ['DEPTH_ZERO_SELF_SIGNED_CERT', 'SELF_SIGNED_CERT_IN_CHAIN', 'UNABLE_TO_VERIFY_LEAF_SIGNATURE']
const UNTRUSTED_ISSUER = ['UNABLE_TO_GET_ISSUER_CERT', 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY']

/** Describes a problem with a server's certificate. Undefined for other errors. */
function certificateFault(address: string, error: unknown): string | undefined {
  const says = (fault: string, help: string) =>
    `The server at ${address} ${fault} (${errorMessage(error)}), so nothing was sent. ${help}`
  if (isSystemError(error, ...UNTRUSTED, ...UNTRUSTED_ISSUER)) {
    const help = 'If it is the right server, trust the issuer of its certificate'
    return says('has a certificate that is not trusted', `${help}: NODE_EXTRA_CA_CERTS=<file in PEM format> corral …`)
  }
  if (isSystemError(error, 'ERR_TLS_CERT_ALTNAME_INVALID')) {
    return says('has a certificate for another name', 'Use the name in its certificate: --host https://<name>:<port>')
  }
  if (isSystemError(error, 'CERT_HAS_EXPIRED', 'CERT_NOT_YET_VALID')) {
    const help = 'Ask its admin to renew it, and check the clock of this machine.'
    return says('has a certificate that has expired or is not valid yet', help)
  }
  return undefined
}
