import type { Role } from '../http/roles.ts'
import { clientNetwork } from '../system/client-network.ts'

/** Who sent a request. The security plugin finds it out before any route is reached; routes read `request.caller`. */
export interface Caller {
  readonly role: Role
  /**
   * Owner of prompt caches and stored responses: `key:<id>`, or `keyless` for all callers without a key. Owners never see
   * each other's data.
   */
  readonly owner: string
  /**
   * The client for fair sharing: slots, queues, pulls and uploads go to clients in turn. `key:<id>`, or the address of a
   * caller without a key (of IPv6 its network, see `clientNetwork`).
   */
  readonly turn: string
  /** Address that the request came from; behind a trusted proxy the one it was forwarded for. */
  readonly address: string
  /** The name of its key, for logs. */
  readonly name?: string
  /** Whether it came by the private socket, which only the user who runs the server can open. */
  readonly isLocal?: boolean
  /** Names of the models that it may use; all where absent. */
  readonly models?: readonly string[]
  /** What its key allows, in the place of what `limits` says. */
  readonly bounds?: Partial<RequestBounds>
  /** What its key may take in time, in the place of what `limits` says. */
  readonly budgets?: Budgets
  /** Aborted when its key is revoked: the connection ends. */
  readonly revoked?: AbortSignal
}

/** What one request may ask for. */
export interface RequestBounds {
  /** Tokens; 0 is what the model was trained for. */
  num_ctx: number
  num_parallel: number
  /** Tokens. */
  max_tokens: number
  /** As `keep_alive` is written. */
  keep_alive: string | number
  /** Inputs of one request for embeddings or completions, documents of one ranking. */
  prompts: number
  /** Choices. */
  n: number
}

/** What budgets count: requests that ask a model, the tokens that models read and write, both of these, or one of them. */
export type BudgetKind = 'requests' | 'tokens' | 'tokens_in' | 'tokens_out'
export type BudgetName = `${BudgetKind}_per_${'minute' | 'day'}`
/** What may be taken in a minute or a day; 0 is no limit. */
export type Budgets = Partial<Record<BudgetName, number>>

/** The caller of a request until the security plugin knows better, and where there is no such plugin. */
export function keylessCaller(address: string): Caller {
  return { role: 'operator', owner: 'keyless', turn: clientNetwork(address), address }
}

/** The caller of a request that came by the private socket: the user who runs the server. */
export function localCaller(): Caller {
  return { role: 'admin', owner: 'keyless', turn: 'local', address: 'local', isLocal: true }
}

declare module 'fastify' {
  interface FastifyRequest {
    caller: Caller
  }
}
