import { hash } from 'node:crypto'
import type { EngineMode } from '../../../../core/contracts/engines.ts'
import type { LoadOptions } from '../../../../core/models/load-options.ts'

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
  /** When its last answer ended or began, in milliseconds of `performance.now()`; absent where that is not known. */
  usedAt?: number
  /** When its member unloads it if no request comes, in milliseconds of `performance.now()`; infinite for never. Of loaded ones. */
  expires?: number
  /** What it was loaded with. Of loaded ones. */
  options?: Pick<LoadOptions, 'num_ctx' | 'num_parallel'>
}

/** Names a model in one mode, in `MemberView.models`. */
export function modelKey(variantKey: string, mode: EngineMode): string {
  return `${variantKey}#${mode}`
}

/** A member that has a model. */
export interface Host {
  readonly member: MemberView
  readonly model: MemberModel
  /** Of the member's name: 32 bits, the same in every process. */
  readonly hash: number
}

/** The members that have a model, in whichever state. */
export interface Hosts {
  /** By their `hash`, so that every front has them in the same order. */
  readonly all: readonly Host[]
  get(member: string): Host | undefined
}

/**
 * The members that a front knows, found by name and by model. Their fields may be changed in place; after a change of
 * which models there are in `models`, or of the objects in it, the member has to be `set` again.
 */
export class ClusterView {
  /** With the models that it is listed under in `#hosts`. */
  readonly #members = new Map<string, { member: MemberView; hash: number; listed: readonly string[] }>()
  readonly #hosts = new Map<string, { all: Host[]; byName: Map<string, Host> }>()

  /** A member is new, or has other models than before. */
  set(member: MemberView): void {
    const number = this.#members.get(member.name)?.hash ?? hashOfName(member.name)
    this.remove(member.name)
    this.#members.set(member.name, { member, hash: number, listed: [...member.models.keys()] })
    for (const [key, model] of member.models) {
      const hosts = this.#hosts.get(key) ?? { all: [], byName: new Map<string, Host>() }
      this.#hosts.set(key, hosts)
      const host = { member, model, hash: number }
      hosts.byName.set(member.name, host)
      hosts.all.splice(placeOf(hosts.all, number), 0, host)
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

  get(name: string): MemberView | undefined {
    return this.#members.get(name)?.member
  }

  /** All members, in the order in which they came. */
  members(): MemberView[] {
    return [...this.#members.values()].map(({ member }) => member)
  }

  /** The members that have a model, by `modelKey`. */
  hosts(key: string): Hosts {
    const hosts = this.#hosts.get(key)
    return { all: hosts?.all ?? [], get: name => hosts?.byName.get(name) }
  }
}

/** 32 bits that look random and are the same in every process: for what several fronts have to settle alike. */
export function hashOfName(name: string): number {
  return Number.parseInt(hash('sha256', name).slice(0, 8), 16)
}

/** Index of the first one whose hash is not below this one. */
export function placeOf(hosts: readonly Host[], number: number): number {
  let low = 0
  for (let high = hosts.length; low < high; ) {
    const middle = (low + high) >> 1
    if (hosts[middle]!.hash < number) low = middle + 1
    else high = middle
  }
  return low
}
