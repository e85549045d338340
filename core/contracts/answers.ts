import type { CorralError } from '../errors.ts'
import type { ReplyStreamOptions } from '../http/reply-stream.ts'
import type { Delta, EngineFields } from './engines.ts'
import type { Operation } from './hooks.ts'

/* How plugins pass requests on to models, and write the answers (`context.answer`). */

/** A request that a plugin passes on to a model. */
export interface PassedQuestion {
  /** `chat`, `completion`, or an operation that plugins add, such as `speak`. */
  operation: Operation
  /** In OpenAI's format: `model` as the client named it, `messages` or `prompt`, `max_tokens`, `temperature` … */
  body: Record<string, unknown>
}

export interface AnswerTaker {
  /** What to ask in place of the question. If it is set, text may be sent before, and `false` ends the answer then. */
  body?: EngineFields | false | undefined
}

/** Writes one answer in the format of an API. Each attempt gets a new writer. */
export interface AnswerWriter extends AnswerTaker {
  /** Converts the engine's deltas to text to send. Nothing is sent if it is empty or undefined. */
  add(deltas: readonly Delta[]): string | undefined
  /** Returns the last text of the answer. */
  end(): string
}

export interface StreamFailures {
  /** The last frame of a stream that failed after it had begun. */
  failure(error: CorralError): string
  /** Whether a failure is sent in the stream although a status code would still be possible. */
  failsInStream?(failure: CorralError): boolean
}

/** How a plugin streams an answer: as Server-Sent Events with a heartbeat every 10 s, unless it says otherwise. */
export interface AnswerStream extends Partial<ReplyStreamOptions>, StreamFailures {
  /** Events without content that clients count as activity during a long prefill. */
  activity?(): string
  /** Begins an attempt. A failed engine is asked again as long as nothing was sent. */
  open(): AnswerWriter
}

/** What lists of models say about a model's context, in tokens. */
export interface ModelLimits {
  /** Size of the running engine's context, or `window` if no engine is running. */
  context: number
  /** Size that the context can have for a request without `num_ctx`: what it can grow to, if memory allows it. */
  window: number
  answer: number
}
