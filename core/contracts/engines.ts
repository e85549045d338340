import type { CorralError } from '../errors.ts'
import type { LoadOptions } from '../models/load-options.ts'
import type { EngineLogRecord } from './engine-log.ts'
import type { Model } from './models.ts'
import type { Waiting } from './progress.ts'

export type { EngineLogRecord }

/*
 * The seam for engines. An engine is whatever answers for a model: a llama-server on this machine, a server elsewhere, a
 * few lines of a plugin. Surfaces ask it in the words of the hosted-chat API and read deltas; flags, routes and bugs of
 * one kind of engine stay with its provider.
 */

/** What a model is used for; a running engine serves one of them. */
export type EngineMode = 'chat' | 'embedding' | 'rerank'

// ---- requests and answers ---------------------------------------------------------------------------------------

/**
 * A request in the words of the hosted-chat API: `messages` or `prompt`, `tools`, `response_format`, `temperature`,
 * `max_tokens`, `stop`, `n`, `logprobs` and `top_logprobs`, … Fields that an engine does not know it ignores.
 */
export type EngineFields = Record<string, unknown>

/** A piece of a tool call, as it comes. */
export interface ToolCallPiece {
  /** Which of the choice's calls it belongs to, from 0. */
  index: number
  /** Given with the first piece of a call. */
  id?: string
  /** The function's name, given with the first piece of a call. */
  name?: string
  /** What the piece adds to the JSON text of the arguments. */
  arguments: string
}

/** A token's log probability, as in chat completions. */
export interface TokenProbability {
  token: string
  bytes: number[]
  logprob: number
  top_logprobs: { token: string; bytes: number[]; logprob: number }[]
}

/** Tokens of one choice. */
export interface TokenUsage {
  /** All of the prompt, those found in the cache included. */
  promptTokens: number
  /** Those of the prompt that were found in the cache. */
  cachedTokens: number
  completionTokens: number
}

/** What one event of an answer adds to it. Whatever it does not add is absent. */
export interface Delta {
  /** Which of the answer's choices it belongs to; 0 where absent. */
  choice?: number
  content?: string
  thinking?: string
  toolCalls?: ToolCallPiece[]
  /** Of the tokens that `content` is made of, where the request asks for them. */
  logprobs?: TokenProbability[]
  /** Why the choice ended; given once for each choice, with its last delta. */
  finish?: 'stop' | 'length' | 'tool_calls'
  /** How many tokens its text has, where these are several. */
  tokens?: number
  /** The text of `stop` that ended the choice. */
  stopSequence?: string
  /** Tokens of the choice so far; at least the last delta has it where the engine counts. */
  usage?: TokenUsage
  /** Milliseconds that reading the prompt and generating took. */
  timing?: { prompt: number; generation: number }
  /** While the prompt is read: tokens read, of how many, and how many of these were in the cache. */
  reading?: { tokens: number; total: number; cached: number }
  /** Further fields of the engine's own, which `/v1` passes on (`system_fingerprint`, `timings`). */
  extra?: Record<string, unknown>
  /** The event in llama-server's words (those of its own completions), where the sink wants them and the engine has them. */
  native?: EngineFields
}

/** What can be done to an answer while it is generated. */
export interface AnswerControls {
  /**
   * Ends its thoughts, so that the model goes on with what it answers. `success` is false where that cannot be, and
   * `message` says why.
   */
  endThought(options: { signal: AbortSignal }): Promise<{ success: boolean; message?: string }>
}

/** Who takes an answer. */
export interface AnswerSink<Piece = readonly Delta[]> {
  /** Aborted when the client has gone or the engine is taken away: the engine stops generating. */
  readonly signal: AbortSignal
  /** Whether each delta should have `usage`, for surfaces that count as they go. */
  readonly countEach?: boolean
  /** Whether `stopSequence` is wanted. */
  readonly stopText?: boolean
  /** Whether `native` is wanted. */
  readonly native?: boolean
  /** Whether nothing is passed on before the answer is complete, so that it may come in one delta. */
  readonly whole?: boolean
  /**
   * The owner of the prompt (`Caller.owner`); the server itself where absent. An engine must not let one owner find out,
   * by token counts or by timing, what another one has asked.
   */
  readonly owner?: string
  /** Id of the request, for logs. */
  readonly requestId?: string
  /** The header `traceparent` of W3C Trace Context, for engines that send the request on. */
  readonly traceParent?: string
  /** Told how the answer can be controlled once it has begun; with several choices maybe once for each. */
  controlled?(controls: AnswerControls): void
  /**
   * Told the tokens of a choice once they are known: for answers that are taken as bytes, of which nobody reads a usage.
   * Where an answer is cut, told what had come of it.
   */
  used?(usage: TokenUsage, choice: number): void
  /** Takes what comes; where it returns a promise, the engine waits for it before it sends more. */
  take(piece: Piece): Promise<void> | undefined
}

