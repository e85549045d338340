import type { FastifyBaseLogger } from 'fastify'
import { Agent, type Dispatcher, FormData, request } from 'undici'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { abortAfter } from '../../core/system/abort-signals.ts'
import { isObject, parseAnyJson } from '../../core/system/json-object.ts'
import { serverKind } from './server-kinds.ts'

export interface RemoteServerSettings {
  /** Such as `http://127.0.0.1:9001/v1`. */
  url: string
  key?: string | undefined
}

interface RemoteServer extends RemoteServerSettings {
  running: number
  healthy: boolean
}

export type RemoteServers = ReturnType<typeof createRemoteServers>
type ReplyBody = Dispatcher.ResponseData['body']
type Reader<Reply> = (body: ReplyBody, type: string) => Promise<Reply>

interface AskOptions {
  headers?: Record<string, string>
  /** Matches the media types of answers. */
  accepts?: RegExp
}

/** The server is at fault, so another server may succeed. */
class ServerFault extends Error {
  /** The client gets this error if no other server helps. */
  readonly outcome: CorralError
  /** Whether the server gets no requests until a health check succeeds. */
  readonly ejects: boolean

  constructor(outcome: CorralError, ejects = false) {
    super(outcome.message)
    this.outcome = outcome
    this.ejects = ejects
  }
}

/** Manages servers with the same model. `interval` and `timeout` of health checks are milliseconds. 0 checks none. */
export function createRemoteServers(
  name: string,
  settings: readonly RemoteServerSettings[],
  options: {
    interval: number
    timeout: number
    log: Pick<FastifyBaseLogger, 'info' | 'warn'>
    kind?: Parameters<typeof serverKind>[0]
  }
) {
  const { interval, timeout, log } = options
  const kind = serverKind(options.kind)
  // Answers may take any time. Only the client or the server ends them.
  const agent = new Agent({ headersTimeout: 0, bodyTimeout: 0, connect: { timeout } })
  const servers: RemoteServer[] = settings.map(({ url, key }) => {
    return { url: url.replace(/\/+$/, ''), key, running: 0, healthy: true }
  })
  const headersOf = ({ key }: RemoteServer) => (key ? { authorization: `Bearer ${key}` } : {})

  function setHealth(server: RemoteServer, healthy: boolean, reason = ''): void {
    if (server.healthy === healthy) return
    server.healthy = healthy
    if (healthy) log.info({ model: name, server: server.url }, 'a remote server is healthy again')
    else log.warn({ model: name, server: server.url, reason }, 'a remote server gets no requests until it is healthy')
  }

  async function check(server: RemoteServer): Promise<void> {
    try {
      const signal = abortAfter(timeout)
      const reply = await request(kind.health(server.url), { dispatcher: agent, headers: headersOf(server), signal })
      await reply.body.dump()
      setHealth(server, reply.statusCode < 500, `status ${reply.statusCode}`)
    } catch (error) {
      setHealth(server, false, errorMessage(error))
    }
  }

  let checking: Promise<unknown> = Promise.resolve()
  const checkAll = () => {
    checking = Promise.all(servers.map(check))
  }
  const timer = interval > 0 ? setInterval(checkAll, interval).unref() : undefined

  function unreachable(error: unknown): ServerFault {
    return new ServerFault(unavailable(`No server of model "${name}" can be reached. Try again later.`, error), true)
  }

  async function askOne<Reply>(
    server: RemoteServer,
    path: string,
    body: object,
    signal: AbortSignal,
    read: Reader<Reply>,
    { headers, accepts = /json|event-stream/ }: AskOptions
  ): Promise<Reply> {
    server.running++
    try {
      const reply = await request(server.url + path, {
        method: 'POST',
        dispatcher: agent,
        headers: {
          ...headersOf(server),
          ...(!(body instanceof FormData) && { 'content-type': 'application/json' }),
          ...headers
        },
        body: body instanceof FormData ? body : JSON.stringify(body),
        signal
      }).catch(error => {
        signal.throwIfAborted()
        throw unreachable(error)
      })
      const { statusCode } = reply
      const type = String(reply.headers['content-type'] ?? '')
      if (statusCode >= 300) throw refusal(name, statusCode, await readText(reply.body), reply.headers['retry-after'])
      if (!accepts.test(type)) {
        await reply.body.dump().catch(() => undefined)
        const what = `A server of model "${name}" answered with ${type || 'something'}, which is not a model's answer.`
        throw new ServerFault(new CorralError('engine_crashed', `${what} Correct its address in config.yaml.`), true)
      }
      return await read(reply.body, type).catch(error => {
        signal.throwIfAborted()
        if (error instanceof CorralError) throw error
        throw unreachable(error)
      })
    } finally {
      server.running--
    }
  }

  return {
    kind,
    /**
     * Sends a request to the healthy server with the fewest running requests, and reads the reply with `read`. A server
     * that is unreachable or misbehaves is ejected until a health check succeeds. The request moves to the next server
     * as long as `begun` reports that nothing has reached the client.
     */
    async ask<Reply>(
      path: string,
      body: object,
      signal: AbortSignal,
      read: Reader<Reply>,
      { begun = () => false, ...options }: AskOptions & { begun?: () => boolean } = {}
    ): Promise<Reply> {
      const left = new Set(servers)
      let last: ServerFault | undefined
      while (left.size > 0) {
        // Ejected servers are tried last, because one may be back.
        const [server] = [...left].sort((a, b) => Number(b.healthy) - Number(a.healthy) || a.running - b.running)
        left.delete(server!)
        try {
          const reply = await askOne(server!, path, body, signal, read, options)
          setHealth(server!, true)
          return reply
        } catch (error) {
          if (!(error instanceof ServerFault)) throw error
          if (error.ejects) setHealth(server!, false, error.message)
          if (begun()) {
            throw new CorralError('engine_crashed', `The server of model "${name}" ended its answer early.`)
          }
          last = error
        }
      }
      throw last!.outcome
    },
    async close(): Promise<void> {
      clearInterval(timer)
      await agent.destroy()
      await checking
    }
  }
}

