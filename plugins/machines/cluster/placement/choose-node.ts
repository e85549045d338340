import { hash } from 'node:crypto'
import type { EngineMode } from '../../../../core/contracts/engines.ts'
import type { LoadOptions } from '../../../../core/models/load-options.ts'
import type { PrefixMatches, PrefixMemory, PromptBlocks } from './prefix-memory.ts'

export interface NodeView {
  readonly name: string
  /** away: its connection is lost, or it answers incorrectly. Only nodes that are up get new requests. */
  state: 'up' | 'draining' | 'away'
  /** Models that it has, by `modelKey`. */
  models: ReadonlyMap<string, NodeModel>
  /** Bytes that its engines use and may use, by pool. Without `budget` there is no limit. */
  memory: readonly { pool: string; reserved: number; budget?: number | undefined }[]
  /** It gets requests, but no copies and no replicas of models. */
  isGuest?: boolean
  /** Replicas of a model are spread over zones, such as racks. */
  zone?: string
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
  /** The only nodes that may have a model in memory. Undefined if all may. @param model as `modelKey` returns it */
  only: (model: string) => ReadonlySet<string> | undefined = () => undefined

  set(member: NodeView): void {
    const number = this.#members.get(member.name)?.hash ?? hashOfName(member.name)
    this.remove(member.name)
    this.#members.set(member.name, { member, hash: number, listed: [...member.models.keys()] })
    for (const [key, model] of member.models) {
      const hosts = this.#hosts.get(key) ?? { all: [], byName: new Map<string, Host>() }
      this.#hosts.set(key, hosts)
      const host = { member, model, hash: number }
      hosts.byName.set(member.name, host)
      const place = hosts.all.findIndex(other => other.hash >= number)
      hosts.all.splice(place === -1 ? hosts.all.length : place, 0, host)
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

  /** Returns the hash of a known node's name. */
  hashOf(name: string): number {
    return this.#members.get(name)!.hash
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

/** Facts about a request that placement needs. */
export interface Wanted {
  /** As `modelKey` returns it. */
  model: string
  prompt: PromptBlocks
  /** Nodes where this request has failed. */
  tried?: ReadonlySet<string> | undefined
  /** Nodes that its files could not be copied from. */
  unread?: ReadonlySet<string> | undefined
}

/** The chosen node and the reason, or the reason why there is none. */
export type Choice =
  /**
   * prefix: the node has read most of the prompt. session: the client's conversation was there, or belongs there.
   * least_busy: it is loaded there. load: it must be loaded. fetch: its files must be copied from another node first.
   */
  | { member: NodeView; why: 'prefix' | 'session' | 'least_busy' | 'load'; from?: undefined }
  | { member: NodeView; why: 'fetch'; from: NodeView }
  /** unknown: no node has it. away: the nodes with it are down or have been tried. too_large: it fits nowhere. */
  | { member: undefined; why: 'unknown' | 'away' | 'too_large' }

/** Answering while all other slots are busy costs as much as processing this many prompt characters (2,000 tokens). */
const BUSY_COST = 8192
/** Evicting a conversation that was just active costs as much as processing this many prompt characters … */
const EVICTED_CONVERSATION_COST = 8192
/** … and half as much after it has been idle for this many milliseconds, since it may be over. */
const CONVERSATION_HALF_LIFE_MS = 30_000
/** Extra characters to read that are accepted at a conversation's home node, where other gateways look for it. */
const HOME_BONUS = 2000
/** Share of a prompt that a node must have read for a request to go there for its prefix. */
const PREFIX_SHARE = 0.5
/** If there are more nodes, only this many are compared: nodes that know most of the prompt, and some others. */
const MAX_COMPARED_NODES = 64
/** Assumed slots of an engine that has not reported them yet. */
const DEFAULT_SLOTS = 4
/** Evicting a model in use costs this many times as much as evicting a recently used one. */
const IN_USE_FACTOR = 8
/** Milliseconds after which an idle model is half as likely to be needed again. */
const HALF_LIFE_MS = 5 * 60_000

/**
 * Chooses where a request goes, among the nodes that are up and where it has not failed yet:
 *
 * 1. Nodes that have the model in memory and a free slot: the node of the conversation, otherwise the node with the
 *    least to do for it (`getCost`). So conversations stay where they were, new ones spread, and nobody waits
 *    unnecessarily.
 * 2. Otherwise nodes that have it in memory or are loading it, chosen likewise, if their queue is at most one round of
 *    their slots longer than the shortest.
 * 3. Otherwise, of the nodes that have it on disk, the node that evicts least for it (`getLoss`), then the node that has
 *    stored the conversation.
 * 4. Otherwise the node that evicts least for it, after copying the files from another node.
 *
 * Ties are decided by rendezvous hashing, so that several gateways choose alike. Nothing is changed here: the caller
 * counts what it sends in `running` or `queued`, and reports it to `PrefixMemory.read`.
 * @param now milliseconds
 */
export function chooseNode(wanted: Wanted, cluster: ClusterView, prefixes: PrefixMemory, now: number): Choice {
  const hosts = cluster.hosts(wanted.model)
  const only = cluster.only(wanted.model)
  const isOpen = ({ member: { name, state } }: Host) =>
    state === 'up' && !wanted.tried?.has(name) && (!only || only.has(name))
  const isFree = (host: Host) => isOpen(host) && host.model.state === 'loaded' && getLoad(host) < getSlots(host)
  const place: Place = { wanted, prefixes, matches: prefixes.find(wanted.prompt), now }

  const few = compared(hosts, place)
  const free = few.filter(isFree)
  if (!free.length && few.length < hosts.all.length) free.push(...hosts.all.filter(isFree))
  if (free.length) return placeAmong(free, place)

  const busy = hosts.all.filter(host => host.model.state !== 'stored' && isOpen(host))
  const shortest = busy.reduce((rounds, host) => Math.min(rounds, getRounds(host)), Number.POSITIVE_INFINITY)
  if (busy.length) {
    const isBearable = (host: Host) => getRounds(host) <= shortest + 1
    const near = few.filter(host => host.model.state !== 'stored' && isOpen(host) && isBearable(host))
    return placeAmong(near.length ? near : busy.filter(isBearable), place)
  }

  return chooseLoad(wanted, cluster, now, place.matches.common)
}

/**
 * Chooses the node that loads a model next, by rules 3 and 4 of `chooseNode`.
 * @param common how many characters of the prompt a node has stored. Decides between nodes with equal evictions
 */
export function chooseLoad(
  { model, tried, unread }: Pick<Wanted, 'model' | 'tried' | 'unread'>,
  cluster: ClusterView,
  now: number,
  common: PrefixMatches['common'] = () => 0
): Choice {
  const hosts = cluster.hosts(model)
  const only = cluster.only(model)
  const isOpen = ({ name, state }: NodeView) => state === 'up' && !tried?.has(name) && (!only || only.has(name))
  const sources = hosts.all.filter(({ member }) => member.state !== 'away')
  if (!sources.length) return { member: undefined, why: hosts.all.length ? 'away' : 'unknown' }
  const key = hashOfName(model)
  const size = Math.max(...hosts.all.map(host => host.model.size))
  const room = (members: readonly NodeView[]): NodeView | undefined => {
    const places = members
      .map(member => ({ member, ...getLoss(member, size, now), rank: rendezvous(hashOfName(member.name), key) }))
      .filter(({ loss }) => loss !== undefined)
    if (!places.length) return undefined
    const { member } = lowest(
      places,
      ({ loss }) => loss!,
      ({ member }) => -common(member.name),
      ({ left }) => -left,
      ({ rank }) => -rank
    )
    return member
  }

  const having = hosts.all
    .filter(host => host.model.state === 'stored' && isOpen(host.member))
    .map(({ member }) => member)
  const loading = room(having)
  if (loading) return { member: loading, why: 'load' }
  const lacking = cluster.members().filter(member => isOpen(member) && !member.isGuest && !hosts.get(member.name))
  const fetching = room(lacking)
  const readable = hosts.all.filter(({ member }) => !unread?.has(member.name))
  const source = chooseSource(readable, key, isOpen)
  if (fetching && source) return { member: fetching, why: 'fetch', from: source }
  return { member: undefined, why: !fetching && (having.length || lacking.length) ? 'too_large' : 'away' }
}

/** Chooses the node that files are copied from. @param key the hash of the model @param isOpen nodes to prefer */
export function chooseSource(
  hosts: readonly Host[],
  key: number,
  isOpen = ({ state }: NodeView) => state === 'up'
): NodeView | undefined {
  const readable = hosts.filter(({ member }) => member.state !== 'away')
  const rank = (host: Host) => -rendezvous(host.hash, key)
  return readable.length ? lowest(readable, ({ member }) => (isOpen(member) ? 0 : 1), getLoad, rank).member : undefined
}

interface Place {
  wanted: Wanted
  prefixes: PrefixMemory
  matches: PrefixMatches
  now: number
}

/** Returns the nodes to compare: all, or the nodes that know most of the prompt and the nodes next to its place. */
function compared({ all, get }: Hosts, { wanted, matches }: Place): readonly Host[] {
  if (all.length <= MAX_COMPARED_NODES) return all
  const chosen = new Set<Host>()
  for (const name of matches.longest(MAX_COMPARED_NODES / 2)) {
    const host = get(name)
    if (host) chosen.add(host)
  }
  const start = all.findIndex(({ hash }) => hash >= wanted.prompt.key % 2 ** 32)
  for (let index = 0; chosen.size < MAX_COMPARED_NODES && index < all.length; index++)
    chosen.add(all[(Math.max(0, start) + index) % all.length]!)
  return [...chosen]
}

/**
 * Chooses among at least one node that can answer:
 *
 * a. a node that has processed all of an earlier prompt of the conversation; b. the node of the client's session; c.
 * the home of a conversation that is unknown here, because it began at another gateway or before a restart; d. the node
 * with the least to do. Ties go to the node with the fewest conversations, then to the home node.
 */
function placeAmong(hosts: readonly Host[], place: Place): Choice {
  const { matches, prefixes, wanted } = place
  const { key, length, session, continued } = wanted.prompt
  const common = ({ member }: Host) => matches.common(member.name)
  const isKnown = (host: Host) => common(host) >= PREFIX_SHARE * length
  const rank = (host: Host) => -rendezvous(host.hash, key)

  const home = lowest(hosts, rank)
  const going = hosts.filter(({ member }) => matches.goesOn(member.name))
  const named = hosts.filter(({ member }) => matches.hasSession(member.name))
  let chosen: Host
  if (going.length) chosen = lowest(going, host => -common(host), rank)
  else if (named.length) chosen = lowest(named, rank)
  else if ((continued || session !== undefined) && !hosts.some(isKnown)) chosen = home
  else {
    const held = (host: Host) => prefixes.held(host.member.name, wanted.model) / getSlots(host)
    chosen = lowest(hosts, host => getCost(host, place) - (host === home ? HOME_BONUS : 0), held, rank)
  }
  return { member: chosen.member, why: isKnown(chosen) ? 'prefix' : session === undefined ? 'least_busy' : 'session' }
}

/** The cost of a new conversation for a node, in characters to read. */
function getCost(host: Host, { wanted, prefixes, matches, now }: Place): number {
  const { name } = host.member
  const unread = wanted.prompt.length - matches.common(name)
  const pushedOut =
    EVICTED_CONVERSATION_COST * 2 ** (-prefixes.oldest(name, wanted.model, now) / CONVERSATION_HALF_LIFE_MS)
  return unread + pushedOut + (BUSY_COST * getLoad(host)) / getSlots(host)
}

/** Returns the item with the lowest first number. The following numbers decide ties. */
function lowest<Item>(items: readonly Item[], ...numbers: ((item: Item) => number)[]): Item {
  let rest = items
  for (const number of numbers) {
    if (rest.length === 1) break
    const all = rest.map(number)
    const least = Math.min(...all)
    rest = rest.filter((_, index) => all[index] === least)
  }
  return rest[0]!
}

const getSlots = ({ model }: Host) => model.slots || DEFAULT_SLOTS

const getLoad = ({ model }: Host) => model.running + model.queued

/** Returns how many answers in a row must end before another request is served. */
function getRounds(host: Host): number {
  const ahead = getLoad(host) + 1 - (host.model.state === 'loaded' ? getSlots(host) : 0)
  return Math.max(0, ahead) / getSlots(host)
}

/** Bytes that all models together may use at a node. Infinite if there is no limit. */
export const memoryBudget = ({ memory }: NodeView): number =>
  memory.length === 0 ? Number.POSITIVE_INFINITY : sumOf(memory, ({ budget = Number.POSITIVE_INFINITY }) => budget)

/** Bytes that more models may use at a node. */
export function freeMemory(member: NodeView): number {
  let held = 0
  for (const model of member.models.values()) if (model.state !== 'stored') held += model.size
  // A load that has just begun has no reservation yet.
  return (
    memoryBudget(member) -
    Math.max(
      sumOf(member.memory, ({ reserved }) => reserved),
      held
    )
  )
}

const sumOf = <Item>(items: readonly Item[], number: (item: Item) => number) =>
  items.reduce((total, item) => total + number(item), 0)

/**
 * The loss from loading a model of this size at a node: bytes of evicted models, weighted by how soon they may be
 * needed again. Undefined if it can never be loaded. `left` is the memory that stays free.
 */
function getLoss(member: NodeView, size: number, now: number): { loss: number | undefined; left: number } {
  const models = [...member.models.values()].filter(({ state }) => state !== 'stored')
  const left = freeMemory(member) - size
  if (left >= 0) return { loss: 0, left }
  const worth = (running: number, usedAt: number | undefined) =>
    running > 0 ? IN_USE_FACTOR : usedAt === undefined ? 1 : 2 ** (-Math.max(0, now - usedAt) / HALF_LIFE_MS)
  const evictable = models
    .filter(({ pinned }) => !pinned)
    .map(model => ({ size: model.size, worth: worth(model.running + model.queued, model.usedAt) }))
    .sort((a, b) => a.worth - b.worth)
  let missing = -left
  let loss = 0
  for (const model of evictable) {
    if (missing <= 0) break
    missing -= model.size
    loss += model.size * model.worth
  }
  return { loss: missing > 0 ? undefined : loss, left: 0 }
}

/** Hashes two numbers into one (the end of MurmurHash3). */
export function rendezvous(member: number, key: number): number {
  let mixed = member ^ (key % 2 ** 32) ^ Math.floor(key / 2 ** 32)
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b)
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35)
  return (mixed ^ (mixed >>> 16)) >>> 0
}