export interface EmbeddingsReply {
  /** One for each input, in their order; of numbers of 32 bits where they come as such. */
  vectors: (number[] | Float32Array)[]
  promptTokens: number
}

export interface RankingReply {
  /** One for each document, in any order. */
  scores: { index: number; score: number }[]
  promptTokens: number
}

// ---- engines -------------------------------------------------------------------------------------------------------

/** Bytes by memory pool: `host`, or a GPU such as `CUDA0`. */
export type MemoryUse = Record<string, number>

/** What an engine is started for. */
export interface EngineSpec {
  /** The name the engine reports. */
  alias: string
  mode: EngineMode
  variant: Model
  options: LoadOptions
}

export interface EngineExit {
  /** Exit code, or null when a signal ended it. */
  code: number | null
  signal: string | null
  /** Whether corral stopped it. */
  expected: boolean
  /** Why it ended, where corral did not stop it: `engine_crashed` with `details.cause`. */
  failure?: CorralError
}

/**
 * One running engine. The calls that it has are what it is able to do: a surface that needs another one answers
 * `unsupported_capability`. All of them reject with a CorralError: `context_exceeded` (with `n_prompt_tokens` and `n_ctx`
 * in its details) before anything was taken, `invalid_request`, `engine_crashed`; or with the signal's reason.
 */
export interface Engine {
  readonly id: string
  /** Name of the provider that started it. */
  readonly provider: string
  readonly spec: EngineSpec
  /** Tokens of context that each slot really has. */
  readonly contextSize: number
  /** Requests that it answers at once. */
  readonly slots: number
  /** Bytes the engine holds in each memory pool, as it reports itself; absent where unknown. */
  readonly memory: MemoryUse | undefined
  /**
   * Bytes that have to be kept for it in each memory pool: what it reports, what it does not report (its process, a
   * driver's part), and what it may still grow by. Where absent, what was estimated for it.
   */
  readonly reserved?: MemoryUse
  readonly pid?: number | undefined
  /** Settles when the engine has gone, whoever ended it. Never rejects. */
  readonly exited: Promise<EngineExit>
  /** Answers a conversation (`messages`). Resolves once every choice has ended. */
  chat?(request: EngineFields, sink: AnswerSink): Promise<void>
  /**
   * Continues a text (`prompt`); fills in before `suffix` where there is one. `line` is the end of such a prompt that
   * llama-server's clients send apart, and have read as tokens apart.
   */
  completion?(request: EngineFields, sink: AnswerSink): Promise<void>
  /**
   * Writes down what is said in `audio` (base64 of a file), in English where `translate` is true; `language` and `prompt`
   * are hints. Other fields are as in `chat`.
   */
  transcribe?(request: EngineFields, sink: AnswerSink): Promise<void>
  /**
   * The same answer as `chat`, as the bytes of a hosted-chat event stream that ends with `data: [DONE]`: `/v1` passes them
   * on where nothing has to be changed. Its ids begin with `chatcmpl-` and its model is `spec.alias`.
   */
  chatBytes?(request: EngineFields, sink: AnswerSink<Buffer>): Promise<void>
  /** As `chatBytes`, for `completion`. */
  completionBytes?(request: EngineFields, sink: AnswerSink<Buffer>): Promise<void>
  /**
   * Items of one `embed` or `rerank` that it works on at once. Longer lists are asked for in parts of this size, and
   * between them others have their turn. Where absent, lists are asked for whole.
   */
  readonly batch?: number
  /**
   * Vectors of texts, or of lists of tokens. `truncate` cuts what is longer than the context, or than `most` tokens where
   * these are fewer; without it such an input is refused with `context_exceeded`.
   */
  embed?(
    inputs: readonly (string | readonly number[])[],
    options: { truncate?: boolean; most?: number; signal: AbortSignal }
  ): Promise<EmbeddingsReply>
  rerank?(query: string, documents: readonly string[], options: { signal: AbortSignal }): Promise<RankingReply>
  /** Tokens of a text; with their pieces where asked. Fields beyond `content` are the engine's own. */
  tokenize?(request: EngineFields, options: { signal: AbortSignal }): Promise<EngineFields>
  detokenize?(tokens: readonly number[], options: { signal: AbortSignal }): Promise<string>
  /** How many tokens the prompt of a `chat` request has. */
  countTokens?(request: EngineFields, options: { signal: AbortSignal }): Promise<number>
  /** The prompt that a `chat` request becomes. */
  applyTemplate?(request: EngineFields, options: { signal: AbortSignal }): Promise<string>
  /**
   * What it says of itself in llama-server's words, without paths: `default_generation_settings`, `chat_template_caps`,
   * `bos_token`, `build_info`, …
   */
  properties?(options: { signal: AbortSignal }): Promise<EngineFields>
  /** What each of its slots does in llama-server's words (`id`, `n_ctx`, `is_processing`), without what was asked in it. */
  slotStates?(options: { signal: AbortSignal }): Promise<EngineFields[]>
  /** Keeps what its slots have read for the next start of the same model; called before a polite `stop`. Never rejects. */
  saveSlots?(): Promise<void>
  /** Ends it: politely first, then by force. Settles when it has gone. Open requests are cut. */
  stop(): Promise<void>
  /** The last lines it printed, oldest first. */
  logTail(): string[]
}

