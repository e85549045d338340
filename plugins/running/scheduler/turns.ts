import type { LoadOptions } from '../../../core/models/load-options.ts'
import type { QueuedRequest } from './request-queue.ts'
import {
  type Client,
  type ClientLoads,
  type EngineIn,
  type EngineState,
  isIn,
  onlyIdleWait,
  type PreparedPlan,
  type SchedulerState,
  satisfies,
  wishers
} from './scheduler-state.ts'

/*
 * How clients share an engine's slots, its load options and the machine's memory. A client is an API key or an address.
 * `serve-engine.ts` and `eviction.ts` use this.
 */

/** Milliseconds for which an idle client may return and keeps a slot free … */
const LATELY = 60_000
/** … and for which it is expected to, as programs do. */
const SOON = 2000
/** Milliseconds for which a client's loads and forced reloads are counted. */
const COUNTED = 600_000
/** From this number of clients on, old ones are forgotten … */
const MANY_CLIENTS = 100
/** … down to this number. */
const MAX_CLIENTS = 1000

/** A client's current use of an engine. */
interface Share {
  turn: string
  /** Slots of its running answers. */
  slots: number
  /** Slots × milliseconds, including running answers … */
  had: number
  /** … and including its reloads. */
  all: number
}

const NEW_CLIENT: Client = {
  had: 0,
  reloads: 0,
  reloadedAt: Number.NEGATIVE_INFINITY,
  lastUsed: Number.NEGATIVE_INFINITY,
  keepAlive: undefined
}

/**
 * Returns the use of clients that have requests running or waiting. Of the many that may wait with nothing running,
 * only the first in turn and `also` matter, and the queue has them sorted. Clients with recent reloads are compared
 * here, because reloads are forgotten with time.
 */
function sharesOf(engine: EngineState, now: number, also?: string): Map<string, Share> {
  const { phase, queue, clients, reloaders } = engine
  const shares = new Map<string, Share>()
  const shareOf = (turn: string) => {
    let share = shares.get(turn)
    if (!share) {
      const { had, reloads, reloadedAt } = clients.get(turn) ?? NEW_CLIENT
      share = { turn, slots: 0, had, all: had + (now - reloadedAt < COUNTED ? reloads : 0) }
      shares.set(turn, share)
    }
    return share
  }
  if ('running' in phase) {
    for (const { request, slots, since } of phase.running.values()) {
      if (request.idle) continue
      const share = shareOf(request.turn)
      share.slots += slots
      share.had += slots * (now - since)
      share.all += slots * (now - since)
    }
  }
  for (const turn of reloaders) {
    const { reloadedAt } = clients.get(turn) ?? NEW_CLIENT
    if (now - reloadedAt >= COUNTED) reloaders.delete(turn)
    else if (queue.of(turn)) shareOf(turn)
  }
  if (also !== undefined) shareOf(also)
  for (const turn of queue.firstInTurn(turn => !shares.has(turn))) shareOf(turn)
  return shares
}

/** Whether a client has requests running or waiting. */
function isPresent({ phase, queue }: EngineState, turn: string): boolean {
  if (queue.of(turn)) return true
  if (!('running' in phase)) return false
  for (const { request } of phase.running.values()) if (!request.idle && request.turn === turn) return true
  return false
}

/**
 * Adds or updates the client of a new request. A client that is new or returns starts with the least use of the clients
 * present: it does not pay for slots that nobody else wanted, and gains nothing by staying away.
 */
export function joinClients(engine: EngineState, turn: string, now: number): Client {
  const { clients } = engine
  const shares = sharesOf(engine, now)
  if (shares.size > 0) engine.share = Math.max(engine.share, Math.min(...[...shares.values()].map(({ had }) => had)))
  let client = clients.get(turn)
  if (!client) {
    if (clients.size >= MANY_CLIENTS && engine.newClients * 4 >= clients.size) forgetClients(engine, now)
    client = { ...NEW_CLIENT, had: engine.share }
    clients.set(turn, client)
    engine.newClients++
  } else if (!isPresent(engine, turn)) client.had = Math.max(client.had, engine.share)
  client.lastUsed = now
  return client
}

