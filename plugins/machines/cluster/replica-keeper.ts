import type { FastifyBaseLogger } from 'fastify'
import type { EngineMode } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { ReplicasRecord } from '../../../core/contracts/native-records.ts'
import type { Progress } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { dateAt } from '../../../core/system/clock.ts'
import { ASK_PATH, type AskBody } from './asking/ask-protocol.ts'
import type { Copies } from './copying/copies.ts'
import type { ClusterNode } from './nodes/node.ts'
import type { ClusterNodes } from './nodes/nodes.ts'
import { type Choice, chooseLoad, type Host, modelKey, type NodeView } from './placement/choose-node.ts'

export interface ReplicaBounds {
  /** Minimum, if there is room. 0 loads it only on request. */
  min: number
  /** At least `min`. Infinite means no limit. */
  max: number
  /** Milliseconds for which fewer must be enough before one is unloaded. */
  cooldown: number
}

export interface ReplicaLoad {
  loaded: number
  loading: number
  /** Slots of the nodes that have it loaded … */
  slots: number
  /** … and the slots that a new request would get immediately: free slots of nodes without a queue. */
  free: number
  running: number
  queued: number
}

/** Since when (milliseconds) there are fewer than the minimum, too few for the demand, or too many. */
export interface ReplicaState {
  shortSince?: number | undefined
  longSince?: number | undefined
  idleSince?: number | undefined
  loaded?: number
}

export interface ReplicaDecision {
  state: ReplicaState
  /** The number of nodes that should have it: more are loaded, or idle ones are unloaded. */
  wanted: number
  /** Why there should be more or fewer, or why this number is right. */
  why: 'minimum' | 'queue' | 'idle' | 'maximum' | 'enough'
  /** The time of the next decision if nothing changes before. */
  at: number | undefined
}

/** Milliseconds for which a queue must be long, or a minimum missed, before a replica is added. */
const GROW_AFTER_MS = 2000
/** There are too many nodes if the demand takes at most this share of the slots of one node fewer. */
const IDLE_SHARE = 0.5
/** Machines are asked for after this many milliseconds without room. */
const LACKING_AFTER_MS = 30_000

/**
 * Decides how many nodes should have a model in memory. Called whenever its load has changed, and at `at`.
 *
 * - More, when no slot is free and the queue is at least half as long as a node has slots: enough for the demand, but
 *   at most twice as many as now, and none while one is loading.
 * - `min`, if there are fewer.
 * - One less, when half the slots of the others would be enough, until one is gone.
 * - Otherwise the current number: a model that its node unloads because it is unused is not loaded again.
 *
 * Demand must stay high or low for a while, to prevent flapping. `max` always applies.
 */
export function decideReplicas(
  before: ReplicaState,
  load: ReplicaLoad,
  { min, max, cooldown }: ReplicaBounds,
  now: number
): ReplicaDecision {
  const { loaded, loading, slots, free, running, queued } = load
  const asked = running + queued
  const each = loaded ? Math.max(1, slots / loaded) : 1
  const present = loaded + loading

  const isLong = loaded > 0 && !loading && !free && queued >= each / 2
  const isIdle = loaded > Math.max(1, min) && !loading && asked <= IDLE_SHARE * each * (loaded - 1)
  const longSince = isLong ? (before.longSince ?? now) : undefined
  // The next one has its own cooldown.
  const idleSince = isIdle ? ((before.loaded === loaded ? before.idleSince : undefined) ?? now) : undefined
  const shortSince = present < min ? (before.shortSince ?? now) : undefined
  const decide = (count: number, why: ReplicaDecision['why'], at?: number): ReplicaDecision => {
    const wanted = Math.min(count, max)
    return {
      state: { shortSince, longSince, idleSince, loaded },
      wanted,
      why: wanted < count ? 'maximum' : why,
      at
    }
  }

  if (shortSince !== undefined) {
    // A node that is lost for a moment need not be replaced.
    if (now < shortSince + GROW_AFTER_MS) return decide(present, 'enough', shortSince + GROW_AFTER_MS)
    return decide(min, 'minimum')
  }
  if (longSince !== undefined) {
    if (now < longSince + GROW_AFTER_MS) return decide(present, 'enough', longSince + GROW_AFTER_MS)
    // The queue stays long until there are more.
    return decide(Math.max(loaded + 1, Math.min(Math.ceil(asked / each), 2 * loaded)), 'queue')
  }
  if (idleSince !== undefined) {
    if (now < idleSince + cooldown) return decide(present, 'enough', idleSince + cooldown)
    return decide(loaded - 1, 'idle')
  }
  return decide(present, 'enough')
}

