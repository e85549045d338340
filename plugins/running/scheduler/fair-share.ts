import type { LoadOptions } from '../../../core/models/load-options.ts'
import type { QueuedRequest } from './request-queue.ts'
import {
  type Client,
  type ClientLoads,
  decidingRequests,
  type EngineInPhase,
  type EngineState,
  isIn,
  onlyBackgroundWaits,
  type PreparedPlan,
  type SchedulerState,
  satisfies
} from './scheduler-state.ts'

/* How clients share an engine's slots, its load options and the machine's memory. A client is a key or an address. */

/** Milliseconds for which an idle client may return and keeps a slot free … */
const MAY_RETURN_MS = 60_000
/** … and for which it is expected to, as programs do. */
const RETURNS_SOON_MS = 2000
/** Milliseconds for which a client's loads and forced reloads are counted. */
const HISTORY_MS = 600_000
/** From this number of clients on, old ones are forgotten … */
const FORGET_FROM_CLIENTS = 100
/** … down to this number. */
const MAX_CLIENTS = 1000

interface Share {
  clientId: string
  slots: number
  /** Slots × milliseconds, including running answers … */
  used: number
  /** … and including its reloads. */
  all: number
}

const NEW_CLIENT: Client = {
  used: 0,
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
function getShares(engine: EngineState, now: number, also?: string): Map<string, Share> {
  const { phase, queue, clients, reloaders } = engine
  const shares = new Map<string, Share>()
  const getShare = (clientId: string) => {
    let share = shares.get(clientId)
    if (!share) {
      const { used, reloads, reloadedAt } = clients.get(clientId) ?? NEW_CLIENT
      share = { clientId, slots: 0, used, all: used + (now - reloadedAt < HISTORY_MS ? reloads : 0) }
      shares.set(clientId, share)
    }
    return share
  }
  if ('running' in phase) {
    for (const { request, slots, since } of phase.running.values()) {
      if (request.background) continue
      const share = getShare(request.clientId)
      share.slots += slots
      share.used += slots * (now - since)
      share.all += slots * (now - since)
    }
  }
  for (const clientId of reloaders) {
    const { reloadedAt } = clients.get(clientId) ?? NEW_CLIENT
    if (now - reloadedAt >= HISTORY_MS) reloaders.delete(clientId)
    else if (queue.byClient(clientId)) getShare(clientId)
  }
  if (also !== undefined) getShare(also)
  for (const clientId of queue.firstByShare(clientId => !shares.has(clientId))) getShare(clientId)
  return shares
}

function isPresent({ phase, queue }: EngineState, clientId: string): boolean {
  if (queue.byClient(clientId)) return true
  if (!('running' in phase)) return false
  for (const { request } of phase.running.values())
    if (!request.background && request.clientId === clientId) return true
  return false
}

/**
 * Adds or updates the client of a new request. A client that is new or returns starts with the least use of the clients
 * present: it does not pay for slots that nobody else wanted, and gains nothing by staying away.
 */
export function joinClients(engine: EngineState, clientId: string, now: number): Client {
  const { clients } = engine
  const shares = getShares(engine, now)
  if (shares.size > 0) engine.share = Math.max(engine.share, Math.min(...[...shares.values()].map(({ used }) => used)))
  let client = clients.get(clientId)
  if (!client) {
    if (clients.size >= FORGET_FROM_CLIENTS && engine.newClients * 4 >= clients.size) forgetClients(engine, now)
    client = { ...NEW_CLIENT, used: engine.share }
    clients.set(clientId, client)
    engine.newClients++
  } else if (!isPresent(engine, clientId)) client.used = Math.max(client.used, engine.share)
  client.lastUsed = now
  return client
}

function forgetClients(engine: EngineState, now: number): void {
  const { clients } = engine
  engine.newClients = 0
  for (const [clientId, { lastUsed, keepAlive = engine.keepAlive }] of clients) {
    if (!isPresent(engine, clientId) && now > lastUsed + Math.max(HISTORY_MS, keepAlive)) clients.delete(clientId)
  }
  for (const clientId of clients.keys()) {
    if (clients.size < MAX_CLIENTS) break
    if (!isPresent(engine, clientId)) clients.delete(clientId)
  }
}

/** Returns when an engine without requests is unloaded. Each client's `keep_alive` applies to its own requests. */
export function getExpiry(engine: EngineInPhase<'ready'>): number {
  const { phase, clients, keepAlive, pinned } = engine
  if (pinned) return Number.POSITIVE_INFINITY
  // Stay loaded between two lines of a batch, even if `keep_alive` is short.
  const backgroundExpiry =
    phase.backgroundUsed === undefined ? 0 : phase.backgroundUsed + Math.max(keepAlive, RETURNS_SOON_MS)
  return Math.max(backgroundExpiry, clients.size === 0 ? phase.lastUsed + keepAlive : clientsExpiry(engine))
}

/** Returns until when clients want it to stay; 0 if no client has used it. */
function clientsExpiry({ phase, clients, keepAlive }: EngineInPhase<'ready'>): number {
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
export function getWantedOptions(
  { defaults }: Pick<EngineState, 'defaults'>,
  { chosenBy }: { chosenBy: string },
  { clientId, options }: QueuedRequest
): Partial<LoadOptions> {
  return clientId === chosenBy ? options : { ...defaults, ...options }
}

/** Whether other clients wait for the engine, run on it or have used it in the last `within` milliseconds. */
function hasOtherClients(
  engine: EngineState,
  isOwn: (clientId: string) => boolean,
  now: number,
  within: number
): boolean {
  for (const clientId of engine.queue.clientIds()) if (!isOwn(clientId)) return true
  if ('running' in engine.phase) {
    for (const { request } of engine.phase.running.values())
      if (!request.background && !isOwn(request.clientId)) return true
  }
  for (const [clientId, { lastUsed }] of engine.clients) if (!isOwn(clientId) && now - lastUsed < within) return true
  return false
}

/** What to do about the requests that wait for an engine. */
export type Next =
  | { act: 'grant'; request: QueuedRequest; slots: number }
  | { act: 'reload'; request: QueuedRequest }
  | { act: 'keep'; request: QueuedRequest }
  /** Nothing now. There may be more to do at this time. */
  | { act: 'wait'; until: number | undefined }

/**
 * Chooses the next request: of the waiting clients, the one with the fewest slots; on a tie the one that has used the
 * engine least; of one client's requests, the first.
 *
 * - A request that slots are kept free for stays next, so nobody overtakes it.
 * - A client with running answers leaves slots free for clients that may return and should not have to wait for an
 *   answer to end: one for each whose last request was less than `RETURNS_SOON_MS` ago, and the last slot for `MAY_RETURN_MS`.
 * - A request that needs other options waits while other clients have used the engine less. The time that a reload
 *   takes from everyone is charged to its client (`chargeReload`), so alternating options cost other clients no more
 *   than their share.
 *
 * Background requests run only when no client waits (`nextBackground`). Their slots count as free: a client that is
 * granted one displaces them.
 */
export function nextRequest(engine: EngineInPhase<'ready'>, now: number): Next {
  return onlyBackgroundWaits(engine) ? nextBackground(engine, now) : nextClient(engine, now)
}

/**
 * Chooses the background request of the client with the fewest slots. One slot stays free for clients. A request that
 * needs all slots waits until no client has used the engine for a while, and a request that needs other options until the
 * engine would be unloaded.
 */
function nextBackground(engine: EngineInPhase<'ready'>, now: number): Next {
  const { queue, phase, clients, maxConcurrent = Number.POSITIVE_INFINITY } = engine
  const { running } = phase
  let free = phase.slots
  const taken = new Map<string, number>()
  for (const { request, slots } of running.values()) {
    free -= slots
    if (request.background) taken.set(request.clientId, (taken.get(request.clientId) ?? 0) + slots)
  }
  const getTaken = ({ clientId }: QueuedRequest) => taken.get(clientId) ?? 0
  const byShare = [...queue.background].sort(
    (a, b) => getTaken(a) - getTaken(b) || a.arrivedAt - b.arrivedAt || a.id - b.id
  )
  const quietAt = Math.max(...[...clients.values()].map(({ lastUsed }) => lastUsed)) + MAY_RETURN_MS
  const expires = clientsExpiry(engine)
  const isQuiet = running.size === 0 && now >= quietAt
  let until = quietAt
  for (const request of byShare) {
    if (!satisfies(phase.options, getWantedOptions(engine, phase, request))) {
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

function nextClient(engine: EngineInPhase<'ready'>, now: number): Next {
  const { phase, clients, queue } = engine
  const { keptFor } = phase
  judgeFits(engine)
  const running = [...phase.running.values()].filter(({ request }) => !request.background)
  let free = phase.slots
  for (const { slots } of running) free -= slots
  const isFull = free < 1 || running.length >= (engine.maxConcurrent ?? Number.POSITIVE_INFINITY)

  const waits = keptFor && queue.get(keptFor.id)
  const kept = waits?.background ? undefined : waits
  const shares = getShares(engine, now, kept?.clientId)
  const getShare = ({ clientId }: QueuedRequest) => shares.get(clientId)!
  const firsts = [...shares.keys()].flatMap(clientId => queue.byClient(clientId)?.first ?? [])
  const byShare = kept
    ? [kept]
    : firsts.sort((a, b) => {
        const [one, other] = [getShare(a), getShare(b)]
        return one.slots - other.slots || one.all - other.all || a.arrivedAt - b.arrivedAt || a.id - b.id
      })

  let gone: number[] | undefined
  let until: number | undefined
  const again = (at: number) => {
    if (Number.isFinite(at)) until = Math.min(until ?? at, at)
  }
  for (const request of byShare) {
    const own = getShare(request)
    if (!satisfies(phase.options, getWantedOptions(engine, phase, request))) {
      const poorer = [...shares.values()].filter(({ clientId, all }) => clientId !== own.clientId && all < own.all)
      if (poorer.length === 0) return { act: 'reload', request }
      // Clients that have slots catch up with time.
      again(now + Math.max(...poorer.map(({ slots, all }) => Math.ceil((own.all - all) / slots))))
      continue
    }
    if (isFull) continue
    const slots = Math.min(request.slots, phase.slots)
    if (own.slots > 0 && request !== kept) {
      const left = Math.min(free - slots, (engine.maxConcurrent ?? Number.POSITIVE_INFINITY) - running.length - 1)
      gone ??= [...clients].filter(([clientId]) => !isPresent(engine, clientId)).map(([, { lastUsed }]) => lastUsed)
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
function judgeFits({ phase, queue, defaults }: EngineInPhase<'ready'>): void {
  const { judged } = phase
  if (judged === defaults || (judged && satisfies(judged, defaults) && satisfies(defaults, judged))) return
  phase.judged = defaults
  queue.judge(request => satisfies(phase.options, getWantedOptions({ defaults }, phase, request)))
}

/**
 * Returns until when the `left` free slots are kept for clients that may return; undefined if there are enough.
 * @param absent when each client without requests was last here
 */
function keptUntil(gone: readonly number[], left: number, now: number): number | undefined {
  const soon = gone.filter(lastUsed => now - lastUsed < RETURNS_SOON_MS)
  if (soon.length > Math.max(1, left)) return Math.min(...soon) + RETURNS_SOON_MS
  const lately = Math.max(...gone) + MAY_RETURN_MS
  return left < 1 && now < lately ? lately : undefined
}

export function chargeSlots({ phase, clients, queue }: EngineState, id: number, now: number): void {
  const taken = 'running' in phase ? phase.running.get(id) : undefined
  const client = taken && !taken.request.background && clients.get(taken.request.clientId)
  if (!client) return
  client.used += taken.slots * (now - taken.since)
  client.lastUsed = now
  queue.reorder(taken.request.clientId)
}

/** Charges a reload to its client: nobody could start an answer meanwhile. */
export function chargeReload(
  { clients, reloaders }: EngineState,
  clientId: string,
  slots: number,
  since: number,
  now: number
): void {
  const client = clients.get(clientId)
  if (!client) return
  const before = now - client.reloadedAt < HISTORY_MS ? client.reloads : 0
  Object.assign(client, { reloads: before + slots * (now - since), reloadedAt: now })
  reloaders.add(clientId)
}

/**
 * Returns the request that gives up its place in a full queue: the newest of the client with the most. Answers that
 * have begun keep theirs.
 */
export function findDisplaceable(engine: EngineState, clientId: string): QueuedRequest | undefined {
  const { mostCrowded } = engine.queue
  if (!mostCrowded || mostCrowded.length <= (engine.queue.byClient(clientId)?.length ?? 0) + 1) return undefined
  return mostCrowded.items.findLast(({ continues }) => !continues)
}

function getLoads({ loads }: SchedulerState, clientId: string, now: number): ClientLoads {
  let own = loads.get(clientId)
  if (!own) {
    if (loads.size >= FORGET_FROM_CLIENTS) {
      for (const [other, { last, forcedReloads }] of loads) {
        if (now - Math.max(last, forcedReloads.at(-1) ?? 0) > HISTORY_MS) loads.delete(other)
      }
    }
    own = { last: Number.NEGATIVE_INFINITY, forcedReloads: [] }
    loads.set(clientId, own)
  }
  return own
}

export function countLoad(state: SchedulerState, clientId: string, now: number): void {
  getLoads(state, clientId, now).last = now
}

/** Records that a client made an engine that others use reload or be evicted. */
export function countForcedReload(state: SchedulerState, clientId: string, now: number): void {
  const own = getLoads(state, clientId, now)
  own.forcedReloads = [...own.forcedReloads.filter(at => now - at < HISTORY_MS), now]
}

/** Returns when a client may again force a reload of this engine, or undefined if it may now. */
export function nextReloadAt(
  state: SchedulerState,
  engine: EngineState,
  clientId: string,
  now: number
): number | undefined {
  if (!hasOtherClients(engine, other => other === clientId, now, HISTORY_MS)) return undefined
  return nextForcedReloadAt(state, clientId, now)
}

function nextForcedReloadAt({ loads, limits }: SchedulerState, clientId: string, now: number): number | undefined {
  const counted = loads.get(clientId)?.forcedReloads.filter(at => now - at < HISTORY_MS) ?? []
  if (counted.length < limits.reloads) return undefined
  return (counted.at(-limits.reloads) ?? now) + HISTORY_MS
}

/**
 * Returns since when a plan counts as waiting for room: since one of its clients waits for it without another load in
 * between. A client that loads many models in turn comes behind clients that wait for one.
 */
export function waitsSince({ loads }: SchedulerState, engine: EngineState, { since }: PreparedPlan): number {
  const getSince = (clientId: string) => Math.max(since, loads.get(clientId)?.last ?? Number.NEGATIVE_INFINITY)
  if (onlyBackgroundWaits(engine))
    return Math.min(...[...engine.queue.background].map(({ clientId }) => getSince(clientId)))
  let least = Number.POSITIVE_INFINITY
  for (const clientId of engine.queue.clientIds()) {
    least = Math.min(least, getSince(clientId))
    // No client can have waited longer. The few examined before had loads since then.
    if (least === since) break
  }
  return least
}

/** Whether clients other than those waiting for the newcomer use an idle engine, and may want it again soon. */
export function isUsedByOthers(other: EngineState, newcomer: EngineState, now: number): boolean {
  return (
    isIn(other, 'ready') &&
    hasOtherClients(other, clientId => newcomer.queue.byClient(clientId) !== undefined, now, MAY_RETURN_MS)
  )
}

/** Whether the client that an engine is loaded for has evicted too many of others. It waits for their turns. */
export function isGreedy(state: SchedulerState, newcomer: EngineState, now: number): boolean {
  const { first } = decidingRequests(newcomer)
  return first !== undefined && nextForcedReloadAt(state, first.clientId, now) !== undefined
}
