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
 * How clients share what there is by turns: the slots of an engine, its place in memory, its load options. A client is
 * known by its `turn`: its key, or its address. What is decided with this is in `decide.ts` and `eviction.ts`.
 */

/** Milliseconds for which a client that has nothing running counts as one that may come back any moment. */
const LATELY = 60_000
/** … and as one that asks again at once, as programs do. */
const SOON = 2000
/** Milliseconds in which a client's loads and disturbances are counted. */
const COUNTED = 600_000
/** From so many clients on those that have gone are forgotten … */
const MANY_CLIENTS = 100
/** … and no more than about so many are remembered. */
const MAX_CLIENTS = 1000

/** What a client has of an engine now. */
interface Share {
  turn: string
  /** Slots of its answers that run. */
  slots: number
  /** Slots × milliseconds, with the answers that run … */
  had: number
  /** … and with its reloads. */
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
 * What clients have that have requests running or waiting. Of those that wait with nothing running, which may be many,
 * only the first in turn matter, and `also`: the queue has them in order. Those who had reloads lately are compared
 * apart, as what counts of these ends with time.
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
 * A client of an engine, at one of its requests. One that comes (again) begins with the least share that those who are
 * here have had: it need not wait for what it took while nobody else wanted it, and gains nothing by staying away.
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

/** When an engine that has nothing to do is unloaded: each client's wish holds for its own requests. */
export function expiryOf(engine: EngineIn<'ready'>): number {
  const { phase, clients, keepAlive, pinned } = engine
  if (pinned) return Number.POSITIVE_INFINITY
  // Between two lines of a batch it stays, however short it is kept for clients.
  const ofIdle = phase.idleUsed === undefined ? 0 : phase.idleUsed + Math.max(keepAlive, SOON)
  return Math.max(ofIdle, clients.size === 0 ? phase.lastUsed + keepAlive : clientsExpiry(engine))
}

/** Until when clients want it to stay; 0 where none has used it. */
function clientsExpiry({ phase, clients, keepAlive }: EngineIn<'ready'>): number {
  let latest = 0
  for (const client of clients.values()) {
    latest = Math.max(latest, Math.max(client.lastUsed, phase.readySince) + (client.keepAlive ?? keepAlive))
  }
  return latest
}

/**
 * What a request wants of an engine. What it leaves open it leaves to the engine, where the options were chosen for its
 * own client; what another client has chosen is no reason for it to have less than the model's defaults.
 */
export function wantedOf(
  { defaults }: Pick<EngineState, 'defaults'>,
  { chosenBy }: { chosenBy: string },
  { turn, options }: QueuedRequest
): Partial<LoadOptions> {
  return turn === chosenBy ? options : { ...defaults, ...options }
}

/** Whether others than these clients have used the engine in the last so many milliseconds, wait for it or run. */
function othersUse(engine: EngineState, isOwn: (turn: string) => boolean, now: number, within: number): boolean {
  for (const turn of engine.queue.turns()) if (!isOwn(turn)) return true
  if ('running' in engine.phase) {
    for (const { request } of engine.phase.running.values()) if (!request.idle && !isOwn(request.turn)) return true
  }
  for (const [turn, { lastUsed }] of engine.clients) if (!isOwn(turn) && now - lastUsed < within) return true
  return false
}

/** What is to be done for the requests that wait for an engine. */
export type Next =
  | { act: 'grant'; request: QueuedRequest; slots: number }
  /** It needs other options. */
  | { act: 'reload'; request: QueuedRequest }
  /** Slots are kept free for it. */
  | { act: 'keep'; request: QueuedRequest }
  /** Nothing now; at this time there may be more. */
  | { act: 'wait'; until: number | undefined }

/**
 * Whose request is next: of the clients that wait, the one with the fewest slots; among those with as many, the one that
 * has had least of them so far. Of one client's requests the first one.
 *
 * - One that slots are kept free for stays next: nobody overtakes it until there are enough.
 * - A client with answers of its own leaves slots free for those who come back, and so need not wait for the end of an
 *   answer: one for each whose last request was less than `SOON` ago, and the last one for `LATELY`.
 * - One that needs other options has to wait while others who use the engine have had less than its client. What a reload
 *   takes from all counts as had by the client that it is for (`chargeReload`), so that options which alternate cost
 *   nobody else more than their share.
 *
 * Those that take only what is idle (lines of batches) come when no client waits (`nextIdle`), and what they have counts
 * as free for clients: whoever is granted it displaces them.
 */
export function nextRequest(engine: EngineIn<'ready'>, now: number): Next {
  return onlyIdleWait(engine) ? nextIdle(engine, now) : nextClient(engine, now)
}

/**
 * Of those that take what is idle, the first of the one with the fewest slots. One slot stays free for clients; what needs
 * all of them has to wait until no client has used the engine for a while, and what needs other options until the engine
 * would be unloaded.
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
      // Those that have slots catch up with time.
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

/** Has the queue keep those apart whose first request does not fit what runs. */
function judgeFits({ phase, queue, defaults }: EngineIn<'ready'>): void {
  const { judged } = phase
  if (judged === defaults || (judged && satisfies(judged, defaults) && satisfies(defaults, judged))) return
  phase.judged = defaults
  queue.judge(request => satisfies(phase.options, wantedOf({ defaults }, phase, request)))
}

/**
 * Until when so few free slots are for clients that may come back; undefined where there are enough.
 * @param gone when each of those that have nothing running and nothing waiting was last here
 */
function keptUntil(gone: readonly number[], left: number, now: number): number | undefined {
  const soon = gone.filter(lastUsed => now - lastUsed < SOON)
  if (soon.length > Math.max(1, left)) return Math.min(...soon) + SOON
  const lately = Math.max(...gone) + LATELY
  return left < 1 && now < lately ? lately : undefined
}

/** Counts what a request has had of an engine until now. */
export function chargeSlots({ phase, clients, queue }: EngineState, id: number, now: number): void {
  const taken = 'running' in phase ? phase.running.get(id) : undefined
  const client = taken && !taken.request.idle && clients.get(taken.request.turn)
  if (!client) return
  client.had += taken.slots * (now - taken.since)
  client.lastUsed = now
  queue.reorder(taken.request.turn)
}

/** Counts a reload as had by its client: since then nobody could begin an answer. */
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

// ---- the queue -------------------------------------------------------------------------------------------------------

/** The request that gives up its place in a full queue: the newest of the client with most, if this one has fewer. */
export function toDisplace(engine: EngineState, turn: string): QueuedRequest | undefined {
  const { mostCrowded } = engine.queue
  if (!mostCrowded || mostCrowded.length <= (engine.queue.of(turn)?.length ?? 0) + 1) return undefined
  return mostCrowded.last
}

// ---- loads -----------------------------------------------------------------------------------------------------------

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

/** Notes that a load begins for a client. */
export function countLoad(state: SchedulerState, turn: string, now: number): void {
  loadsOf(state, turn, now).last = now
}

/** Notes that a client has an engine loaded anew or evicted that others use. */
export function countDisturbance(state: SchedulerState, turn: string, now: number): void {
  const own = loadsOf(state, turn, now)
  own.disturbances = [...own.disturbances.filter(at => now - at < COUNTED), now]
}

/** When a client may disturb others again that use this engine; undefined where it may now. */
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
 * Since when a plan counts as waiting for room: since one of its clients waits for it and had no other model loaded. Who
 * has many models loaded in turn so comes behind those who wait for one.
 */
export function waitsSince({ loads }: SchedulerState, engine: EngineState, { since }: PreparedPlan): number {
  const sinceOf = (turn: string) => Math.max(since, loads.get(turn)?.last ?? Number.NEGATIVE_INFINITY)
  if (onlyIdleWait(engine)) return Math.min(...[...engine.queue.idle].map(({ turn }) => sinceOf(turn)))
  let least = Number.POSITIVE_INFINITY
  for (const turn of engine.queue.turns()) {
    least = Math.min(least, sinceOf(turn))
    // None can have waited longer: those looked at before had loads since then, which are few.
    if (least === since) break
  }
  return least
}

/** Whether an idle engine is used by others than those who wait for the newcomer: it may be wanted again any moment. */
export function isOfOthers(other: EngineState, newcomer: EngineState, now: number): boolean {
  return isIn(other, 'ready') && othersUse(other, turn => newcomer.queue.of(turn) !== undefined, now, LATELY)
}

/** Whether the client that an engine is loaded for has had too many engines of others evicted: it waits for their turn. */
export function isGreedy(state: SchedulerState, newcomer: EngineState, now: number): boolean {
  const { first } = wishers(newcomer)
  return first !== undefined && mayDisturbAt(state, first.turn, now) !== undefined
}
