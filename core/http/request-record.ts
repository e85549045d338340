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
    /** Calls the observer with each request once it is over, also where the client left before. */
    onRequestEnd(observe: RequestObserver): void
  }
}

export type RequestObserver = (request: FastifyRequest, reply: FastifyReply) => void

/** What a request asked of a model. */
export interface ModelUse {
  /** Plugin whose API received it, such as `api-openai`. */
  readonly surface: string
  readonly operation: Operation
  /** Public name of the model, such as `corral/tiny-chat`. */
  readonly model: string
  readonly variant: Model
}

/** What a body takes of the memory for bodies, and the client that it is counted for. */
export interface BodyHold {
  readonly client: string
  bytes: number
}

/** The status under which a request counts whose client left before its answer was complete. */
export const CLIENT_LEFT = 499

/**
 * How one request went, for logs, metrics and accounts. Those who know a part of it write it down; observers read it when
 * all of it has happened. Moments are milliseconds of `performance.now()`.
 */
export class RequestRecord {
  readonly began = performance.now()
  /** When its JSON body had come whole; absent where it has none. */
  received: number | undefined
  ended = Number.NaN
  /** What its body takes of the memory for bodies. */
  body: BodyHold | undefined
  /** Status code of the reply, `CLIENT_LEFT`, or that of the failure which ended its stream. */
  status = 0
  /** What it was refused for, or failed with. */
  failure: CorralError | undefined
  /** Whether it counts as one for a model that was taken (`draining.ts`). */
  admitted = false
  /** Absent where no model is asked. */
  use: ModelUse | undefined
  /** When it began to wait for an engine; with one, its load and the queue are what it waits for. */
  waitBegan: number | undefined
  /** When it got its engine, of several attempts the last time. */
  leased: number | undefined
  /** Milliseconds of its wait in which the model was loaded; 0 where it was loaded before. */
  loadDuration = 0
  /** When the first piece of the answer came. */
  firstPiece: number | undefined
  /** When the engine had done its work. */
  answered: number | undefined
  /** The span that whatever is done for the request belongs to: the caller's, or with tracing the request's own. */
  trace: TraceParent | undefined
  readonly tokens = new TokenTally()
  readonly #whenComplete: () => void
  /** What must still end before nothing more is written down: the connection, and engines at work. */
  #open = 1

  /** @param whenComplete called once nothing more will be written down */
  constructor(whenComplete: () => void) {
    this.#whenComplete = whenComplete
  }

  /** An engine works for the request: a client may leave before it has said what that took. Pair it with `release`. */
  hold(): void {
    this.#open++
  }

  release(): void {
    this.#open--
    if (this.#open === 0) this.#whenComplete()
  }

  /**
   * Milliseconds that corral itself took: all but what the client took to send its body, the wait for an engine and the
   * engine's work. What corral does with an answer while the engine still works on it is not in it.
   */
  get overhead(): number {
    const { ended, waitBegan, leased } = this
    const began = this.received ?? this.began
    // Where the client has left, the engine may have gone on for a moment.
    const answered = Math.min(this.answered ?? ended, ended)
    const waited = waitBegan === undefined ? 0 : (leased ?? ended) - waitBegan
    const engine = leased === undefined ? 0 : answered - leased
    return ended - began - waited - engine
  }
}

/** Counts the tokens of one answer by choice: what the engine says, and the pieces that came where it did not get so far. */
export class TokenTally {
  /** Each prompt has so many choices, which come one behind the other. */
  choicesPerPrompt = 1
  /** Texts, or lists of tokens, that the engine is reading and has not counted yet. */
  unread: readonly (string | readonly number[])[] | undefined
  readonly #prompts: { tokens: number; cached: number }[] = []
  readonly #completions: number[] = []
  /** Choices that are complete. */
  #finished = 0

  /** Of all prompts, cached ones included; 0 where that is not known. */
  get prompt(): number {
    let sum = 0
    for (const prompt of this.#prompts) sum += prompt?.tokens ?? 0
    return sum
  }

  /** Those of the prompts that were in the engine's cache. */
  get cached(): number {
    let sum = 0
    for (const prompt of this.#prompts) sum += prompt?.cached ?? 0
    return sum
  }

  /** How many prompts, or parts of a list, were counted. */
  get prompts(): number {
    return this.#prompts.length
  }

  get completion(): number {
    let sum = 0
    for (const tokens of this.#completions) sum += tokens ?? 0
    return sum
  }

  /** Counts a piece of a choice as one token, until the engine says how many there were. */
  piece(choice: number): void {
    this.#completions[choice] = (this.#completions[choice] ?? 0) + 1
  }

  /** Takes the engine's own count of a prompt. @param prompt which one, or which part of a list */
  read(tokens: number, cached: number, prompt: number): void {
    const before = this.#prompts[prompt]
    // What the first of several choices had to read, the others find in the cache.
    this.#prompts[prompt] = {
      tokens: Math.max(before?.tokens ?? 0, tokens),
      cached: Math.min(before?.cached ?? cached, cached)
    }
  }

  /** A choice is complete. */
  finish(): void {
    this.#finished++
  }

  /** The prompt that was begun and is not counted, prompts being read one by one; undefined where all are counted. */
  get uncounted(): number | undefined {
    const { prompts } = this
    return prompts <= this.promptOf(this.#finished) ? prompts : undefined
  }

  /** Takes the engine's own count of a choice. */
  usage({ promptTokens, cachedTokens, completionTokens }: TokenUsage, choice: number): void {
    if (promptTokens > 0) this.read(promptTokens, cachedTokens, this.promptOf(choice))
    this.#completions[choice] = completionTokens
  }

  promptOf(choice: number): number {
    return Math.floor(choice / this.choicesPerPrompt)
  }

  /** Begins anew: the answer is asked for once more, and nothing of it had been delivered. */
  reset(): void {
    this.unread = undefined
    this.#finished = 0
    this.#prompts.length = 0
    this.#completions.length = 0
  }
}

/** Keeps a record of each request. Call it before any other hook is added. */
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
          // Nobody waits for an observer: what it threw would end the server, and keep the others from looking.
          request.log.error({ err: error }, 'What was to happen at the end of a request failed.')
        }
      }
    })
    request.record = record
    record.trace = parseTraceParent(request.headers.traceparent)
    // Fastify's own hook does not run for a reply whose client has left.
    reply.raw.once('close', () => {
      record.ended = performance.now()
      record.status = record.failure?.status ?? (reply.raw.writableFinished ? reply.raw.statusCode : CLIENT_LEFT)
      record.release()
    })
    done()
  })
}