/** The nodes of a source that can add machines, over all models. */
export interface MachineLoad {
  /** Nodes that it reports … */
  known: number
  /** … the nodes among them that are up … */
  present: number
  /** … and the nodes among those with a model in memory or loading. */
  occupied: number
  lacking: number
}

export interface MachineState {
  wanted: number
  /** Start of the current lack of room, in milliseconds. */
  lackingSince?: number | undefined
  /** Since when fewer nodes have been needed, and the maximum needed since then. */
  low?: { since: number; peak: number } | undefined
}

/**
 * Decides the minimum number of a source's nodes. Called whenever the load has changed, and at `at`.
 *
 * - More, when room has been lacking for a while.
 * - Fewer, down to the maximum number that had models in memory during the cooldown. So a pause of the clients or the
 *   restart of a node does not release a machine.
 *
 * @param before undefined at first: the reported nodes then count as wanted
 * @param cooldown milliseconds for which fewer nodes must be enough
 */
export function decideMachines(
  before: MachineState | undefined,
  { known, present, occupied, lacking }: MachineLoad,
  cooldown: number,
  now: number
): { state: MachineState; at: number | undefined } {
  const lackingSince = lacking > 0 ? (before?.lackingSince ?? now) : undefined
  const isLacking = lackingSince !== undefined && now >= lackingSince + LACKING_AFTER_MS
  const need = isLacking ? present + lacking : occupied
  const wanted = before?.wanted ?? known
  const low = before?.low ?? { since: now, peak: need }
  const peak = Math.max(low.peak, need)
  const isOver = now >= low.since + cooldown
  const state: MachineState = { wanted: need >= wanted ? need : isOver ? peak : wanted, lackingSince }
  if (state.wanted > need) state.low = isOver ? { since: now, peak: need } : { since: low.since, peak }
  const times = [
    ...(lackingSince === undefined || isLacking ? [] : [lackingSince + LACKING_AFTER_MS]),
    ...(state.low ? [state.low.since + cooldown] : [])
  ]
  return { state, at: times.length > 0 ? Math.min(...times) : undefined }
}

/** Milliseconds in which changes of nodes are handled together. */
const DEBOUNCE_MS = 200
/** Milliseconds until a failed load is tried again there: first and maximum. */
const FIRST_RETRY_MS = 15_000
const MAX_RETRY_MS = 10 * 60_000
/** Milliseconds that a load may wait for room or for other loads until another node is tried. */
const ROOM_TIMEOUT_MS = 15_000
/** Milliseconds between two requests that keep a minimum in memory: shortest and longest. */
const [MIN_RENEWAL_MS, MAX_RENEWAL_MS] = [1000, 60_000]

interface ReplicaKeeperOptions {
  members: ClusterNodes
  copies: Pick<Copies, 'copy'>
  /** Returns the limits of a variant by its key; undefined if this server does not ask nodes for it. */
  getBounds(variant: string): { variant: Model; bounds: ReplicaBounds } | undefined
  minimums(): Iterable<string>
  /** Milliseconds for which fewer machines must be enough. */
  cooldown(): number
  changed(): void
  log: Pick<FastifyBaseLogger, 'info' | 'warn'>
}

/** This server's work for a model in one mode. The maps are by names of nodes. */
interface Kept {
  /** As `modelKey` returns it. */
  readonly key: string
  readonly mode: EngineMode
  variant: Model
  state: ReplicaState
  /** Nodes on which this server loaded it as a replica. It is unloaded only there. */
  readonly own: Set<string>
  readonly loads: Set<string>
  readonly failures: Map<string, { count: number; message: string; retryAt: number }>
  /** When a minimum was last loaded or renewed there. */
  readonly renewed: Map<string, number>
}

/**
 * Keeps each model in memory on as many nodes as `decideReplicas` says, and asks for machines if the nodes have no
 * room. It decides from the nodes' own reports, so that several gateways decide alike: loads started by other gateways
 * count, and all gateways choose the same node among equal ones.
 *
 * Loads use only free memory: they are background requests, so a node evicts no model in use for them. Only replicas
 * that were loaded by this server are unloaded, when they are idle.
 */
