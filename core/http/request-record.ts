import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { TokenUsage } from '../contracts/engines.ts'
import type { Operation } from '../contracts/hooks.ts'
import type { Model } from '../contracts/models.ts'
import type { CorralError } from '../errors.ts'
import { parseTraceParent, type TraceParent } from './trace-parent.ts'

declare module 'fastify' {
  interface FastifyRequest {
    record: RequestRecord
  }

  interface FastifyInstance {
    /** Calls the observer with each request once it is over, also if the client disconnected. */
    onRequestEnd(observe: RequestObserver): void
  }
}

export type RequestObserver = (request: FastifyRequest, reply: FastifyReply) => void

export interface ModelUse {
  readonly surface: string
  readonly operation: Operation
  /** Public name of the model, such as `corral/tiny-chat`. */
  readonly model: string
  readonly variant: Model
}

/** The part of the memory for bodies that a body uses, and the client that it is counted for. */
export interface BodyHold {
  readonly client: string
  bytes: number
}

/** The status of a request whose client disconnected before its answer was complete. */
export const CLIENT_LEFT = 499

/**
 * The progress and outcome of one request, for logs, metrics and accounts. Each part of corral sets the fields that it
 * knows, and observers read them when the request is over. Times are milliseconds of `performance.now()`.
 */
export class RequestRecord {
  readonly began = performance.now()
  /** When its JSON body was complete; absent without a body. */
  received: number | undefined
  ended = Number.NaN
  /** Its use of the memory for bodies. */
  body: BodyHold | undefined
  /** Status code of the reply, `CLIENT_LEFT`, or the status of the failure that ended its stream. */
  status = 0
  failure: CorralError | undefined
  /** Whether it counts as an accepted request for a model (`draining.ts`). */
  admitted = false
  /** Absent if it does not use a model. */
  use: ModelUse | undefined
  /** When it began to wait for an engine, including the load and the queue. */
  waitBegan: number | undefined
  /** When it got its engine. After a retry, when it got the last one. */
  leased: number | undefined
  /** Milliseconds that it waited for the model to load; 0 if the model was loaded. */
  loadDuration = 0
  firstPiece: number | undefined
  /** When the engine was done. */
  answered: number | undefined
  /** The span for all work of the request: the caller's, or with tracing the request's own. */
  trace: TraceParent | undefined
  readonly tokens = new TokenTally()
  readonly #whenComplete: () => void
  /** Number of things that must end before the record is complete: the connection, and engines at work. */
  #open = 1

  /** @param whenComplete called once the record will no longer change */
  constructor(whenComplete: () => void) {
    this.#whenComplete = whenComplete
  }

  /** Keeps the record open until `release`: a client may disconnect before the usage is known. */
  hold(): void {
    this.#open++
  }

  release(): void {
    this.#open--
    if (this.#open === 0) this.#whenComplete()
  }

  /**
   * Milliseconds that corral itself took: all time except receiving the body, waiting for the engine, and the engine's
   * work. Excludes corral's work during the answer.
   */
  get overhead(): number {
    const { ended, waitBegan, leased } = this
    const began = this.received ?? this.began
    // If the client has disconnected, the engine may have run a little longer.
    const answered = Math.min(this.answered ?? ended, ended)
    const waited = waitBegan === undefined ? 0 : (leased ?? ended) - waitBegan
    const engine = leased === undefined ? 0 : answered - leased
    return ended - began - waited - engine
  }
}

/** Counts the tokens of one answer by choice: as the engine reports them, or by pieces if it has not reported them. */
export class TokenTally {
  /** Number of choices per prompt. The choices of a prompt are consecutive. */
  choicesPerPrompt = 1
  /** Texts, or lists of tokens, that the engine is processing and has not counted yet. */
  unread: readonly (string | readonly number[])[] | undefined
  readonly #prompts: { tokens: number; cached: number }[] = []
  readonly #completions: number[] = []
  #finished = 0
  /** Tokens of earlier calls of the engine for the same request. */
  #earlier = { prompt: 0, cached: 0, completion: 0 }

  /** Tokens of all prompts, including cached ones; 0 if unknown. */
  get prompt(): number {
    let sum = this.#earlier.prompt
    for (const prompt of this.#prompts) sum += prompt?.tokens ?? 0
    return sum
  }

  /** Tokens of the prompts that were in the engine's cache. */
  get cached(): number {
    let sum = this.#earlier.cached
    for (const prompt of this.#prompts) sum += prompt?.cached ?? 0
    return sum
  }

  /** Number of prompts, or batches of a list, that were counted. */
  get prompts(): number {
    return this.#prompts.length
  }

  get completion(): number {
    let sum = this.#earlier.completion
    for (const tokens of this.#completions) sum += tokens ?? 0
    return sum
  }

  /** Counts a piece of a choice as one token, until the engine reports the number. */
  piece(choice: number): void {
    this.#completions[choice] = (this.#completions[choice] ?? 0) + 1
  }

  /** Sets the engine's count of a prompt. @param prompt index of the prompt, or of the batch of a list */
  read(tokens: number, cached: number, prompt: number): void {
    const before = this.#prompts[prompt]
    // Only the first of several choices processes the prompt. The others find it in the cache.
    this.#prompts[prompt] = {
      tokens: Math.max(before?.tokens ?? 0, tokens),
      cached: Math.min(before?.cached ?? cached, cached)
    }
  }

  finish(): void {
    this.#finished++
  }

  /** The index of the prompt that was begun and is not counted yet, since prompts are processed one by one. */
  get uncounted(): number | undefined {
    const { prompts } = this
    return prompts <= this.promptOf(this.#finished) ? prompts : undefined
  }

  usage({ promptTokens, cachedTokens, completionTokens }: TokenUsage, choice: number): void {
    if (promptTokens > 0) this.read(promptTokens, cachedTokens, this.promptOf(choice))
    this.#completions[choice] = completionTokens
  }

  promptOf(choice: number): number {
    return Math.floor(choice / this.choicesPerPrompt)
  }

  /** Begins another call of the engine for the same request. */
  another(): void {
    const { prompt, cached, completion } = this
    this.reset()
    this.#earlier = { prompt, cached, completion }
  }

  reset(): void {
    this.#earlier = { prompt: 0, cached: 0, completion: 0 }
    this.unread = undefined
    this.#finished = 0
    this.#prompts.length = 0
    this.#completions.length = 0
  }
}

/** Adds a record to each request. Call it before adding any other hook. */
export function recordRequests(app: FastifyInstance): void {
  const observers: RequestObserver[] = []
  app.decorate('onRequestEnd', (observe: RequestObserver) => void observers.push(observe))
  app.decorateRequest('record', null as unknown as RequestRecord)
  app.addHook('onRequest', (request, reply, done) => {
    const record = new RequestRecord(() => {
      for (const observe of observers) {
        try {
          observe(request, reply)
        } catch (error) {
          // Observers are not awaited: an error would end the server, and keep the other observers from running.
          request.log.error({ err: error }, 'An observer failed at the end of a request.')
        }
      }
    })
    request.record = record
    record.trace = parseTraceParent(request.headers.traceparent)
    // Fastify's own hook does not run for a reply whose client has disconnected.
    reply.raw.once('close', () => {
      record.ended = performance.now()
      record.status = record.failure?.status ?? (reply.raw.writableFinished ? reply.raw.statusCode : CLIENT_LEFT)
      record.release()
    })
    done()
  })
}