/** Seconds after which a server that cannot be reached may be back, if it does not say so itself. */
const RETRY_AFTER_S = 5

const unavailable = (message: string, cause?: unknown, retryAfter?: unknown) =>
  new CorralError('engine_unreachable', message, { cause, retryAfter: Math.ceil(Number(retryAfter)) || RETRY_AFTER_S })

const readText = async (body: ReplyBody) => await body.text().catch(() => '')

/** Translates a rejection for the client. Quotes the server only if the request is at fault, and never its key. */
function refusal(name: string, status: number, text: string, retryAfter: unknown): CorralError | ServerFault {
  const { error: named, ...others }: Record<string, unknown> = Object(parseAnyJson(text))
  const error = named ?? others
  const server = `A server of model "${name}"`
  const full = fullContext(error)
  if (full) return full
  if (status === 401 || status === 403) {
    const what = `${server} rejects the key in config.yaml. Correct the key.`
    return new ServerFault(new CorralError('load_failed', what))
  }
  if (status === 404) {
    const what = `${server} has no model with the name in config.yaml. Correct "model".`
    return new ServerFault(new CorralError('model_not_found', what, { param: 'model' }))
  }
  if (status === 429) {
    const what = `The servers of model "${name}" have too many requests. Try again in a moment.`
    return new ServerFault(new CorralError('queue_full', what, { retryAfter: Math.ceil(Number(retryAfter)) || 1 }))
  }
  if (status >= 500) {
    const what = `${server} failed with status ${status}. Try again later.`
    const isPassing = status >= 502 && status <= 504
    const outcome = isPassing ? unavailable(what, undefined, retryAfter) : new CorralError('engine_crashed', what)
    return new ServerFault(outcome, true)
  }
  const reason = messageOf(error) || status
  return new CorralError('invalid_request', `The server of model "${name}" rejects the request: ${reason}`)
}

/** The beginning of a server's message. */
export const messageOf = (error: unknown) =>
  String((isObject(error) ? error.message : error) ?? '').slice(0, MAX_MESSAGE_LENGTH)
const MAX_MESSAGE_LENGTH = 400

const FULL_CODE = /^(context_length_exceeded|context_exceeded|exceed_context_size_error)$/
/** How vLLM, SGLang, llama.cpp, TGI, LM Studio, OpenAI, Anthropic and others say that a context is full. */
const FULL_MESSAGE =
  /context (length|size|window)|maximum (model length|number of tokens)|prompt is too long|input is too long|too many (input )?tokens|`inputs` (tokens|must)/i
/** Tokens of the prompt and of the context in such a message. */
const COUNTS = [
  /maximum context length (?:is|of) (?<most>\d+) tokens.*?(?:requested|resulted in|request has|total of) (?:a total of )?(?<tokens>\d+)/s,
  /prompt is too long: (?<tokens>\d+) tokens > (?<most>\d+)/,
  /passed (?<tokens>\d+) input tokens.*?maximum input length of (?<most>\d+) tokens/s,
  /\((?<tokens>\d+) tokens\).*?\((?<most>\d+) tokens\)/s,
  /must be <= (?<most>\d+)\. Given: (?<tokens>\d+)/
]

/** Returns the failure of a server whose context is full, with both counts if it says them. Undefined for others. */
export function fullContext(error: unknown): CorralError | undefined {
  const { code, type, n_prompt_tokens: given, n_ctx: held }: Record<string, unknown> = isObject(error) ? error : {}
  const message = messageOf(error)
  if (![code, type].some(each => FULL_CODE.test(`${each}`)) && !FULL_MESSAGE.test(message)) return undefined
  const { tokens = given, most = held } = COUNTS.map(pattern => pattern.exec(message)?.groups).find(Boolean) ?? {}
  const details = { n_prompt_tokens: Number(tokens), n_ctx: Number(most) }
  const { n_prompt_tokens: prompt, n_ctx: context } = details
  if (prompt > context) {
    const what = `The prompt has ${prompt} tokens, but the context of the model's server holds ${context}.`
    return new CorralError('context_exceeded', `${what} Shorten the text.`, { details })
  }
  return new CorralError('context_exceeded', `${message || 'The context is full.'} Shorten the text.`)
}
