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
 * 1. Of those that have the model in memory and a free slot, the one with least to do for it (`costOf`): to read what it
 *    has not read of the prompt, to read again later what that pushes out of its slots, to answer beside what runs there.
 *    So a conversation goes on where it was, and new ones spread. Nobody waits while there is such a member.
 * 2. Else of those that have it in memory or are loading it, the one with least to do of those whose queue is at most one
 *    round of its slots longer than the shortest.
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
  if (free.length) return least(free, place)

  const busy = hosts.all.filter(host => host.model.state !== 'stored' && isOpen(host))
  const shortest = busy.reduce((rounds, host) => Math.min(rounds, roundsOf(host)), Number.POSITIVE_INFINITY)
  if (busy.length)
    return least(
      busy.filter(host => roundsOf(host) <= shortest + 1),
      place
    )

  return chooseLoad(wanted, cluster, now)
}

/**
 * Chooses where a model is loaded next, as 3. and 4. of `chooseMember`; for one more replica too: never where it is loaded,
 * or on its way.
 */
export function chooseLoad(
  { model, tried }: Pick<Wanted, 'model' | 'tried'>,
  cluster: ClusterView,
  now: number
): Choice {
  const hosts = cluster.hosts(model)
  const isOpen = (member: MemberView) => member.state === 'up' && !tried?.has(member.name)
  const source =
    hosts.all.find(({ member }) => member.state === 'up') ?? hosts.all.find(({ member }) => member.state === 'draining')
  if (!source) return { member: undefined, why: hosts.all.length ? 'away' : 'unknown' }

  const size = Math.max(...hosts.all.map(host => host.model.size))
  const key = hashOfName(model)
  const room = (members: readonly MemberView[]) =>
    members
      .map(member => ({ member, ...lossOf(member, size, now), rank: rendezvous(hashOfName(member.name), key) }))
      .filter(({ loss }) => loss !== undefined)
      .sort((a, b) => a.loss! - b.loss! || compare(b.left, a.left) || b.rank - a.rank)[0]?.member

  const having = hosts.all
    .filter(host => host.model.state === 'stored' && isOpen(host.member))
    .map(({ member }) => member)
  const loading = room(having)
  if (loading) return { member: loading, why: 'load' }
  const lacking = cluster.members().filter(member => isOpen(member) && !hosts.get(member.name))
  const fetching = room(lacking)
  if (fetching) return { member: fetching, why: 'fetch', from: source.member }
  return { member: undefined, why: having.length || lacking.length ? 'too_large' : 'away' }
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

/** The one with least to do of several, at least one; of equal ones the one that holds fewest conversations. */
function least(hosts: readonly Host[], place: Place): Choice {
  const { wanted, prefixes, matches } = place
  const { model, prompt } = wanted
  const home = homeOf(hosts, place)
  const [first] = hosts
    .map(host => ({
      host,
      cost: costOf(host, place, host === home),
      held: prefixes.held(host.member.name, model) / slotsOf(host),
      rank: rendezvous(host.hash, prompt.key)
    }))
    .sort((a, b) => a.cost - b.cost || a.held - b.held || b.rank - a.rank)
  const { host } = first!
  const isKnown = matches.common(host.member.name) >= PREFIX_SHARE * prompt.length
  return { member: host.member, why: isKnown ? 'prefix' : host === home ? 'session' : 'least_busy' }
}

/** What this request makes a member do, in characters that have to be read. */
function costOf(host: Host, { wanted, prefixes, matches, now }: Place, isHome: boolean): number {
  const { name } = host.member
  const unread = isHome ? 0 : wanted.prompt.length - matches.common(name)
  const pushedOut = isHome || matches.goesOn(name) ? 0 : prefixes.pushedOut(name, wanted.model, now)
  return unread + pushedOut + (BUSY * loadOf(host)) / slotsOf(host)
}

/** Where the conversation that the client names was last; where that is not known, the same one for every front. */
function homeOf(hosts: readonly Host[], { wanted, matches }: Place): Host | undefined {
  const { session } = wanted.prompt
  if (session === undefined) return undefined
  const known = hosts.find(({ member }) => matches.hasSession(member.name))
  return (
    known ??
    hosts.reduce((best, host) => (rendezvous(host.hash, session) > rendezvous(best.hash, session) ? host : best))
  )
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
  const left = budget - sum(pool => pool.reserved) - size
  if (!memory.length || left >= 0) return { loss: 0, left }
  const worth = (running: number, usedAt: number | undefined) =>
    running > 0 ? IN_USE : usedAt === undefined ? 1 : 2 ** (-Math.max(0, now - usedAt) / HALF_LIFE)
  const evictable = [...member.models.values()]
    .filter(({ state, pinned }) => state !== 'stored' && !pinned)
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
