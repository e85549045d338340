import type { Caller } from './callers.ts'
import type { Delta, EngineMode } from './engines.ts'
import type { OpenName } from './models.ts'

/** The kinds of requests to models. Plugins add others, such as `speak` or `draw` (`Engine.operations`). */
export type Operation = OpenName<'chat' | 'completion' | 'transcribe' | 'embeddings' | 'rerank' | 'tokens'>

/**
 * A request as hooks see it, after its API has validated and translated it and before an engine gets it. All hooks and
 * events of one request get the same object, so it can be the key of a WeakMap.
 */
export interface HookedRequest {
  /** Plugin whose API received it, such as `api-openai`. */
  readonly surface: string
  readonly operation: Operation
  /** Public name of the model, such as `corral/tiny-chat`. */
  readonly model: string
  /** The request in OpenAI's format, whichever API received it. Hooks may change it. */
  readonly body: Record<string, unknown>
  readonly caller: Caller
  /** Aborted when the client disconnects or the engine is taken away. */
  readonly signal: AbortSignal
  /** Sets a header of the reply. No effect once the reply has begun. @throws TypeError if a client could not read it */
  setHeader?(name: string, value: string): void
}

export interface ModelEvent {
  /** Public name, such as `corral/tiny-chat`. */
  readonly model: string
  readonly mode: EngineMode
}

/**
 * Why a model was unloaded: it was idle, another model needed its memory, it is reloaded with other options, it was
 * stopped (by an admin, its removal or the shutdown), or its engine ended unexpectedly.
 */
export type UnloadReason = 'idle' | 'evicted' | 'reload' | 'stopped' | 'failed'

export interface UnloadEvent extends ModelEvent {
  readonly reason: UnloadReason
  /** Why an engine failed, if known: a name in docs/failures.md. */
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

/** One choice of a captured answer. */
export interface CapturedChoice {
  content?: string
  thinking?: string
  toolCalls?: { name: string; arguments: string }[]
  /** Results of tools that corral ran. */
  toolResults?: { server: string; tool: string; output: string }[]
  /** As in `Delta`. */
  finish?: string
}

/** A captured request with its answer, before it is recorded. */
export interface CaptureRecord {
  readonly time: string
  readonly requestId: string
  /** Name of the caller's key. */
  readonly key?: string
  readonly address: string
  readonly surface: string
  readonly operation: Operation
  readonly model: string
  /** As `HookedRequest.body`, with the changes of earlier hooks. */
  body: unknown
  /** The choices of an answer in text. Empty for vectors and scores. */
  answer: CapturedChoice[]
  readonly status: number
  readonly code?: string
  readonly tokens: { in: number; cached: number; out: number }
  /** Whether something in it was truncated or left out. */
  readonly cut?: true
}

/** A change by an admin outside of requests, for example in a file that the server watches. */
export interface AdminEvent {
  /** Such as `key_created`. */
  readonly change: string
  /** The changed object, such as a key's name. */
  readonly target: string
  /** The source of the change, such as `keys.json`. */
  readonly by: string
  /** For changes of a key: its owner (`Caller.owner`), which has everything that was made with the key. */
  readonly owner?: string
}

/**
 * What a plugin can observe or change while the server runs (`on` of its offer). Hooks of several plugins run one after
 * another: built-in plugins first, then by name, each after the plugins whose services it needs. A hook that takes
 * longer than `limits.hook_timeout` fails its request.
 */
export interface PluginHooks {
  /** Runs before a request. It may change `body`, or refuse with `context.error(…)`. Other errors are `internal`. */
  request?(request: HookedRequest): Promise<void> | void
  /** Runs once the request has its engine, which may be long after `request`. It may refuse the request too. */
  leased?(request: HookedRequest): Promise<void> | void
  /**
   * Runs for each event of an answer to `chat` and `completion` before it is sent; the answer waits for it. It may
   * change `content`, `thinking` and `toolCalls`, or return `false` to drop the event's content (the end of the answer
   * and its token counts still reach the client). Errors end the answer, as errors of `request` do.
   */
  // biome-ignore lint/suspicious/noConfusingVoidType: a hook that only looks on returns nothing
  event?(event: Delta, request: HookedRequest): Promise<boolean | void> | boolean | void
  /** Whether `event` gets the events of this request; if absent, all. Other answers are passed on faster. */
  eventsOf?(request: HookedRequest): boolean
  /**
   * Runs after a captured request was answered and before it is recorded. It may change `body` and `answer`, or return
   * `false` to record nothing. If it fails or takes longer than ten seconds, nothing is recorded either.
   */
  // biome-ignore lint/suspicious/noConfusingVoidType: a hook that only looks on returns nothing
  capture?(record: CaptureRecord): Promise<boolean | void> | boolean | void
  /** Runs after a model was loaded. Not awaited; errors are logged. */
  modelLoaded?(event: ModelEvent & { readonly milliseconds: number }): Promise<void> | void
  /** Runs after a model was unloaded or its engine died. Not awaited; errors are logged. */
  modelUnloaded?(event: UnloadEvent): Promise<void> | void
  /** Runs after a pulled model was stored. Not awaited; errors are logged. */
  pullFinished?(event: PullEvent): Promise<void> | void
  /** Runs after an admin's change outside of requests. Not awaited; errors are logged. */
  administered?(event: AdminEvent): Promise<void> | void
}

/** Calls the hooks of all plugins. Plugins that raise these events reach it through `context.hooks`. */
export interface Hooks {
  /** Whether any plugin filters requests. If not, `request` does nothing. */
  hasRequestFilters(): boolean
  /** @throws CorralError of the hook that refuses the request, `internal` if one fails, the signal's reason */
  request(request: HookedRequest): Promise<void>
  /** Calls the hooks for a request that has its engine. Returns undefined if there are none. @throws as `request` */
  leased(request: HookedRequest): Promise<void> | undefined
  /** Whether any plugin filters the request's events. If not, its answer's bytes may be passed on unchanged. */
  hasEventFilters(request: HookedRequest): boolean
  /** Lets hooks change an event. Returns undefined if there is nothing left to send. @throws as `request` */
  event(event: Delta, request: HookedRequest): Promise<Delta | undefined>
  /** Lets hooks change a captured request. @returns undefined if it must not be recorded; never rejects */
  capture(record: CaptureRecord): Promise<CaptureRecord | undefined>
  modelLoaded(event: ModelEvent & { milliseconds: number }): void
  modelUnloaded(event: UnloadEvent): void
  pullFinished(event: PullEvent): void
  administered(event: AdminEvent): void
}
