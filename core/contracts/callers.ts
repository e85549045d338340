import type { Role } from '../http/roles.ts'
import { clientNetwork } from '../system/client-network.ts'

/** The sender of a request. The security plugin identifies it before any route runs; routes read `request.caller`. */
export interface Caller {
  readonly role: Role
  /** Owner of prompt caches and stored responses: `key:<id>`, or `keyless`. Owners never see each other's data. */
  readonly owner: string
  /** The key of a gateway that asks for its client. The gateway counts its clients, so only the key's own budgets apply. */
  readonly gateway?: string
  /** The client id for fair sharing: `key:<id>`, or the address (for IPv6 the network) of a caller without a key. */
  readonly turn: string
  /** The address that the request came from; behind a trusted proxy, the forwarded address. */
  readonly address: string
  /** The name of its key, for logs. */
  readonly name?: string
  /** Whether it came through the private socket, which only the user who runs the server can open. */
  readonly isLocal?: boolean
  readonly models?: readonly string[]
  /** Limits of its key, which replace `limits`. */
  readonly bounds?: Partial<RequestBounds>
  /** Budgets of its key, which replace `limits`. */
  readonly budgets?: Budgets
  /** Aborted when its key is revoked. The connection then ends. */
  readonly revoked?: AbortSignal
}

export interface RequestBounds {
  /** Tokens. 0 means the context length that the model was trained with. */
  num_ctx: number
  num_parallel: number
  max_tokens: number
  /** Written like `keep_alive`. */
  keep_alive: string | number
  /** Inputs of one request for embeddings or completions, or documents of one ranking. */
  prompts: number
  /** Choices. */
  n: number
  /** How often a passage may repeat directly before the answer is ended. 0 is without limit. */
  repeats: number
}

/** What a budget counts: requests to models, prompt tokens, generated tokens, or both kinds of tokens together. */
export type BudgetKind = 'requests' | 'tokens' | 'tokens_in' | 'tokens_out'
export type BudgetName = `${BudgetKind}_per_${'minute' | 'day'}`
/** Maximum amounts per minute or day; 0 is unlimited. */
export type Budgets = Partial<Record<BudgetName, number>>

/** The caller of a request before the security plugin has identified it, or without that plugin. */
export function keylessCaller(address: string): Caller {
  return { role: 'operator', owner: 'keyless', turn: clientNetwork(address), address }
}

/** The caller of a request through the private socket: the user who runs the server. */
export function localCaller(): Caller {
  return { role: 'admin', owner: 'keyless', turn: 'local', address: 'local', isLocal: true }
}

declare module 'fastify' {
  interface FastifyRequest {
    caller: Caller
  }
}