export class ReplicaKeeper {
  readonly #options: ReplicaKeeperOptions
  readonly #kept = new Map<string, Kept>()
  /** By names of sources that can add machines. */
  readonly #machines = new Map<string, MachineState>()
  readonly #closed = new AbortController()
  #isOpen = false
  #timer: NodeJS.Timeout | undefined
  #due = Number.POSITIVE_INFINITY
  #records: readonly ReplicasRecord[] = []

  constructor(options: ReplicaKeeperOptions) {
    this.#options = options
  }

  /** Starts after nodes have reported their models. */
  open(): void {
    this.#isOpen = true
    this.look()
  }

  close(): void {
    this.#isOpen = false
    clearTimeout(this.#timer)
    this.#closed.abort()
  }

  records(): readonly ReplicasRecord[] {
    return this.#records
  }

  /** Returns how many nodes a source should have. Undefined if it cannot add any. */
  wanted(source: string): number | undefined {
    return this.#machines.get(source)?.wanted
  }

  /** Decides again in a moment, because something has changed. */
  look(): void {
    this.#lookAt(performance.now() + DEBOUNCE_MS)
  }

  unloaded(member: string, model: string): void {
    const kept = this.#kept.get(model)
    kept?.own.delete(member)
    kept?.renewed.delete(member)
  }

  #lookAt(at: number): void {
    if (!this.#isOpen || at >= this.#due) return
    clearTimeout(this.#timer)
    this.#due = at
    this.#timer = setTimeout(
      () => {
        this.#due = Number.POSITIVE_INFINITY
        this.#decide(performance.now())
      },
      Math.max(0, at - performance.now())
    ).unref()
  }

  #decide(now: number): void {
    const { members, changed } = this.#options
    const minimums = new Set<string>()
    for (const variant of this.#options.minimums()) {
      const mode = members.described(variant)?.modes[0]
      if (mode) minimums.add(modelKey(variant, mode))
    }
    const keys = new Set([...minimums, ...this.#kept.keys()])
    for (const member of members.all()) for (const key of member.engines) keys.add(key)

    const records: ReplicasRecord[] = []
    const chosen = new Set<string>()
    let lacking = 0
    // All gateways use the same order.
    for (const key of [...keys].sort()) {
      const known = this.#options.getBounds(key.slice(0, key.lastIndexOf('#')))
      if (!known) {
        this.#kept.delete(key)
        continue
      }
      const { variant, bounds } = known
      const kept = this.#kept.get(key) ?? newKept(key, variant)
      kept.variant = variant
      const { record, missing } = this.#adjust(kept, minimums.has(key) ? bounds : { ...bounds, min: 0 }, chosen, now)
      if (record) records.push(record)
      lacking = Math.max(lacking, missing)
    }
    this.#askForMachines(lacking, chosen, now)
    if (JSON.stringify(records) === JSON.stringify(this.#records)) return
    this.#records = records
    changed()
  }

  /** Loads a model at more nodes, or unloads it at some. @returns how many nodes would have to be added */
  #adjust(kept: Kept, bounds: ReplicaBounds, chosen: Set<string>, now: number) {
    const { members } = this.#options
    const { key } = kept
    for (const set of [kept.own, kept.failures, kept.renewed]) {
      for (const member of set.keys()) if (!members.get(member)) set.delete(member)
    }
    const up = members.view.hosts(key).all.filter(({ member }) => member.state === 'up')
    const loaded = up.filter(({ model }) => model.state === 'loaded')
    const loading = new Set(up.filter(({ model }) => model.state === 'loading').map(({ member }) => member.name))
    // After a load request, a node may not have reported the load yet, or may copy the model first.
    for (const name of kept.loads) if (!loaded.some(({ member }) => member.name === name)) loading.add(name)
    const sum = (hosts: readonly Host[], number: (host: Host) => number) =>
      hosts.reduce((total, host) => total + number(host), 0)
    const decision = decideReplicas(
      kept.state,
      {
        loaded: loaded.length,
        loading: loading.size,
        slots: sum(loaded, ({ model }) => model.slots),
        free: sum(loaded, ({ model }) => (model.queued > 0 ? 0 : Math.max(0, model.slots - model.running))),
        running: sum(up, ({ model }) => model.running),
        queued: sum(up, ({ model }) => model.queued)
      },
      bounds,
      now
    )
    kept.state = decision.state
    if (decision.at !== undefined) this.#lookAt(decision.at)

    const { wanted } = decision
    const present = loaded.length + loading.size
    const more = this.#grow(kept, wanted - present, chosen, now)
    const minimum = loaded.slice(0, bounds.min)
    this.#renew(kept, minimum, now)
    if (wanted < present) this.#shrink(kept, loaded, minimum, loaded.length - wanted)

    const isIdle = present === 0 && bounds.min === 0 && kept.failures.size === 0
    if (isIdle) this.#kept.delete(key)
    else this.#kept.set(key, kept)
    return {
      missing: more.missing,
      record: isIdle
        ? undefined
        : {
            model: kept.variant.publicName,
            mode: kept.mode,
            wanted,
            loaded: loaded.length,
            loading: loading.size + more.begun,
            min: bounds.min,
            ...(Number.isFinite(bounds.max) && { max: bounds.max }),
            reason: getReason(decision, present, more.obstacle),
            failures: [...kept.failures].map(([member, { message, retryAt }]) => ({
              member,
              message,
              retry_at: dateAt(retryAt).toISOString()
            }))
          }
    }
  }

  #grow(kept: Kept, count: number, chosen: Set<string>, now: number) {
    const { members } = this.#options
    const resting = [...kept.failures].filter(([, { retryAt }]) => retryAt > now).map(([member]) => member)
    // The memory of a load is unknown until the node reports it, so each node gets one load at a time.
    const busy = [...this.#kept.values()].flatMap(({ loads }) => [...loads])
    const tried = new Set([...resting, ...busy, ...chosen])
    let begun = 0
    let obstacle = ''
    while (begun < count) {
      const choice = chooseLoad({ model: kept.key, tried, evicts: false }, members.view, now)
      if (!choice.member) {
        obstacle = 'No other member has free memory for it.'
        break
      }
      begun++
      tried.add(choice.member.name)
      chosen.add(choice.member.name)
      void this.#load(kept, choice)
    }
    if (begun < count) for (const member of resting) this.#lookAt(kept.failures.get(member)!.retryAt)
    // Failed nodes, and nodes that load another model first, are not a reason for more machines.
    const others = tried.size - begun
    return { begun, obstacle, missing: Math.max(0, count - begun - others) }
  }

  /** Unloads replicas that were loaded here and are idle. A node finishes the requests that it has. */
  #shrink(kept: Kept, loaded: readonly Host[], minimum: readonly Host[], count: number): void {
    const resting = loaded.filter(
      host =>
        kept.own.has(host.member.name) &&
        !minimum.includes(host) &&
        !host.model.pinned &&
        host.model.running + host.model.queued === 0
    )
    // The last ones, which are the same for all gateways.
    for (const { member } of resting.slice(-count)) {
      kept.own.delete(member.name)
      void this.#unload(kept, member.name).catch(error => {
        kept.own.add(member.name)
        const fields = { member: member.name, reason: errorMessage(error) }
        this.#options.log.warn(fields, 'a replica of a model was not unloaded')
      })
    }
  }

