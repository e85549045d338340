import type { CorralError } from '../errors.ts'
import type { LoadOptions } from '../models/load-options.ts'
import type { EngineLogRecord } from './engine-log.ts'
import type { Model, OpenName } from './models.ts'
import type { Waiting } from './progress.ts'

export type { EngineLogRecord }

/*
 * The contract of engines. An engine is anything that answers for a model: a llama-server on this machine, another
 * server, or a few lines of a plugin. APIs ask it in OpenAI's format and read deltas. Flags, routes and bugs of one
 * kind of engine stay with its provider.
 */

/**
 * What a model is used for. A running engine serves one mode. A model without a mode of the core has the mode that its
 * first operation names, such as `speak`.
 */
export type EngineMode = OpenName<'chat' | 'embedding' | 'rerank'>

// ---- requests and answers ---------------------------------------------------------------------------------------

/** A request in OpenAI's format. Engines ignore fields that they do not know. */
export type EngineFields = Record<string, unknown>

export interface ToolCallPiece {
  /** Index of the call within the choice, from 0. */
  index: number
  /** In the first piece of a call. */
  id?: string
  /** The function's name, in the first piece of a call. */
  name?: string
  /** The piece's part of the JSON text of the arguments. */
  arguments: string
}

/** A token's log probability, as in chat completions. */
export interface TokenProbability {
  token: string
  bytes: number[]
  logprob: number
  top_logprobs: { token: string; bytes: number[]; logprob: number }[]
}

export interface TokenUsage {
  /** All tokens of the prompt, including cached ones. */
  promptTokens: number
  /** Tokens of the prompt that were found in the cache. */
  cachedTokens: number
  completionTokens: number
}

/** The additions of one event to an answer. Absent fields add nothing. */
export interface Delta {
  /** Index of the choice; 0 if absent. */
  choice?: number
  content?: string
  thinking?: string
  toolCalls?: ToolCallPiece[]
  /** Log probabilities of the tokens in `content`, if requested. */
  logprobs?: TokenProbability[]
  /** Why the choice ended, in the last delta of each choice. */
  finish?: 'stop' | 'length' | 'tool_calls'
  /** The number of tokens in its text, if more than one. */
  tokens?: number
  /** The `stop` text that ended the choice. */
  stopSequence?: string
  /** Tokens of the choice so far. If the engine counts, at least the last delta has it. */
  usage?: TokenUsage
  /** Milliseconds of prompt processing and of generation. */
  timing?: { prompt: number; generation: number }
  /** During prompt processing: tokens processed, of how many, and how many of these were cached. */
  reading?: { tokens: number; total: number; cached: number }
  /** Bytes of a file, such as a sound or an image. Its media type is in the first delta that has bytes. */
  bytes?: Uint8Array
  type?: string
  /** Fields of a result in JSON, or one event of it. */
  json?: Record<string, unknown>
  /** Other fields of the engine, which `/v1` passes on (`system_fingerprint`, `timings`). */
  extra?: Record<string, unknown>
  /** The event in the format of llama-server's own completions, if the sink requests it and the engine has it. */
  native?: EngineFields
}

export interface AnswerControls {
  /** Ends its reasoning, so that the answer follows. If that is impossible, `message` says why. */
  endThought(options: { signal: AbortSignal }): Promise<{ success: boolean; message?: string }>
}

/** Receives an answer. */
export interface AnswerSink<Piece = readonly Delta[]> {
  /** Aborted when the client disconnects or the engine is taken away. The engine then stops generating. */
  readonly signal: AbortSignal
  /** Whether each delta should have `usage`, for APIs that report usage while streaming. */
  readonly countEach?: boolean
  /** Whether to set `stopSequence`. */
  readonly stopText?: boolean
  /** Whether to set `native`. */
  readonly native?: boolean
  /** Whether nothing is sent before the answer is complete, so that it may come in one delta. */
  readonly whole?: boolean
  /** `Caller.owner`. The server itself if absent. An owner can never find out what others asked. */
  readonly owner?: string
  /** Whether it should not displace a conversation: a title or a summary that nobody waits for. */
  readonly background?: boolean
  /** Id of the request, for logs. */
  readonly requestId?: string
  /** The header `traceparent` of W3C Trace Context, for engines that forward the request. */
  readonly traceParent?: string
  /** Called with the controls of the answer once it has begun. With several choices it may be called once for each. */
  controlled?(controls: AnswerControls): void
  /** Called with the token counts of a choice if its bytes are not parsed; for an aborted answer, so far. */
  used?(usage: TokenUsage, choice: number): void
  /** Takes a piece. If it returns a promise, the engine waits for it before it sends more. */
  take(piece: Piece): Promise<void> | undefined
}

export interface EmbeddingsReply {
  /** One vector for each input, in the same order. 32-bit numbers may come as a Float32Array. */
  vectors: (number[] | Float32Array)[]
  promptTokens: number
}

