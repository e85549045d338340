import type { EngineMode } from '../../../core/contracts/engines.ts'

/** What a front knows of a member. */
export interface MemberView {
  readonly name: string
  /** away: its connection is cut, or its circuit is open. Nothing new is sent to one that is not up. */
  state: 'up' | 'draining' | 'away'
  /** Models that it has, by `modelKey`. */
  models: ReadonlyMap<string, MemberModel>
  /** Bytes that its engines have and may have, by pool; without `budget` there is no limit. */
  memory: readonly { pool: string; reserved: number; budget?: number | undefined }[]
}

/** What a member has of a model in one mode. */
export interface MemberModel {
  /** stored: on its disk only. loading: on its way into memory. */
  state: 'stored' | 'loading' | 'loaded'
  /** Bytes of memory that it takes; of its files where that is not known yet. */
  size: number
  /** Requests that it answers at once; 0 while that is not known. */
  slots: number
  /** Tokens of context of each slot; 0 while that is not known. */
  context: number
  /** Answers in progress. */
  running: number
  /** Requests that wait there. What this front has sent counts at once, in `running` or here, not only when it is told of. */
  queued: number
  /** It is not unloaded for others. */
  pinned?: boolean
  /** When its last answer ended or began, in milliseconds; absent where that is not known. */
  usedAt?: number
}

/** Names a model in one mode, in `MemberView.models`. */
export function modelKey(variantKey: string, mode: EngineMode): string {
  return `${variantKey}#${mode}`
}

/** A member that has a model. */
export interface Host {
  readonly member: MemberView
  readonly model: MemberModel
}

/**
 * The members that a front knows, found by name and by model. Their fields may be changed in place; after a change of
 * which models there are in `models` the member has to be `set` again.
 */
export class ClusterView {
  /** With the models that it is listed under in `#hosts`. */
  readonly #members = new Map<string, { member: MemberView; listed: readonly string[] }>()
  /** By model, then by the member's name. */
  readonly #hosts = new Map<string, Map<string, Host>>()

  /** A member is new, or has other models than before. */
  set(member: MemberView): void {
    this.remove(member.name, member)
    this.#members.set(member.name, { member, listed: [...member.models.keys()] })
    for (const [key, model] of member.models) {
      const hosts = this.#hosts.get(key) ?? new Map<string, Host>()
      this.#hosts.set(key, hosts)
      hosts.set(member.name, { member, model })
    }
  }

  /** @param successor what takes its place */
  remove(name: string, successor?: MemberView): void {
    for (const key of this.#members.get(name)?.listed ?? []) {
      if (successor?.models.has(key)) continue
      const hosts = this.#hosts.get(key)
      hosts?.delete(name)
      if (hosts?.size === 0) this.#hosts.delete(key)
    }
    if (!successor) this.#members.delete(name)
  }

  get(name: string): MemberView | undefined {
    return this.#members.get(name)?.member
  }

  /** All members, in the order in which they came. */
  *members(): Iterable<MemberView> {
    for (const { member } of this.#members.values()) yield member
  }

  /** The members that have a model, in whichever state, by name. */
  hosts(key: string): ReadonlyMap<string, Host> {
    return this.#hosts.get(key) ?? NONE
  }
}

const NONE: ReadonlyMap<string, Host> = new Map()