  /** Renews a minimum that has no requests. If this server stops asking for it, it is unloaded like any other model. */
  #renew(kept: Kept, minimum: readonly Host[], now: number): void {
    for (const { member, model } of minimum) {
      const { expires = Number.POSITIVE_INFINITY } = model
      if (!Number.isFinite(expires)) continue
      const last = model.running > 0 ? now : (kept.renewed.get(member.name) ?? now)
      kept.renewed.set(member.name, last)
      // The node's clock may differ.
      const at = last + Math.min(MAX_RENEWAL_MS, Math.max(MIN_RENEWAL_MS, (expires - last) / 2))
      if (now < at) {
        this.#lookAt(at)
        continue
      }
      kept.renewed.set(member.name, now)
      this.#lookAt(now + MIN_RENEWAL_MS)
      void this.#askToLoad(kept, member.name).catch(() => {
        // The model was unloaded, or the node is gone. The next check loads it again and logs that.
      })
    }
  }

  async #load(kept: Kept, choice: Choice & { member: NodeView }): Promise<void> {
    const { copies, log } = this.#options
    const { key, variant, mode } = kept
    const { name } = choice.member
    const fields = { model: variant.publicName, mode, member: name }
    kept.loads.add(name)
    this.#kept.set(key, kept)
    try {
      if (choice.why === 'fetch') {
        const failure = await copies.copy(variant, choice, member => member === name, this.#closed.signal)
        if (failure) throw failure.error
      }
      await this.#askToLoad(kept, name)
      kept.failures.delete(name)
      kept.own.add(name)
      log.info(fields, 'a replica of a model was loaded')
    } catch (error) {
      if (this.#closed.signal.aborted) return
      const count = (kept.failures.get(name)?.count ?? 0) + 1
      const wait = Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** (count - 1))
      const message = errorMessage(error)
      kept.failures.set(name, { count, message, retryAt: performance.now() + wait })
      log.warn({ ...fields, reason: message, seconds: wait / 1000 }, 'a replica of a model was not loaded')
    } finally {
      kept.loads.delete(name)
      this.look()
    }
  }

  /** Loads a model at a node, or keeps it there, without unloading anything that clients use. @throws Error */
  async #askToLoad({ key, mode, variant }: Kept, name: string): Promise<void> {
    const { member, model } = this.#there(variant, name)
    const alike = this.#options.members.view.hosts(key).all.find(({ model: { options } }) => options)?.model.options
    const ended = new AbortController()
    const signal = AbortSignal.any([this.#closed.signal, ended.signal])
    let waiting: NodeJS.Timeout | undefined
    const wait = () => {
      waiting ??= setTimeout(() => ended.abort(new Error('it has no room for it now')), ROOM_TIMEOUT_MS)
    }
    const body: AskBody = { model, mode, call: 'load', idle: true, ...(alike && { options: alike }) }
    // The load waits until its node reports progress.
    wait()
    try {
      for await (const { phase } of member.lines<Progress>(ASK_PATH, { body, signal })) {
        if (phase === 'waiting' || phase === 'queued') {
          wait()
          continue
        }
        clearTimeout(waiting)
        waiting = undefined
      }
    } catch (error) {
      if (signal.aborted) throw signal.reason
      throw error instanceof CorralError ? error : new Error(member.explain(error))
    } finally {
      clearTimeout(waiting)
    }
  }

  async #unload({ variant }: Kept, name: string): Promise<void> {
    const { member, model } = this.#there(variant, name)
    // Not POST /api/stop, because that would abort new requests.
    const body = { model, keep_alive: 0, stream: false }
    await member.tell('/api/generate', { body, signal: this.#closed.signal })
    this.#options.log.info({ model: variant.key, member: name }, 'a replica of a model was unloaded')
  }

  #there(variant: Model, name: string): { member: ClusterNode; model: string } {
    const { members } = this.#options
    const member = members.get(name)
    const model = member && members.nameAt(member, variant)
    if (!member || model === undefined) throw new Error('it is gone')
    return { member, model }
  }

  /** @param lacking how many more nodes are needed @param chosen nodes that load something now */
  #askForMachines(lacking: number, chosen: ReadonlySet<string>, now: number): void {
    const { members, log } = this.#options
    const growing = members.roster.growing()
    for (const source of this.#machines.keys()) if (!growing.includes(source)) this.#machines.delete(source)
    const up = members.all().filter(({ view }) => view.state === 'up')
    const isOccupied = (member: ClusterNode) => chosen.has(member.name) || [...member.engines].length > 0
    // A node that has room but cannot load the model would not help in greater numbers.
    const spare = up.filter(member => !isOccupied(member)).length
    for (const [index, source] of growing.entries()) {
      const its = up.filter(member => member.source === source)
      const load = {
        known: members.all().filter(member => member.source === source).length,
        present: its.length,
        occupied: its.filter(isOccupied).length,
        lacking: index === 0 ? Math.max(0, lacking - spare) : 0
      }
      const before = this.#machines.get(source)
      const { state, at } = decideMachines(before, load, this.#options.cooldown(), now)
      this.#machines.set(source, state)
      if (at !== undefined) this.#lookAt(at)
      if (before?.wanted === state.wanted) continue
      if (before) log.info({ source, members: state.wanted }, 'the number of wanted members has changed')
      members.roster.want(source, state.wanted)
    }
  }
}

const newKept = (key: string, variant: Model): Kept => ({
  key,
  mode: key.slice(key.lastIndexOf('#') + 1) as EngineMode,
  variant,
  state: {},
  own: new Set(),
  loads: new Set(),
  failures: new Map(),
  renewed: new Map()
})

const REASONS: Record<ReplicaDecision['why'], string> = {
  minimum: 'This is the configured minimum.',
  queue: 'Its queue is long.',
  idle: 'Fewer are enough. One is unloaded when it is idle.',
  maximum: 'This is the configured maximum.',
  enough: 'The number is right.'
}

const getReason = ({ wanted, why }: ReplicaDecision, present: number, obstacle: string): string =>
  wanted > present && obstacle !== '' ? `${REASONS[why]} ${obstacle}` : REASONS[why]