export interface RankingReply {
  /** One for each document, in any order. */
  scores: { index: number; score: number }[]
  promptTokens: number
}

// ---- engines -------------------------------------------------------------------------------------------------------

/**
 * Answers one kind of request, such as `speak`. The last delta has `finish`, and `usage` if the engine counts. Declared as
 * a method, so that a call may name the fields of its requests.
 */
export type OperationCall = { call(request: EngineFields, sink: AnswerSink): Promise<void> }['call']

/**
 * The operations of an engine besides conversations, texts and vectors. Files in requests are base64. Plugins add the
 * types of their requests by declaration merging. Other names have requests of any form.
 */
export interface Operations {
  /** Transcribes `audio`, to English if `translate` is true. `language` and `prompt` are hints. */
  transcribe?(
    request: EngineFields & { audio: string; language?: string; prompt?: string; translate?: boolean },
    sink: AnswerSink
  ): Promise<void>
  [operation: string]: OperationCall | undefined
}

/** Bytes by memory pool: `host`, or a GPU such as `CUDA0`. */
export type MemoryUse = Record<string, number>

export interface EngineSpec {
  /** The model name that the engine reports. */
  alias: string
  mode: EngineMode
  variant: Model
  options: LoadOptions
}

export interface EngineExit {
  /** Exit code, or null if a signal ended it. */
  code: number | null
  signal: string | null
  /** Whether corral stopped it. */
  expected: boolean
  /** Why it ended, if corral did not stop it: `engine_crashed` with `details.cause`. */
  failure?: CorralError
}

/**
 * A running engine. Its optional methods show its abilities: if an API needs a missing one, it answers
 * `unsupported_capability`. All methods reject with a CorralError: `context_exceeded` (with `n_prompt_tokens` and
 * `n_ctx` in its details) before they passed on any output, `invalid_request` (with `unreadable_media: true` if a file
 * is damaged), `engine_crashed`. If aborted, they reject with the signal's reason.
 */
export interface Engine {
  readonly id: string
  /** Name of the provider that started it. */
  readonly provider: string
  readonly spec: EngineSpec
  /** Actual context length of each slot. */
  readonly contextSize: number
  /** Maximum concurrent requests. */
  readonly slots: number
  /** Bytes that it uses in each memory pool, as it reports; absent if unknown. */
  readonly memory: MemoryUse | undefined
  /** Bytes to reserve for it in each pool, with its process and possible growth. If absent, the estimate. */
  readonly reserved?: MemoryUse
  readonly pid?: number | undefined
  /** How it guesses tokens ahead. Absent if there is only one way. */
  readonly speculation?: Speculation | undefined
  /** Resolves once the provider would start it differently. It is then loaded again when its answers have ended. */
  readonly outdated?: Promise<void>
  /** The stored conversations with its model. Absent if it cannot store any. */
  readonly storedConversations?: Omit<StoredConversations, 'model'> | undefined
  /** Resolves when the engine has ended for any reason. Never rejects. */
  readonly exited: Promise<EngineExit>
  /** Answers a conversation (`messages`). Resolves once every choice has ended. */
  chat?(request: EngineFields, sink: AnswerSink): Promise<void>
  /** Continues a text (`prompt`), or fills the gap before `suffix`. `line` is tokenized separately. */
  completion?(request: EngineFields, sink: AnswerSink): Promise<void>
  /** Its calls for other operations, by name. The model's capabilities must list these names too. */
  readonly operations?: Readonly<Operations>
  /**
   * The same answer as `chat`, as the bytes of an OpenAI event stream that ends with `data: [DONE]`. `/v1` passes them
   * on if nothing has to be changed. Its ids begin with `chatcmpl-` and its model is `spec.alias`.
   */
  chatBytes?(request: EngineFields, sink: AnswerSink<Buffer>): Promise<void>
  /** As `chatBytes`, for `completion`. */
  completionBytes?(request: EngineFields, sink: AnswerSink<Buffer>): Promise<void>
  /** Maximum items that it embeds or ranks together: other clients get their turn between batches. */
  readonly batch?: number
  /**
   * Embeds texts, or lists of tokens. `truncate` shortens inputs to the context, or to `most` tokens if that is less.
   * Without it, an input that is too long is refused with `context_exceeded`.
   */
  embed?(
    inputs: readonly (string | readonly number[])[],
    options: { truncate?: boolean; most?: number; signal: AbortSignal }
  ): Promise<EmbeddingsReply>
  rerank?(query: string, documents: readonly string[], options: { signal: AbortSignal }): Promise<RankingReply>
  /** Tokens of a text, with their pieces if requested. Fields beyond `content` are the engine's own. */
  tokenize?(request: EngineFields, options: { signal: AbortSignal }): Promise<EngineFields>
  detokenize?(tokens: readonly number[], options: { signal: AbortSignal }): Promise<string>
  countTokens?(request: EngineFields, options: { signal: AbortSignal }): Promise<number>
  /** The prompt that a `chat` request becomes. */
  applyTemplate?(request: EngineFields, options: { signal: AbortSignal }): Promise<string>
  /** Its properties in llama-server's format, without paths: `chat_template_caps`, `bos_token`, `build_info`, … */
  properties?(options: { signal: AbortSignal }): Promise<EngineFields>
  /** The state of its slots in llama-server's format (`id`, `n_ctx`, `is_processing`), without the prompts, if known. */
  slotStates?(options: { signal: AbortSignal }): Promise<EngineFields[] | undefined>
  /** Saves the prompt caches of its slots for its next start, before a graceful `stop`. Never rejects. */
  saveSlots?(): Promise<void>
  /** Stops it: gracefully first, then by force. Resolves when it has ended. Open requests fail. */
  stop(): Promise<void>
  /** The last lines of its output, oldest first. */
  logTail(): string[]
}

