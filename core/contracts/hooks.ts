import type { Caller } from './callers.ts'
import type { Delta, EngineMode } from './engines.ts'

/** What a request asks of a model. */
export type Operation = 'chat' | 'completion' | 'transcribe' | 'embeddings' | 'rerank' | 'tokens'

/**
 * A request as hooks see it, after its surface has validated and translated it and before an engine gets it. One object
 * for all hooks and all events of one request, so that it can be the key of a WeakMap.
 */
export interface HookedRequest {
  /** Plugin whose API received it, such as `api-openai`. */
  readonly surface: string
  readonly operation: Operation
  /** Public name of the model, such as `corral/tiny-chat`. */
  readonly model: string
  /**
   * The request in the hosted-chat shape, whichever surface received it: `messages`, `tools`, `temperature` … for a
   * chat; `prompt`, `input` or `query` and `documents` for the others. Hooks may change it.
   */
  readonly body: Record<string, unknown>
  readonly caller: Caller
  /** Aborted when the client leaves or the engine is taken away. */
  readonly signal: AbortSignal
}

export interface ModelEvent {
  /** Public name, such as `corral/tiny-chat`. */
  readonly model: string
  readonly mode: EngineMode
}

/**
 * Why a model is not loaded any more: nobody asked for it, another one needed its room, it is loaded again with other
 * options, it was to go (by an admin, its removal or the shutdown), its engine ended by itself.
 */
export type UnloadReason = 'idle' | 'evicted' | 'reload' | 'stopped' | 'failed'

export interface UnloadEvent extends ModelEvent {
  readonly reason: UnloadReason
  /** Of an engine that failed, where it is known: a name in docs/failures.md. */
  readonly cause?: string
}

export interface PullEvent {
  /** `owner/name:label`, as the model is listed. */
  readonly model: string
  /** Address that it was pulled from, without credentials. */
  readonly origin: string
  /** Bytes. */
  readonly size: number
}

/** One choice of an answer, as it was captured. */
export interface CapturedChoice {
  content?: string
  thinking?: string
  toolCalls?: { name: string; arguments: string }[]
  /** As in `Delta`. */
  finish?: string
}

/** A request that an admin has captured, with its answer, before it is written down. */
export interface CaptureRecord {
  readonly time: string
  readonly requestId: string
  /** Name of the caller's key. */
  readonly key?: string
  readonly address: string
  readonly surface: string
  readonly operation: Operation
  readonly model: string
  /** As `HookedRequest.body`; what hooks have changed before is changed here too. */
  body: unknown
  /** The choices of an answer in text; empty for vectors and scores. */
  answer: CapturedChoice[]
  readonly status: number
  /** Of the error. */
  readonly code?: string
  readonly tokens: { in: number; cached: number; out: number }
  /** Something of it was too long, or a file. */
  readonly cut?: true
}

/** Something that an admin changed beside the server's requests, such as a file that it follows. */
export interface AdminEvent {
  /** Such as `key_created`. */
  readonly change: string
  /** What it was changed in, such as a key's name. */
  readonly target: string
  /** What the server was told by, such as `keys.json`. */
  readonly by: string
}

/**
 * What a plugin wants to see or change while the server runs (`on` of its offer). Hooks of several plugins run one
 * after another: built-in plugins first, then by name, each after the plugins whose services it needs. A hook that takes
 * longer than `limits.hook_timeout` fails its request.
 */
export interface PluginHooks {
  /**
   * Runs before a request is answered; the request waits for it. It may change `body`, or refuse the request by throwing
   * `context.error(…)`. Whatever else it throws fails the request with the code `internal`.
   */
  request?(request: HookedRequest): Promise<void> | void
  /**
   * Runs once the request has its engine, before that is asked: it may have waited for long since `request` ran. It may
   * refuse the request in the same way.
   */
  leased?(request: HookedRequest): Promise<void> | void
  /**
   * Runs for each event of an answer to `chat` and `completion` before it is sent; the answer waits for it. It may change
   * `content`, `thinking` and `toolCalls`, or return `false` to drop what the event says (the end of the answer and its
   * token counts still reach the client). Errors end the answer, as those of `request` do.
   */
  // biome-ignore lint/suspicious/noConfusingVoidType: a hook that only looks on returns nothing
  event?(event: Delta, request: HookedRequest): Promise<boolean | void> | boolean | void
  /** Whether `event` wants the events of this request; of all where absent. Answers that nobody wants are passed on faster. */
  eventsOf?(request: HookedRequest): boolean
  /**
   * Runs before a captured request is written down, which is after it was answered. It may change `body` and `answer`, or
   * return `false` so that nothing is written; where it fails or takes longer than ten seconds, nothing is either.
   */
  // biome-ignore lint/suspicious/noConfusingVoidType: a hook that only looks on returns nothing
  capture?(record: CaptureRecord): Promise<boolean | void> | boolean | void
  /** Runs after a model was loaded. Nothing waits for it; errors are logged. */
  modelLoaded?(event: ModelEvent & { readonly milliseconds: number }): Promise<void> | void
  /** Runs after a model was unloaded or its engine died. Nothing waits for it; errors are logged. */
  modelUnloaded?(event: UnloadEvent): Promise<void> | void
  /** Runs after a pulled model was stored. Nothing waits for it; errors are logged. */
  pullFinished?(event: PullEvent): Promise<void> | void
  /** Runs after a change that no request made. Nothing waits for it; errors are logged. */
  administered?(event: AdminEvent): Promise<void> | void
}

/** Calls the hooks of all plugins; reached through `context.hooks` by those in whose rooms the things happen. */
export interface Hooks {
  /** Whether any plugin wants requests; where none does, `request` does nothing. */
  hasRequestFilters(): boolean
  /** @throws CorralError of the hook that refuses the request, `internal` when one fails, the signal's reason */
  request(request: HookedRequest): Promise<void>
  /** Calls the hooks for a request that has its engine. Nothing where no plugin has one. @throws as `request` */
  leased(request: HookedRequest): Promise<void> | undefined
  /** Whether any plugin wants the request's events; where none does, its answer's bytes may be passed on as they are. */
  hasEventFilters(request: HookedRequest): boolean
  /**
   * Lets hooks change an event.
   * @returns the same event; undefined when nothing of it is left to be sent
   * @throws as `request`
   */
  event(event: Delta, request: HookedRequest): Promise<Delta | undefined>
  /** Lets hooks change what is captured. @returns undefined where it must not be written; never rejects */
  capture(record: CaptureRecord): Promise<CaptureRecord | undefined>
  modelLoaded(event: ModelEvent & { milliseconds: number }): void
  modelUnloaded(event: UnloadEvent): void
  pullFinished(event: PullEvent): void
  administered(event: AdminEvent): void
}
