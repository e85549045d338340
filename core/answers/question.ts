import type { FastifyReply } from 'fastify'
import type { AnswerTaker, AnswerWriter, ModelLimits, StreamFailures } from '../contracts/answers.ts'
import type { Caller } from '../contracts/callers.ts'
import type { AnswerControls, Delta, Engine, EngineFields, TokenUsage } from '../contracts/engines.ts'
import type { Operation } from '../contracts/hooks.ts'
import type { Lease, LeaseRequest } from '../contracts/leases.ts'
import type { Model } from '../contracts/models.ts'
import type { ToolHost, ToolRequest } from '../contracts/tool-host.ts'
import type { ReplyStreamOptions } from '../http/reply-stream.ts'
import type { TokenTally } from '../http/request-record.ts'
import type { RequestedName } from '../models/model-name.ts'
import type { OverflowPolicy, ParsedOptions } from '../models/options.ts'
import type { CallerLease } from './caller-lease.ts'
import type { ContextGrowth } from './grow-context.ts'
import type { ToolSession } from './tool-loop.ts'

/** An API's request to a model, in OpenAI's format. Its lease needs no mode: the operation and the model decide. */
export interface Question {
  operation: Operation
  /** Absent to only load the model. */
  body?: EngineFields
  lease: ModelLease
  variant: Model
  /** How to handle a conversation that is longer than the context. */
  overflow: OverflowPolicy
  whole?: boolean
  countEach?: boolean
  stopText?: boolean
  /** Whether the API returns the fields of llama-server's own API (`Delta.native`). */
  native?: boolean
  controlled?(controls: AnswerControls): void
  growth?: ContextGrowth | undefined
  used?(usage: TokenUsage, choice: number): void
  /** Called with the lease before the engine is asked. @throws CorralError if the engine cannot answer */
  check?(lease: Lease): void
  /** Tools that corral runs for the model. The header `X-Corral-Tools` and the model's settings add to them. */
  tools?: ToolRequest | undefined
  /** The state of these tools; set by `Answers`. */
  session?: ToolSession | undefined
}

export type ModelLease = Omit<LeaseRequest, 'model' | 'signal' | 'onProgress' | keyof CallerLease> & {
  model: RequestedName
}

/** What an API may do with the leased engine before the answer. */
export interface Preparation {
  /** The engine's request, within its limits and after the hooks. */
  body: EngineFields
  /** Tokens that the context can have, even if it must grow first. */
  window: number
  /** Counts the tokens of a prompt. Undefined if the engine cannot count. */
  count(body: EngineFields): Promise<number | undefined>
  /** Asks the engine for something else first. Limits, usage and cancellation are those of the request. */
  ask(body: EngineFields, take: (deltas: readonly Delta[]) => void): Promise<void>
}

export interface Channel extends ReplyStreamOptions, StreamFailures {
  /** Rewrites the bytes of an OpenAI stream. If the engine provides bytes, no writer is created. */
  bytes?(lease: Lease): (bytes: Buffer) => Buffer
  /** The events that end such a stream if corral ends the answer. */
  endBytes?(usage: TokenUsage): string
}

/** What a request says about its model, in the fields that all APIs share. */
export interface ModelRequest {
  /** As the client wrote it. */
  requested: string
  variant: Model
  settings: {
    /** The model's options, without the request's own. */
    sampling: Record<string, unknown>
    engine: { projector?: string | null | undefined }
  }
  /** The options of the request. */
  options: ParsedOptions
  /** The model's options, then those of the request. */
  sampling: Record<string, unknown>
  overflow: OverflowPolicy
  lease: Pick<ModelLease, 'model' | 'options' | 'keepAlive'>
}

/** Changes the format of bytes that an engine sends. */
export interface ResultEncoder {
  /** Media type of the result. */
  readonly type: string
  /** Returns the next bytes, or none. */
  add(delta: Delta): Uint8Array
  end(): Uint8Array
}

/**
 * The service by which all APIs let models answer, with the rules for every request: aliases, the models and limits of
 * the caller's key, budgets, usage, filters, queues. All methods end when the client disconnects.
 */
export interface Answers {
  /** Reads `model`, options and `keep_alive`. @throws CorralError `model_not_found`, `forbidden_model`, … */
  read(body: Record<string, unknown>, caller: Pick<Caller, 'models'>): ModelRequest
  /** Answers in one piece. Resolves with the taker once the answer is complete. */
  whole<Taker extends AnswerTaker & { add(deltas: readonly Delta[]): unknown }>(
    reply: FastifyReply,
    asked: Question,
    open: (lease: Lease, first: Preparation) => Taker | Promise<Taker>
  ): Promise<Taker>
  /**
   * Answers with a stream. Heartbeats report what the request waits for. If the engine dies before anything was sent,
   * a fresh engine is asked once. Later failures are the stream's last frame.
   */
  stream(
    reply: FastifyReply,
    asked: Question,
    channel: Channel,
    open: (lease: Lease, first: Preparation) => AnswerWriter | Promise<AnswerWriter>
  ): Promise<void>
  /**
   * Runs an operation, and replies with its text or bytes as they arrive, in the media type of the first piece. If the
   * engine fails after that, the connection is closed.
   * @param encode opens an encoder for an answer in bytes
   * @returns the fields of a result in JSON; undefined if the reply was sent
   */
  result(
    reply: FastifyReply,
    asked: Question,
    encode?: () => Promise<ResultEncoder>
  ): Promise<Record<string, unknown> | undefined>
  /** Asks a leased engine for something in one piece: vectors, scores, counts. */
  once<Reply, Body extends EngineFields>(
    reply: FastifyReply,
    asked: { operation: Operation; body: Body; lease: ModelLease },
    use: (lease: Lease, body: Body, tally: TokenTally) => Promise<Reply>
  ): Promise<Reply>
  /** Asks a leased engine about a prompt. */
  prompt<Name extends 'tokenize' | 'countTokens' | 'applyTemplate'>(
    reply: FastifyReply,
    name: Name,
    asked: { body: EngineFields; lease: ModelLease }
  ): Promise<Awaited<ReturnType<NonNullable<Engine[Name]>>>>
  /** The service that runs tools, if it has any. */
  tools(): ToolHost | undefined
  /** Returns a function for the contexts that a caller's lists of models show. */
  limits(caller: Pick<Caller, 'bounds'>): (variant: Model) => ModelLimits
}
