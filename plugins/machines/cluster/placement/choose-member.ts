import { type ClusterView, type Host, type Hosts, hashOfName, type MemberView, placeOf } from './cluster-view.ts'
import type { PrefixMatches, PrefixMemory } from './prefix-memory.ts'
import type { PromptBlocks } from './prompt-blocks.ts'

/** A request, as far as its place is concerned. */
export interface Wanted {
  /** As `modelKey` gives it. */
  model: string
  prompt: PromptBlocks
  /** Members where this request has failed. */
  tried?: ReadonlySet<string> | undefined
  /** Members that its files could not be fetched from. */
  unread?: ReadonlySet<string> | undefined
}

/** Where a request goes and why, or why nowhere. */
export type Choice =
  /**
   * prefix: it has read most of the prompt. session: the conversation that the client names was there, or belongs there.
   * least_busy: it is loaded there. load: it has to be loaded. fetch: its files have to come from another member first.
   */
  | { member: MemberView; why: 'prefix' | 'session' | 'least_busy' | 'load'; from?: undefined }
  | { member: MemberView; why: 'fetch'; from: MemberView }
  /** unknown: no member has it. away: those that have it or could are not up, or were tried. too_large: it fits nowhere. */
  | { member: undefined; why: 'unknown' | 'away' | 'too_large' }

/** To answer where all slots but one are busy is as slow as to read so many characters more (about 2,000 tokens). */
const BUSY = 8192
/** To push a conversation out of its slot that has just been there costs as much as to read so many characters … */
const PUSHED_OUT = 8192
/** … and half of it once it has rested for so long (milliseconds): the less likely it goes on. */
const RESTING = 30_000
/** It is worth reading so many characters, less than one more answer of four, that a conversation begins where other fronts look for it. */
const HOME = 2000
/** A request goes to a member for its prefix where so much of its prompt has been read there. */
const PREFIX_SHARE = 0.5
/** Of more members than this, only so many are compared: those that know most of the prompt, and some others. */
const COMPARED = 64
/** Slots of an engine that has not said yet how many it has. */
const USUAL_SLOTS = 4
/** A model in use is so much dearer to evict than one that was used a moment ago. */
const IN_USE = 8
/** An idle model that has rested for so long (milliseconds) is half as likely to be needed again. */
const HALF_LIFE = 5 * 60_000

/**
 * Chooses where a request goes, of the members that are up and where it has not failed yet:
 *
 * 1. Of those that have the model in memory and a free slot: where the conversation goes on, else the one with
 *    least to do for it (`costOf`). So conversations go on where they were, new ones spread, and nobody waits in vain.
 * 2. Else of those that have it in memory or are loading it, and whose queue is at most one round of its slots longer than
 *    the shortest, likewise.
 * 3. Else of those that have it on disk, the one that evicts least for it (`lossOf`).
 * 4. Else the one that evicts least for it, once it has fetched the files from a member that has them.
 *
 * Equal ones are told apart by rendezvous hashing, so that several fronts choose alike. Nothing is changed here: the
 * caller counts what it sends in `running` or `queued`, and tells `PrefixMemory.read` of it.
 * @param now milliseconds
 */
export function chooseMember(wanted: Wanted, cluster: ClusterView, prefixes: PrefixMemory, now: number): Choice {
  const hosts = cluster.hosts(wanted.model)
  const isOpen = ({ member }: Host) => member.state === 'up' && !wanted.tried?.has(member.name)
  const isFree = (host: Host) => isOpen(host) && host.model.state === 'loaded' && loadOf(host) < slotsOf(host)
  const place: Place = { wanted, prefixes, matches: prefixes.find(wanted.prompt), now }

  const few = compared(hosts, place)
  const free = few.filter(isFree)
  if (!free.length && few.length < hosts.all.length) free.push(...hosts.all.filter(isFree))
  if (free.length) return placeAmong(free, place)

  const busy = hosts.all.filter(host => host.model.state !== 'stored' && isOpen(host))
  const shortest = busy.reduce((rounds, host) => Math.min(rounds, roundsOf(host)), Number.POSITIVE_INFINITY)
  if (busy.length) {
    const isBearable = (host: Host) => roundsOf(host) <= shortest + 1
    const near = few.filter(host => host.model.state !== 'stored' && isOpen(host) && isBearable(host))
    return placeAmong(near.length ? near : busy.filter(isBearable), place)
  }

  return chooseLoad(wanted, cluster, now)
}

/**
 * Chooses where a model is loaded next, as 3. and 4. of `chooseMember`; for one more replica too: never where it is loaded,
 * or on its way.
 * @param evicts whether it may be where others have to be evicted for it
 */