// ---- providers -----------------------------------------------------------------------------------------------------

/** An estimate of the memory that an engine will use, made before it is started. */
export interface MemoryEstimate {
  /** Bytes by memory pool. */
  use: MemoryUse
  /** False for a cautious guess: if a load then fails for lack of memory, it is retried with more room. */
  certain: boolean
  /** Returns a sentence with the numbers and possible remedies, for a load that exceeds the budget. */
  explain(budget: MemoryUse): string
}

/** A provider of engines for models: a program on this machine, or other servers. */
export interface EngineProvider {
  /** Unique among providers, such as `llama-server`. */
  readonly name: string
  /** Request fields that its engines know. If absent, no option counts as unknown. */
  readonly knownOptions?: ReadonlySet<string>
  /** How well it serves a model in a mode; 0 if it cannot. The provider with the highest number is used. */
  serves(model: Model, mode: EngineMode): number
  /**
   * The load options of a request that matter to its engines, each in one spelling; if absent, all do. A request whose
   * options differ from the running engine's causes a reload.
   * @param defaults values for options that the request does not set; checked too
   * @param asker the mode of the engine, and the owner of the request (`AnswerSink.owner`)
   * @throws CorralError `invalid_option`
   */
  loadOptions?(
    model: Model,
    requested: Partial<LoadOptions>,
    defaults: LoadOptions,
    asker: { mode: EngineMode; owner?: string | undefined }
  ): Partial<LoadOptions>
  /** Estimates what an engine would use here, after any conversion. Absent if it uses no memory here. */
  estimate?(spec: EngineSpec, waiting: Waiting): Promise<MemoryEstimate>
  /**
   * Starts an engine and resolves once it answers. Aborting stops it.
   * @param estimate the result of `estimate` for this load
   * @throws CorralError `load_failed`, `insufficient_memory`, `runtime_missing`, `load_timeout`
   */
  start(spec: EngineSpec, waiting: Waiting, estimate?: MemoryEstimate): Promise<Engine>
  /** Bytes that engines may use of each of its pools, such as GPUs. `held` is the memory that engines reserve. */
  budgets?(held: MemoryUse): Promise<MemoryUse>
  /** Bytes of main memory that it uses but gives up as soon as an engine needs them. */
  reclaimable?(): number
  storedConversations?(): Promise<StoredConversations[]>
  /** Deletes the stored conversations with a model (`Model.key`), of an owner, or all. @returns how many */
  forgetConversations?(of: { model?: string; owner?: string }): Promise<number>
  /** Output of the latest engines of a model, newest first. */
  logs?(model: Model): EngineLogRecord[]
  /** Called at shutdown, once all engines have ended. */
  close?(): Promise<void>
  /** Refuses requests that no engine may get, such as an endless grammar, before a model is loaded for them. */
  check?(request: EngineFields): void | Promise<void>
  /** JSON pointers to the parts of a request's JSON schemas that its engines do not enforce. */
  unenforced?(request: EngineFields): string[]
}

/** Conversations that a provider has stored for a model, and how often they were useful since the start. */
export interface StoredConversations {
  /** `Model.key` */
  model: string
  conversations: number
  tokens: number
  /** Bytes in main memory and on disk. */
  memory: number
  disk: number
  /** Prompts whose conversation was found in a slot or restored, and all other prompts. */
  hits: number
  misses: number
  /** Tokens that were restored instead of processed again, and the milliseconds that took. */
  restoredTokens: number
  restoreTime: number
}

/** Speculative decoding: tokens are guessed, and the model checks several at once. */
export interface Speculation {
  /** `none`, or the provider's name for the method in use. */
  method: string
  /** Tokens per second of single answers, by method, as far as measured on this machine. */
  tokensPerSecond: Record<string, number>
}

/** The registry of providers. */
export interface Engines {
  /** Adds a provider. @returns removes it, and stops its engines. @throws Error if its name is taken */
  add(provider: EngineProvider): () => void
  /** The provider that serves a model best in a mode, if any can. */
  providerOf(model: Model, mode: EngineMode): EngineProvider | undefined
}