// ---- providers -----------------------------------------------------------------------------------------------------

/** What an engine will take, before it is started. */
export interface MemoryEstimate {
  /** Bytes by memory pool. */
  use: MemoryUse
  /** False for a careful guess: a load that fails for want of memory is then worth another try with more room. */
  certain: boolean
  /** A sentence with the numbers and what would help, for a load that the budget refuses. */
  explain(budget: MemoryUse): string
}

/** A way to get engines for models: a program on this machine, servers elsewhere. */
export interface EngineProvider {
  /** Unique among providers, such as `llama-server`. */
  readonly name: string
  /**
   * Names of the fields of requests that its engines know, such as `min_p`: others are reported as unknown options. Where
   * absent nobody can tell, and none is.
   */
  readonly knownOptions?: ReadonlySet<string>
  /** How well it serves a model in a mode: the provider with the highest number does; 0 where it cannot. */
  serves(model: Model, mode: EngineMode): number
  /**
   * Those of a request's load options that make a difference to its engines, each in one spelling; all of them where
   * absent. A request with other ones than an engine runs with has it loaded anew.
   * @param defaults what holds where the request gives nothing; checked too
   * @param asker the mode of the engine, and the owner of the request (`AnswerSink.owner`)
   * @throws CorralError `invalid_option`
   */
  loadOptions?(
    model: Model,
    requested: Partial<LoadOptions>,
    defaults: LoadOptions,
    asker: { mode: EngineMode; owner?: string | undefined }
  ): Partial<LoadOptions>
  /**
   * What an engine for this would take here; does what has to be done before that can be known, such as a conversion.
   * Absent where its engines take no memory of this machine.
   */
  estimate?(spec: EngineSpec, waiting: Waiting): Promise<MemoryEstimate>
  /**
   * Starts an engine and resolves once it answers. Aborting ends it.
   * @param estimate what `estimate` gave for this load
   * @throws CorralError `load_failed`, `insufficient_memory`, `runtime_missing`, `load_timeout`
   */
  start(spec: EngineSpec, waiting: Waiting, estimate?: MemoryEstimate): Promise<Engine>
  /**
   * Bytes that engines may take of each memory pool of its own, such as that of a GPU. How much of the machine's memory
   * (`host`) there is the scheduler knows.
   * @param held what engines hold of each pool by their own account
   */
  budgets?(held: MemoryUse): Promise<MemoryUse>
  /** What the latest engines of a model printed, the newest first. */
  logs?(model: Model): EngineLogRecord[]
  /** Called at shutdown, once all engines have gone. */
  close?(): Promise<void>
  /**
   * Refuses what none of its engines may be asked, such as a grammar that would keep one busy for ever; called before a
   * model is loaded for the request. @throws CorralError
   */
  check?(request: EngineFields): void | Promise<void>
  /** JSON pointers to what of a request's JSON schemas its engines do not hold answers to. */
  unenforced?(request: EngineFields): string[]
}

/** The registry of providers. */
export interface Engines {
  /** Adds a provider, such as a plugin's. @returns removes it, and stops its engines. @throws Error when its name is taken */
  add(provider: EngineProvider): () => void
  /** The provider that serves a model best in a mode; undefined when none can. */
  providerOf(model: Model, mode: EngineMode): EngineProvider | undefined
}