export function chooseLoad(
  { model, tried, unread, evicts = true }: Pick<Wanted, 'model' | 'tried' | 'unread'> & { evicts?: boolean },
  cluster: ClusterView,
  now: number
): Choice {
  const hosts = cluster.hosts(model)
  const isOpen = (member: MemberView) => member.state === 'up' && !tried?.has(member.name)
  const sources = hosts.all.filter(({ member }) => member.state !== 'away')
  if (!sources.length) return { member: undefined, why: hosts.all.length ? 'away' : 'unknown' }
  const key = hashOfName(model)
  const size = Math.max(...hosts.all.map(host => host.model.size))
  const room = (members: readonly MemberView[]) =>
    members
      .map(member => ({ member, ...lossOf(member, size, now), rank: rendezvous(hashOfName(member.name), key) }))
      .filter(({ loss }) => loss === 0 || (evicts && loss !== undefined))
      .sort((a, b) => a.loss! - b.loss! || compare(b.left, a.left) || b.rank - a.rank)[0]?.member

  const having = hosts.all
    .filter(host => host.model.state === 'stored' && isOpen(host.member))
    .map(({ member }) => member)
  const loading = room(having)
  if (loading) return { member: loading, why: 'load' }
  const lacking = cluster.members().filter(member => isOpen(member) && !hosts.get(member.name))
  const fetching = room(lacking)
  const readable = sources.filter(({ member }) => !unread?.has(member.name))
  if (fetching && readable.length) {
    const source = lowest(
      readable,
      host => (isOpen(host.member) ? 0 : 1),
      loadOf,
      host => -rendezvous(host.hash, key)
    )
    return { member: fetching, why: 'fetch', from: source.member }
  }
  return { member: undefined, why: !fetching && (having.length || lacking.length) ? 'too_large' : 'away' }
}

/** What a choice is made by. */
interface Place {
  wanted: Wanted
  prefixes: PrefixMemory
  matches: PrefixMatches
  now: number
}

/** The members that are compared: all of a few; of many those that know most of the prompt, and others at its place in their order. */
function compared({ all, get }: Hosts, { wanted, matches }: Place): readonly Host[] {
  if (all.length <= COMPARED) return all
  const chosen = new Set<Host>()
  for (const name of matches.longest(COMPARED / 2)) {
    const host = get(name)
    if (host) chosen.add(host)
  }
  const start = placeOf(all, wanted.prompt.key % 2 ** 32)
  for (let index = 0; chosen.size < COMPARED && index < all.length; index++)
    chosen.add(all[(start + index) % all.length]!)
  return [...chosen]
}

/**
 * Of several that can answer (at least one):
 *
 * a. where all of an earlier prompt of the conversation has been read;
 * b. where the conversation that the client names was before;
 * c. the home of a conversation that nobody here knows, since it began at another front, or before a restart;
 * d. the one with least to do. Of equal ones that with fewest conversations, then its home.
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
    const held = (host: Host) => prefixes.held(host.member.name, wanted.model) / slotsOf(host)
    chosen = lowest(hosts, host => costOf(host, place) - (host === home ? HOME : 0), held, rank)
  }
  return { member: chosen.member, why: isKnown(chosen) ? 'prefix' : session === undefined ? 'least_busy' : 'session' }
}

/** What a new conversation makes a member do, in characters that have to be read. */
function costOf(host: Host, { wanted, prefixes, matches, now }: Place): number {
  const { name } = host.member
  const unread = wanted.prompt.length - matches.common(name)
  const pushedOut = PUSHED_OUT * 2 ** (-prefixes.oldest(name, wanted.model, now) / RESTING)
  return unread + pushedOut + (BUSY * loadOf(host)) / slotsOf(host)
}

/** The one with the lowest first number; of equal ones that with the lowest second, and so on. */
function lowest(hosts: readonly Host[], ...numbers: ((host: Host) => number)[]): Host {
  let rest = hosts
  for (const number of numbers) {
    if (rest.length === 1) break
    const all = rest.map(number)
    const least = Math.min(...all)
    rest = rest.filter((_, index) => all[index] === least)
  }
  return rest[0]!
}

const slotsOf = ({ model }: Host) => model.slots || USUAL_SLOTS

const loadOf = ({ model }: Host) => model.running + model.queued

/** How many answers after each other have to end before a further request has its turn. */
function roundsOf(host: Host): number {
  const ahead = loadOf(host) + 1 - (host.model.state === 'loaded' ? slotsOf(host) : 0)
  return Math.max(0, ahead) / slotsOf(host)
}

/**
 * What a member loses when something of this size is loaded there, in bytes of models that are evicted, the dearer the
 * sooner they may be needed again; undefined where it can never be loaded. `left` is what stays free then.
 */
function lossOf(member: MemberView, size: number, now: number): { loss: number | undefined; left: number } {
  const { memory } = member
  const sum = (bytes: (pool: (typeof memory)[number]) => number) =>
    memory.reduce((total, pool) => total + bytes(pool), 0)
  const budget = sum(pool => pool.budget ?? Number.POSITIVE_INFINITY)
  const models = [...member.models.values()].filter(({ state }) => state !== 'stored')
  // What has only just begun to load is not reserved yet.
  const taken = Math.max(
    sum(pool => pool.reserved),
    models.reduce((bytes, model) => bytes + model.size, 0)
  )
  const left = budget - taken - size
  if (!memory.length || left >= 0) return { loss: 0, left }
  const worth = (running: number, usedAt: number | undefined) =>
    running > 0 ? IN_USE : usedAt === undefined ? 1 : 2 ** (-Math.max(0, now - usedAt) / HALF_LIFE)
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

/** As a difference, also of two that are infinite. */
const compare = (a: number, b: number) => (a === b ? 0 : a - b)

/** A number that looks random and is the same for the same two (the end of MurmurHash3). */
function rendezvous(member: number, key: number): number {
  let mixed = member ^ (key % 2 ** 32) ^ Math.floor(key / 2 ** 32)
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b)
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35)
  return (mixed ^ (mixed >>> 16)) >>> 0
}