function forgetClients(engine: EngineState, now: number): void {
  const { clients } = engine
  engine.newClients = 0
  for (const [turn, { lastUsed, keepAlive = engine.keepAlive }] of clients) {
    if (!isPresent(engine, turn) && now > lastUsed + Math.max(COUNTED, keepAlive)) clients.delete(turn)
  }
  for (const turn of clients.keys()) {
    if (clients.size < MAX_CLIENTS) break
    if (!isPresent(engine, turn)) clients.delete(turn)
  }
}

/** Returns when an engine without requests is unloaded. Each client's `keep_alive` applies to its own requests. */
export function expiryOf(engine: EngineIn<'ready'>): number {
  const { phase, clients, keepAlive, pinned } = engine
  if (pinned) return Number.POSITIVE_INFINITY
  // Stay loaded between two lines of a batch, even if `keep_alive` is short.
  const ofIdle = phase.idleUsed === undefined ? 0 : phase.idleUsed + Math.max(keepAlive, SOON)
  return Math.max(ofIdle, clients.size === 0 ? phase.lastUsed + keepAlive : clientsExpiry(engine))
}

/** Returns until when clients want it to stay; 0 if no client has used it. */
function clientsExpiry({ phase, clients, keepAlive }: EngineIn<'ready'>): number {
  let latest = 0
  for (const client of clients.values()) {
    latest = Math.max(latest, Math.max(client.lastUsed, phase.readySince) + (client.keepAlive ?? keepAlive))
  }
  return latest
}

/**
 * Returns the options that a request needs. Options that it leaves open may have any value if its own client chose the
 * engine's options; otherwise they are the model's defaults, since one client's choice must not leave others with less.
 */
export function wantedOf(
  { defaults }: Pick<EngineState, 'defaults'>,
  { chosenBy }: { chosenBy: string },
  { turn, options }: QueuedRequest
): Partial<LoadOptions> {
  return turn === chosenBy ? options : { ...defaults, ...options }
}

/**
 * Whether clients other than these wait for the engine, run on it or have used it in the last `within` milliseconds.
 */
function othersUse(engine: EngineState, isOwn: (turn: string) => boolean, now: number, within: number): boolean {
  for (const turn of engine.queue.turns()) if (!isOwn(turn)) return true
  if ('running' in engine.phase) {
    for (const { request } of engine.phase.running.values()) if (!request.idle && !isOwn(request.turn)) return true
  }
  for (const [turn, { lastUsed }] of engine.clients) if (!isOwn(turn) && now - lastUsed < within) return true
  return false
}

/** What to do about the requests that wait for an engine. */
export type Next =
  | { act: 'grant'; request: QueuedRequest; slots: number }
  /** Reload with other options. */
  | { act: 'reload'; request: QueuedRequest }
  /** Keep slots free for it. */
  | { act: 'keep'; request: QueuedRequest }
  /** Nothing now. There may be more to do at this time. */
  | { act: 'wait'; until: number | undefined }

/**
 * Chooses the next request: of the waiting clients, the one with the fewest slots; on a tie the one that has used the
 * engine least; of one client's requests, the first.
 *
 * - A request that slots are kept free for stays next, so nobody overtakes it.
 * - A client with running answers leaves slots free for clients that may return and should not have to wait for an
 *   answer to end: one for each whose last request was less than `SOON` ago, and the last slot for `LATELY`.
 * - A request that needs other options waits while other clients have used the engine less. The time that a reload
 *   takes from everyone is charged to its client (`chargeReload`), so alternating options cost other clients no more
 *   than their share.
 *
 * Background requests run only when no client waits (`nextBackground`). Their slots count as free: a client that is
 * granted one displaces them.
 */
export function nextRequest(engine: EngineIn<'ready'>, now: number): Next {
  return onlyIdleWait(engine) ? nextIdle(engine, now) : nextClient(engine, now)
}

/**
 * Chooses the background request of the client with the fewest slots. One slot stays free for clients. A request that
 * needs all slots waits until no client has used the engine for a while, and one that needs other options until the
 * engine would be unloaded.
 */
