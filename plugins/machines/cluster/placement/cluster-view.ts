import { hash } from 'node:crypto'
import type { EngineMode } from '../../../../core/contracts/engines.ts'
import type { LoadOptions } from '../../../../core/models/load-options.ts'

export interface NodeView {
  readonly name: string
  /** away: its connection is lost, or it answers incorrectly. Only nodes that are up get new requests. */
  state: 'up' | 'draining' | 'away'
  /** Models that it has, by `modelKey`. */
  models: ReadonlyMap<string, NodeModel>
  /** Bytes that its engines use and may use, by pool. Without `budget` there is no limit. */
  memory: readonly { pool: string; reserved: number; budget?: number | undefined }[]
}

export interface NodeModel {
  /** stored: on its disk only. loading: on its way into memory. */
  state: 'stored' | 'loading' | 'loaded'
  /** Bytes of memory that it needs, or of its files if that is unknown. */
  size: number
  slots: number
  /** Tokens of context of each slot; 0 if unknown. */
  context: number
  /** Tokens of conversations stored beside its slots. Absent if it stores none. Also known while unloaded. */
  storedTokens?: number
  running: number
  /** Requests that wait there. Requests of this gateway count before the node reports them. */
  queued: number
  pinned?: boolean
  /** When its last answer started or ended, in milliseconds of `performance.now()`, if known. */
  usedAt?: number
  /** When its node unloads it without requests, in milliseconds of `performance.now()`. Only if loaded. */
  expires?: number
  options?: Pick<LoadOptions, 'num_ctx' | 'num_parallel'>
}

export const modelKey = (variantKey: string, mode: EngineMode): string => `${variantKey}#${mode}`

export interface Host {
  readonly member: NodeView
  readonly model: NodeModel
  /** 32-bit hash of the node's name, the same in every process. */
  readonly hash: number
}

export interface Hosts {
  /** Sorted by `hash`, so every gateway has the same order. */
  readonly all: readonly Host[]
  get(member: string): Host | undefined
}

/**
 * The nodes that a gateway knows, found by name and by model. Their fields may be changed in place. After a change of
 * the keys or objects in `models`, call `set` again.
 */
export class ClusterView {
  /** With the models that it is listed under in `#hosts`. */
  readonly #members = new Map<string, { member: NodeView; hash: number; listed: readonly string[] }>()
  readonly #hosts = new Map<string, { all: Host[]; byName: Map<string, Host> }>()

  set(member: NodeView): void {
    const number = this.#members.get(member.name)?.hash ?? hashOfName(member.name)
    this.remove(member.name)
    this.#members.set(member.name, { member, hash: number, listed: [...member.models.keys()] })
    for (const [key, model] of member.models) {
      const hosts = this.#hosts.get(key) ?? { all: [], byName: new Map<string, Host>() }
      this.#hosts.set(key, hosts)
      const host = { member, model, hash: number }
      hosts.byName.set(member.name, host)
      hosts.all.splice(findPlace(hosts.all, number), 0, host)
    }
  }

  remove(name: string): void {
    for (const key of this.#members.get(name)?.listed ?? []) {
      const hosts = this.#hosts.get(key)!
      hosts.all.splice(hosts.all.indexOf(hosts.byName.get(name)!), 1)
      hosts.byName.delete(name)
      if (!hosts.all.length) this.#hosts.delete(key)
    }
    this.#members.delete(name)
  }

  get(name: string): NodeView | undefined {
    return this.#members.get(name)?.member
  }

  members(): NodeView[] {
    return [...this.#members.values()].map(({ member }) => member)
  }

  hosts(key: string): Hosts {
    const hosts = this.#hosts.get(key)
    return { all: hosts?.all ?? [], get: name => hosts?.byName.get(name) }
  }
}

/** Hashes a name to 32 bits, the same in every process, so that gateways decide alike. */
export const hashOfName = (name: string): number => Number.parseInt(hash('sha256', name).slice(0, 8), 16)

/** Returns the index of the first host whose hash is at least this number. */
export function findPlace(hosts: readonly Host[], number: number): number {
  let low = 0
  for (let high = hosts.length; low < high; ) {
    const middle = (low + high) >> 1
    if (hosts[middle]!.hash < number) low = middle + 1
    else high = middle
  }
  return low
}
