import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { brotliDecompress, unzip } from 'node:zlib'
import { CorralError } from '../../../core/errors.ts'
import { version } from '../../../core/system/package-info.ts'
import { openWays, type ServerWays } from '../../../core/system/server-ways.ts'
import { connectionWords } from './connection-errors.ts'
import { isRedirect, judgeRedirect, MAX_REDIRECTS } from './redirects.ts'

/** Milliseconds in which a server that was reached must begin to answer, and may be silent within an answer. */
const ANSWER_LIMIT = 20_000
/** Bytes of the largest answer that is read: a listing of many thousand files has some MB. */
const BODY_LIMIT = 64 * 1024 * 1024
const ERROR_BODY_LIMIT = 64 * 1024
/** Milliseconds after the first attempt in which others may begin, where the question does not say. */
const PATIENCE = 8_000
/** The same for where a file is: work that has begun is not given up as soon. */
export const LOCATE_PATIENCE = 20_000

export const USER_AGENT = `corral/${version}`

export interface HubQuestion {
  url: string
  method?: 'GET' | 'HEAD'
  headers?: Headers
  /** Sent to the address's own host and the trusted ones, and to no other. */
  credentials?: Headers
  trustedHosts?: readonly string[]
  signal?: AbortSignal | undefined
  /** What to do at a redirect to a host that gets no credentials: go there without, or give the address. */
  foreign?: 'follow' | 'stop'
  /** Leaves a good answer's body unread. */
  headersOnly?: boolean
  /** Milliseconds after the first attempt in which others may begin. */
  patience?: number
  /** An answer that is the hub's word although its status says that it may pass. */
  isFinal?(answer: HubAnswer): boolean
}

export interface HubAnswer {
  status: number
  /** Address that gave it. */
  url: string
  headers: Headers
  /** Headers of every answer on the way, redirects included, in order; the last ones are `headers`. */
  hops: Headers[]
  text: string
  /** Credentials that were sent for it. */
  credentials: Headers | undefined
  /** Where a foreign redirect leads that was not followed. */
  foreignPlace?: string
}

export interface HubFetchOptions {
  /** Name of the hub in messages. */
  title: string
  /** Proxy for all requests; empty heeds the environment's. */
  proxy: string
  /** Milliseconds until a server counts as unreachable. */
  connectTimeout: number
  /** Ends everything. */
  signal: AbortSignal
}

/** An address as messages may show it: without credentials, and without a query, which may hold a signature. */
export function shownAddress(address: string): string {
  const { origin, pathname } = new URL(address)
  return origin + pathname
}