function nextIdle(engine: EngineIn<'ready'>, now: number): Next {
  const { queue, phase, clients, maxConcurrent = Number.POSITIVE_INFINITY } = engine
  const { running } = phase
  let free = phase.slots
  const taken = new Map<string, number>()
  for (const { request, slots } of running.values()) {
    free -= slots
    if (request.idle) taken.set(request.turn, (taken.get(request.turn) ?? 0) + slots)
  }
  const takenBy = ({ turn }: QueuedRequest) => taken.get(turn) ?? 0
  const inTurn = [...queue.idle].sort((a, b) => takenBy(a) - takenBy(b) || a.arrivedAt - b.arrivedAt || a.id - b.id)
  const quietAt = Math.max(...[...clients.values()].map(({ lastUsed }) => lastUsed)) + LATELY
  const expires = clientsExpiry(engine)
  const isQuiet = running.size === 0 && now >= quietAt
  let until = quietAt
  for (const request of inTurn) {
    if (!satisfies(phase.options, wantedOf(engine, phase, request))) {
      if (running.size === 0 && now >= expires) return { act: 'reload', request }
      until = now < quietAt ? until : expires
      continue
    }
    const slots = Math.min(request.slots, phase.slots)
    const leavesOne = slots < free && running.size + 1 < maxConcurrent
    if (leavesOne || (isQuiet && (slots === phase.slots || maxConcurrent === 1))) {
      return { act: 'grant', request, slots }
    }
  }
  return { act: 'wait', until: now < until ? until : undefined }
}

function nextClient(engine: EngineIn<'ready'>, now: number): Next {
  const { phase, clients, queue } = engine
  const { keptFor } = phase
  judgeFits(engine)
  const running = [...phase.running.values()].filter(({ request }) => !request.idle)
  let free = phase.slots
  for (const { slots } of running) free -= slots
  const isFull = free < 1 || running.length >= (engine.maxConcurrent ?? Number.POSITIVE_INFINITY)

  const waits = keptFor && queue.get(keptFor.id)
  const kept = waits?.idle ? undefined : waits
  const shares = sharesOf(engine, now, kept?.turn)
  const shareOf = ({ turn }: QueuedRequest) => shares.get(turn)!
  const firsts = [...shares.keys()].flatMap(turn => queue.of(turn)?.first ?? [])
  const inTurn = kept
    ? [kept]
    : firsts.sort((a, b) => {
        const [one, other] = [shareOf(a), shareOf(b)]
        return one.slots - other.slots || one.all - other.all || a.arrivedAt - b.arrivedAt || a.id - b.id
      })

  let gone: number[] | undefined
  let until: number | undefined
  const again = (at: number) => {
    if (Number.isFinite(at)) until = Math.min(until ?? at, at)
  }
  for (const request of inTurn) {
    const own = shareOf(request)
    if (!satisfies(phase.options, wantedOf(engine, phase, request))) {
      const poorer = [...shares.values()].filter(({ turn, all }) => turn !== own.turn && all < own.all)
      if (poorer.length === 0) return { act: 'reload', request }
      // Clients that have slots catch up with time.
      again(now + Math.max(...poorer.map(({ slots, all }) => Math.ceil((own.all - all) / slots))))
      continue
    }
    if (isFull) continue
    const slots = Math.min(request.slots, phase.slots)
    if (own.slots > 0 && request !== kept) {
      const left = Math.min(free - slots, (engine.maxConcurrent ?? Number.POSITIVE_INFINITY) - running.length - 1)
      gone ??= [...clients].filter(([turn]) => !isPresent(engine, turn)).map(([, { lastUsed }]) => lastUsed)
      const comeBackAt = keptUntil(gone, left, now)
      if (comeBackAt !== undefined) {
        again(comeBackAt)
        continue
      }
    }
    if (slots > free) return { act: 'keep', request }
    return { act: 'grant', request, slots }
  }
  return { act: 'wait', until }
}

/** Separates clients in the queue whose first request does not fit the running engine. */
function judgeFits({ phase, queue, defaults }: EngineIn<'ready'>): void {
  const { judged } = phase
  if (judged === defaults || (judged && satisfies(judged, defaults) && satisfies(defaults, judged))) return
  phase.judged = defaults
  queue.judge(request => satisfies(phase.options, wantedOf({ defaults }, phase, request)))
}

/**
 * Returns until when the `left` free slots are kept for clients that may return; undefined if there are enough.
 * @param absent when each client without requests was last here
 */
function keptUntil(gone: readonly number[], left: number, now: number): number | undefined {
  const soon = gone.filter(lastUsed => now - lastUsed < SOON)
  if (soon.length > Math.max(1, left)) return Math.min(...soon) + SOON
  const lately = Math.max(...gone) + LATELY
  return left < 1 && now < lately ? lately : undefined
}

/** Charges a client for a request's use of the engine until now. */
export function chargeSlots({ phase, clients, queue }: EngineState, id: number, now: number): void {
  const taken = 'running' in phase ? phase.running.get(id) : undefined
  const client = taken && !taken.request.idle && clients.get(taken.request.turn)
  if (!client) return
  client.had += taken.slots * (now - taken.since)
  client.lastUsed = now
  queue.reorder(taken.request.turn)
}

/** Charges a reload to its client: nobody could start an answer meanwhile. */
export function chargeReload(
  { clients, reloaders }: EngineState,
  turn: string,
  slots: number,
  since: number,
  now: number
): void {
  const client = clients.get(turn)
  if (!client) return
  const before = now - client.reloadedAt < COUNTED ? client.reloads : 0
  Object.assign(client, { reloads: before + slots * (now - since), reloadedAt: now })
  reloaders.add(turn)
}

/**
 * Returns the request that gives up its place in a full queue: the newest of the client with the most, if this client
 * has fewer.
 */
export function toDisplace(engine: EngineState, turn: string): QueuedRequest | undefined {
  const { mostCrowded } = engine.queue
  if (!mostCrowded || mostCrowded.length <= (engine.queue.of(turn)?.length ?? 0) + 1) return undefined
  return mostCrowded.last
}

function loadsOf({ loads }: SchedulerState, turn: string, now: number): ClientLoads {
  let own = loads.get(turn)
  if (!own) {
    if (loads.size >= MANY_CLIENTS) {
      for (const [other, { last, disturbances }] of loads) {
        if (now - Math.max(last, disturbances.at(-1) ?? 0) > COUNTED) loads.delete(other)
      }
    }
    own = { last: Number.NEGATIVE_INFINITY, disturbances: [] }
    loads.set(turn, own)
  }
  return own
}

/** Records that a load begins for a client. */
export function countLoad(state: SchedulerState, turn: string, now: number): void {
  loadsOf(state, turn, now).last = now
}

/** Records that a client made an engine that others use reload or be evicted. */
export function countDisturbance(state: SchedulerState, turn: string, now: number): void {
  const own = loadsOf(state, turn, now)
  own.disturbances = [...own.disturbances.filter(at => now - at < COUNTED), now]
}

/** Returns when a client may again force a reload of this engine, or undefined if it may now. */
export function mayReloadAt(state: SchedulerState, engine: EngineState, turn: string, now: number): number | undefined {
  if (!othersUse(engine, other => other === turn, now, COUNTED)) return undefined
  return mayDisturbAt(state, turn, now)
}

function mayDisturbAt({ loads, limits }: SchedulerState, turn: string, now: number): number | undefined {
  const counted = loads.get(turn)?.disturbances.filter(at => now - at < COUNTED) ?? []
  if (counted.length < limits.reloads) return undefined
  return (counted.at(-limits.reloads) ?? now) + COUNTED
}

/**
 * Returns since when a plan counts as waiting for room: since one of its clients waits for it without another load in
 * between. A client that loads many models in turn comes behind clients that wait for one.
 */
export function waitsSince({ loads }: SchedulerState, engine: EngineState, { since }: PreparedPlan): number {
  const sinceOf = (turn: string) => Math.max(since, loads.get(turn)?.last ?? Number.NEGATIVE_INFINITY)
  if (onlyIdleWait(engine)) return Math.min(...[...engine.queue.idle].map(({ turn }) => sinceOf(turn)))
  let least = Number.POSITIVE_INFINITY
  for (const turn of engine.queue.turns()) {
    least = Math.min(least, sinceOf(turn))
    // No client can have waited longer. The few examined before had loads since then.
    if (least === since) break
  }
  return least
}

/**
 * Whether clients other than those waiting for the newcomer use an idle engine. They may want it again at any moment.
 */
export function isOfOthers(other: EngineState, newcomer: EngineState, now: number): boolean {
  return isIn(other, 'ready') && othersUse(other, turn => newcomer.queue.of(turn) !== undefined, now, LATELY)
}

/**
 * Whether the client that an engine is loaded for has evicted too many engines of others. It then waits for their turns
 * to end.
 */
export function isGreedy(state: SchedulerState, newcomer: EngineState, now: number): boolean {
  const { first } = wishers(newcomer)
  return first !== undefined && mayDisturbAt(state, first.turn, now) !== undefined
}