/** Asks a server, once redirects are followed and what passes is retried; `close` ends its connections. */
export function createHubFetch(options: HubFetchOptions) {
  const via = options.proxy ? ' (through the proxy of its settings)' : ''
  let ways: Promise<ServerWays> | undefined

  async function send(question: HubQuestion, url: URL, credentials: Headers | undefined, signal: AbortSignal) {
    // An empty setting leaves it to the environment.
    ways ??= openWays(options.proxy || undefined, {
      connect: { timeout: options.connectTimeout },
      headersTimeout: ANSWER_LIMIT,
      bodyTimeout: ANSWER_LIMIT
    })
    const dispatcher = (await ways).to(url)
    const { request } = await import('undici')
    const response = await request(url, {
      dispatcher,
      method: question.method ?? 'GET',
      signal,
      headers: {
        'user-agent': USER_AGENT,
        // A packed answer hides a file's length.
        'accept-encoding': 'identity',
        ...question.headers,
        ...credentials
      }
    })
    const headers: Headers = {}
    for (const [name, value] of Object.entries(response.headers)) {
      if (value !== undefined) headers[name] = Array.isArray(value) ? value.join(', ') : value
    }
    const { statusCode: status, body } = response
    const leave = isRedirect(status) || (question.headersOnly && status < 300)
    // The connection goes with an unread body: it may be a whole model.
    if (leave) {
      body.on('error', () => undefined).destroy()
      return { status, headers, text: '' }
    }
    return { status, headers, text: await readText(body, headers, status < 300 ? BODY_LIMIT : ERROR_BODY_LIMIT, url) }
  }

  async function readText(body: AsyncIterable<Buffer>, headers: Headers, limit: number, url: URL): Promise<string> {
    const pieces: Buffer[] = []
    let size = 0
    for await (const piece of body) {
      size += piece.length
      if (size > limit) {
        if (limit === ERROR_BODY_LIMIT) break
        throw unreachable(`${url.host} gives an answer of more than ${limit / 1024 / 1024} MiB`)
      }
      pieces.push(piece)
    }
    const bytes = Buffer.concat(pieces)
    // Some servers pack whatever is asked.
    const unpack = { gzip: unzip, deflate: unzip, br: brotliDecompress }[headers['content-encoding'] ?? '']
    if (!unpack || size === 0) return bytes.toString()
    return (await promisify<Buffer, object, Buffer>(unpack)(bytes, { maxOutputLength: BODY_LIMIT })).toString()
  }

  function unreachable(why: string, cause?: unknown): CorralError {
    const sentence = /[.?]$/.test(why) ? why : `${why}.`
    return new CorralError('hub_unreachable', `${options.title} cannot be used: ${sentence}`, { cause })
  }

  /** One attempt, with its redirects. */
  async function attempt(question: HubQuestion, signal: AbortSignal): Promise<HubAnswer> {
    const start = new URL(question.url)
    const hops: Headers[] = []
    let url = start
    let credentials = question.credentials
    for (let redirects = 0; ; redirects++) {
      const { status, headers, text } = await send(question, url, credentials, signal).catch(error => {
        if (signal.aborted) throw signal.reason
        throw error instanceof CorralError ? error : unreachable(connectionWords(error, url.host) + via, error)
      })
      hops.push(headers)
      const answer = { status, url: url.href, headers, hops, text, credentials }
      if (!isRedirect(status)) return answer
      if (redirects === MAX_REDIRECTS) throw unreachable(`${start.host} redirects more than ${MAX_REDIRECTS} times`)
      const redirect = judgeRedirect(headers.location, { start, from: url, trustedHosts: question.trustedHosts ?? [] })
      if ('refused' in redirect) throw unreachable(`${start.host} cannot be trusted: ${redirect.refused}`)
      if (redirect.foreign && question.foreign === 'stop') return { ...answer, foreignPlace: redirect.to.href }
      // Once away from the hub, nothing brings its credentials back.
      if (redirect.foreign) credentials = undefined
      url = redirect.to
    }
  }

  return {
    /**
     * Gives the server's answer, whatever its status.
     * @throws CorralError `hub_unreachable` when there is none; the signal's reason
     */
    async ask(question: HubQuestion): Promise<HubAnswer> {
      const signal = question.signal ? AbortSignal.any([options.signal, question.signal]) : options.signal
      const last = Date.now() + (question.patience ?? PATIENCE)
      for (let tries = 0; ; tries++) {
        signal.throwIfAborted()
        let answer: HubAnswer | undefined
        let failure: unknown
        try {
          answer = await attempt(question, signal)
          if (!isPassing(answer.status) || question.isFinal?.(answer)) return answer
        } catch (error) {
          // What a server should not do, it does again.
          if (!(error instanceof CorralError) || error.cause === undefined) throw error
          failure = error
        }
        const delay = retryDelay(tries, answer?.headers, Date.now(), Math.random())
        if (Date.now() + delay > last) {
          if (answer) return answer
          throw failure
        }
        await sleep(delay, undefined, { signal }).catch(() => {
          throw signal.reason
        })
      }
    },

    async close(): Promise<void> {
      await (await ways)?.close()
    }
  }
}
export type HubFetch = ReturnType<typeof createHubFetch>

/** Values of response headers by lower-case names. */
export type Headers = Record<string, string>

const FIRST_DELAY = 400
const LONGEST_DELAY = 8_000

/** Whether the same question may well be answered a moment later. */
export function isPassing(status: number): boolean {
  return status === 408 || status === 425 || status === 429 || (status >= 500 && status !== 501 && status !== 505)
}

/** Seconds after which a server that refuses wants to be asked again; undefined where it does not say. */
export function retryAfterSeconds(headers: Headers, now: number): number | undefined {
  // The draft standard's header, as Hugging Face sends it: `"api";r=0;t=55`. Only an exhausted limit explains a refusal.
  const waits = (headers.ratelimit ?? '')
    .split(',')
    .filter(policy => /;\s*r=0\s*(;|$)/.test(policy))
    .map(policy => Number(/;\s*t=(\d+)/.exec(policy)?.[1] ?? Number.NaN))
    .filter(Number.isFinite)
  if (waits.length > 0) return Math.max(...waits) + 1
  const after = headers['retry-after']?.trim()
  if (after && /^\d+(\.\d+)?$/.test(after)) return Math.ceil(Number(after))
  const date = after ? Date.parse(after) : Number.NaN
  if (Number.isFinite(date)) return Math.max(0, Math.ceil((date - now) / 1000))
  const reset = Number(headers['x-ratelimit-reset'] ?? Number.NaN)
  if (reset > now / 1000) return Math.ceil(reset - now / 1000)
  return undefined
}

/**
 * Milliseconds to wait before a question is asked again.
 * @param attempt 0 after the first failure
 * @param random 0 to 1
 */
export function retryDelay(attempt: number, headers: Headers | undefined, now: number, random: number): number {
  const asked = headers && retryAfterSeconds(headers, now)
  if (asked !== undefined) return asked * 1000
  const backOff = Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** attempt)
  return backOff * (0.5 + random / 2)
}
