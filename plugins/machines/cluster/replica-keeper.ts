import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { EngineMode } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { PlanStepRecord, ReplicasRecord } from '../../../core/contracts/native-records.ts'
import type { Progress } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { dateAt } from '../../../core/system/clock.ts'
import { setNewest } from '../../../core/system/collections.ts'
import { ASK_PATH, type AskBody, readDeltas, readPiece } from './asking/ask-protocol.ts'
import type { Copies } from './copying/copies.ts'
import { askNode } from './dispatch.ts'
import type { ClusterNode } from './nodes/node.ts'
import type { ClusterNodes } from './nodes/nodes.ts'
import { type Host, modelKey } from './placement/choose-node.ts'
import { type Plan, type PlannedModel, type PlanStep, planReplicas } from './placement/plan-replicas.ts'
import {
  decideMachines,
  decideReplicas,
  type MachineState,
  type ReplicaBounds,
  type ReplicaDecision,
  type ReplicaState
} from './placement/replica-count.ts'

/** All nodes, for autoscalers that no source asks. */
export const ALL = ''

/** Milliseconds in which changes of nodes are handled together. */
const DEBOUNCE_MS = 200
/** Maximum share of the time that decisions take. */
const MAX_EFFORT_SHARE = 0.05
/** Milliseconds until a failed load is tried again there: first and maximum. */
const FIRST_RETRY_MS = 15_000
const MAX_RETRY_MS = 10 * 60_000
const MAX_COPY_FAILURES = 1000
/** Milliseconds that a load may wait for room or for other loads until another node is tried. */
const ROOM_TIMEOUT_MS = 15_000
/** Milliseconds without requests after which a replica may be moved. */
const QUIET_AFTER_MS = 60_000
/** Milliseconds that a loaded replica may take to answer its first question. */
const WARM_UP_MS = 60_000
/** Milliseconds after which the settings are read again, because they may have a schedule. */
const SCHEDULE_MS = 60_000
/** Milliseconds between two requests that keep a minimum in memory: shortest and longest. */
const [MIN_RENEWAL_MS, MAX_RENEWAL_MS] = [1000, 60_000]

interface ReplicaKeeperOptions {
  members: ClusterNodes
  copies: Pick<Copies, 'copy'>
  /** Returns the limits of a variant by its key; undefined if this server does not ask nodes for it. */
  getBounds(variant: string): { variant: Model; bounds: ReplicaBounds } | undefined
  /** The keys of variants with a minimum or with copies. */
  configured(): Iterable<string>
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
  /** Nodes on which this server loaded it as a replica. */
  readonly own: Set<string>
  readonly loads: Set<string>
  readonly failures: Map<string, { count: number; message: string; retryAt: number }>
  /** When a minimum was last loaded or renewed there. */
  readonly renewed: Map<string, number>
}

/**
 * Keeps each model in memory on as many nodes as `decideReplicas` says, which `planReplicas` chooses, and asks for
 * machines if the nodes have no room. It decides from the nodes' own reports, so that several gateways decide alike:
 * loads started by other gateways count.
 *
 * Loads use only free memory: they are background requests, so a node evicts no model in use for them. Only idle
 * replicas are unloaded that were loaded by this server, or that belong to a minimum and move.
 */
export class ReplicaKeeper {
  readonly #options: ReplicaKeeperOptions
  readonly #kept = new Map<string, Kept>()
  /** By names of sources that can add machines. */
  readonly #machines = new Map<string, MachineState>()
  readonly #closed = new AbortController()
  #isOpen = false
  /** Milliseconds that the last decision took. */
  #effort = 0
  #timer: NodeJS.Timeout | undefined
  #due = Number.POSITIVE_INFINITY
  #records: readonly ReplicasRecord[] = []
  #plan: readonly PlanStepRecord[] = []
  /** By `modelKey`: measured memory. */
  readonly #sizes = new Map<string, number>()
  /** The copy in progress ahead of time, as text. */
  #copying: string | undefined
  readonly #copyFailures = new Map<string, { count: number; retryAt: number }>()

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

  /** The steps of the current plan, with their reasons. */
  plan(): readonly PlanStepRecord[] {
    return this.#plan
  }

  /** Returns how many nodes a source, or all of them together (`ALL`), should have. Undefined if it cannot add any. */
  wanted(source: string): number | undefined {
    return this.#machines.get(source)?.wanted
  }

  /** Decides again in a moment, because something has changed. In a very large cluster it decides less often. */
  look(): void {
    this.#lookAt(performance.now() + Math.max(DEBOUNCE_MS, this.#effort / MAX_EFFORT_SHARE))
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
        const now = performance.now()
        this.#decide(now)
        this.#effort = performance.now() - now
      },
      Math.max(0, at - performance.now())
    ).unref()
  }

  #decide(now: number): void {
    const { members, changed } = this.#options
    const configured = new Set<string>()
    for (const variant of this.#options.configured()) {
      const mode = members.described(variant)?.modes[0]
      if (mode) configured.add(modelKey(variant, mode))
    }
    const keys = new Set([...configured, ...this.#kept.keys()])
    for (const member of members.all()) for (const key of member.engines) keys.add(key)

    const demands: Demand[] = []
    for (const key of keys) {
      const known = this.#options.getBounds(key.slice(0, key.lastIndexOf('#')))
      if (!known) {
        this.#kept.delete(key)
        continue
      }
      const kept = this.#kept.get(key) ?? newKept(key, known.variant)
      kept.variant = known.variant
      this.#kept.set(key, kept)
      demands.push(
        this.#getDemand(kept, configured.has(key) ? known.bounds : { ...known.bounds, min: 0, copies: 0 }, now)
      )
    }
    if (configured.size > 0) this.#lookAt(now + SCHEDULE_MS)
    const plan = planReplicas(
      demands.map(({ planned }) => planned),
      members.view
    )
    this.#follow(plan)
    this.#askForMachines(plan.lacking, now)

    const sorted = demands.sort((a, b) => (a.kept.key < b.kept.key ? -1 : 1))
    const records = sorted.flatMap(demand => this.#record(demand, plan, now) ?? [])
    const steps = plan.steps.flatMap(step => this.#describe(step, sorted) ?? [])
    if (JSON.stringify([records, steps]) === JSON.stringify([this.#records, this.#plan])) return
    this.#records = records
    this.#plan = steps
    changed()
  }

  /** Decides how many replicas a model should have, and which of them may go. */
  #getDemand(kept: Kept, bounds: ReplicaBounds, now: number): Demand {
    const { members } = this.#options
    const { key } = kept
    for (const set of [kept.own, kept.failures, kept.renewed]) {
      for (const member of set.keys()) if (!members.get(member)) set.delete(member)
    }
    const only = members.view.only(key)
    const isAllowed = (name: string) => !only || only.has(name)
    const up = members.view.hosts(key).all.filter(({ member }) => member.state === 'up' && isAllowed(member.name))
    const loaded = up.filter(({ model }) => model.state === 'loaded')
    const loading = new Set(up.filter(({ model }) => model.state === 'loading').map(({ member }) => member.name))
    // After a load request, a node may not have reported the load yet, or may copy the model first.
    for (const name of kept.loads) if (!loaded.some(({ member }) => member.name === name)) loading.add(name)
    const sum = (hosts: readonly Host[], number: (host: Host) => number) =>
      hosts.reduce((total, host) => total + number(host), 0)
    for (const { model } of loaded) this.#sizes.set(key, Math.max(model.size, this.#sizes.get(key) ?? 0))
    const [running, queued] = [sum(up, ({ model }) => model.running), sum(up, ({ model }) => model.queued)]
    const slots = sum(loaded, ({ model }) => model.slots)
    const decision = decideReplicas(
      kept.state,
      {
        loaded: loaded.length,
        loading: loading.size,
        slots,
        free: sum(loaded, ({ model }) => (model.queued > 0 ? 0 : Math.max(0, model.slots - model.running))),
        running,
        queued,
        usedAt: Math.max(0, ...up.map(({ model }) => model.usedAt ?? 0))
      },
      bounds,
      now
    )
    kept.state = decision.state
    if (decision.at !== undefined) this.#lookAt(decision.at)

    const { wanted, why } = decision
    const resting = [...kept.failures].filter(([, { retryAt }]) => retryAt > now)
    for (const [, { retryAt }] of resting) this.#lookAt(retryAt)
    const idle = loaded.filter(({ model }) => !model.pinned && model.running + model.queued === 0)
    const names = (hosts: readonly Host[]) => new Set(hosts.map(({ member }) => member.name))
    const isQuiet = ({ member, model: { usedAt = Number.NEGATIVE_INFINITY } }: Host) =>
      (bounds.min > 0 || kept.own.has(member.name)) && now >= usedAt + QUIET_AFTER_MS
    const used =
      loaded.length === 0 ? 0 : Math.max(1, Math.ceil((running + queued) / Math.max(1, slots / loaded.length)))
    return {
      kept,
      bounds,
      decision,
      loaded,
      loading,
      planned: {
        key,
        wanted,
        min: bounds.min,
        needed: why === 'queue' ? wanted : Math.min(wanted, Math.max(bounds.min, used)),
        loads: kept.loads,
        avoid: new Set(resting.map(([member]) => member)),
        spare: names(why === 'unused' ? idle : idle.filter(({ member }) => kept.own.has(member.name))),
        quiet: names(idle.filter(isQuiet)),
        size: this.#sizes.get(key),
        copies: bounds.copies ?? 0
      }
    }
  }

  /** Begins the steps that need not wait. */
  #follow({ steps }: Plan): void {
    // The memory of a load is unknown until the node reports it, so each node gets one load at a time.
    const busy = new Set([...this.#kept.values()].flatMap(({ loads }) => [...loads]))
    for (const { action, model, member, from, waits } of steps) {
      const kept = this.#kept.get(model)!
      if (action === 'copy') this.#copyAhead(kept, member, from!)
      else if (waits) continue
      else if (action === 'unload') this.#unload(kept, member)
      else if (!busy.has(member)) {
        busy.add(member)
        void this.#load(kept, member, from)
      }
    }
  }

  #record({ kept, bounds, decision, loaded, loading }: Demand, plan: Plan, now: number): ReplicasRecord | undefined {
    const { key } = kept
    const present = loaded.length + loading.size
    const places = plan.placed.get(key)!
    const least = bounds.min === 0 && bounds.idle !== undefined ? 1 : bounds.min
    const renewed = loaded.filter(({ member }) => places.includes(member.name)).slice(0, least)
    if (decision.wanted > 0) this.#renew(kept, renewed, now)
    if (present + kept.loads.size + kept.failures.size === 0 && bounds.min === 0) {
      this.#kept.delete(key)
      return undefined
    }
    const { wanted, why } = decision
    const obstacle = plan.missing.has(key) ? ' No other member has free memory for it.' : ''
    return {
      model: kept.variant.publicName,
      mode: kept.mode,
      wanted,
      loaded: loaded.length,
      loading: new Set([...loading, ...kept.loads]).size,
      min: bounds.min,
      ...(Number.isFinite(bounds.max) && { max: bounds.max }),
      members: [...places].sort(),
      reason: REASONS[why] + obstacle,
      failures: [...kept.failures].map(([member, { message, retryAt }]) => ({
        member,
        message,
        retry_at: dateAt(retryAt).toISOString()
      }))
    }
  }

  #describe(step: PlanStep, demands: readonly Demand[]): PlanStepRecord | undefined {
    const { action, member, from, waits } = step
    const of = (key: string | undefined) => demands.find(({ kept }) => kept.key === key)
    const demand = of(step.model)
    if (!demand) return undefined
    const { kept, decision } = demand
    const other = of(step.for)?.kept.variant.publicName
    const why =
      action === 'copy'
        ? 'Its files should be on more members.'
        : other !== undefined
          ? `Its room is needed for ${other}.`
          : REASONS[decision.why]
    const wait =
      waits &&
      { memory: `${member} has no room for it yet.`, replacement: 'Another replica must be loaded first.' }[waits]
    return {
      action,
      model: kept.variant.publicName,
      mode: kept.mode,
      member,
      ...(from !== undefined && { from }),
      reason: wait ? `${why} ${wait}` : why
    }
  }

  /** Unloads a replica that is idle. A node finishes the requests that it has. */
  #unload(kept: Kept, name: string): void {
    kept.own.delete(name)
    void this.#askToUnload(kept, name).catch(error => {
      kept.own.add(name)
      this.#options.log.warn({ member: name, reason: errorMessage(error) }, 'a replica of a model was not unloaded')
    })
  }

  /** Copies files to a node in the background, one model at a time. */
  #copyAhead({ key, variant }: Kept, name: string, from: string): void {
    const { copies, log, members } = this.#options
    const id = `${key} ${name}`
    const failed = this.#copyFailures.get(id)
    const now = performance.now()
    if (failed && failed.retryAt > now) return void this.#lookAt(failed.retryAt)
    const [to, source] = [members.get(name), members.get(from)]
    if (this.#copying !== undefined || !to || !source) return
    this.#copying = id
    const way = { member: to, from: source }
    void copies
      .copy(variant, way, member => member === name, this.#closed.signal)
      .then(failure => {
        if (failure) throw failure.error
        this.#copyFailures.delete(id)
      })
      .catch(error => {
        if (this.#closed.signal.aborted) return
        const count = (failed?.count ?? 0) + 1
        setNewest(this.#copyFailures, id, { count, retryAt: now + getWait(count) }, MAX_COPY_FAILURES)
        log.warn(
          { model: variant.publicName, member: name, reason: errorMessage(error) },
          'a model was not copied ahead'
        )
      })
      .finally(() => {
        this.#copying = undefined
        this.look()
      })
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

  /** @param from the node that has the files, if this one lacks them */
  async #load(kept: Kept, name: string, from: string | undefined): Promise<void> {
    const { copies, log, members } = this.#options
    const { key, variant, mode } = kept
    const fields = { model: variant.publicName, mode, member: name }
    kept.loads.add(name)
    members.get(name)?.warmUp(key, true)
    try {
      if (from !== undefined) {
        const way = { member: { name }, from: { name: from } }
        const failure = await copies.copy(variant, way, member => member === name, this.#closed.signal)
        if (failure) throw failure.error
      }
      await this.#askToLoad(kept, name)
      await this.#askFirst(kept, name)
      kept.failures.delete(name)
      kept.own.add(name)
      log.info(fields, 'a replica of a model was loaded')
    } catch (error) {
      if (this.#closed.signal.aborted) return
      const count = (kept.failures.get(name)?.count ?? 0) + 1
      const wait = getWait(count)
      const message = errorMessage(error)
      kept.failures.set(name, { count, message, retryAt: performance.now() + wait })
      log.warn({ ...fields, reason: message, seconds: wait / 1000 }, 'a replica of a model was not loaded')
    } finally {
      kept.loads.delete(name)
      members.get(name)?.warmUp(key, false)
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

  /**
   * Asks a replica a tiny question, so that clients never wait for what an engine does only once. If clients of other
   * gateways use it already, it need not answer this. @throws NodeFault if its node fails
   */
  async #askFirst(kept: Kept, name: string): Promise<void> {
    const { mode, variant } = kept
    const first = FIRST_REQUESTS[mode]
    if (!first) return
    const { member, model } = this.#there(variant, name)
    const ended = new AbortController()
    const asking = { variant, body: { mode, idle: true, ...first }, by: {} }
    const signal = AbortSignal.any([this.#closed.signal, ended.signal])
    const answer = askNode(member, model, asking, [signal], async reply => {
      if (mode === 'chat') await readDeltas(reply, () => undefined)
      else await readPiece(reply)
    })
    await Promise.race([answer, sleep(WARM_UP_MS, undefined, { signal, ref: false })])
      .catch(async error => {
        // It need not be able to answer this question.
        if (error instanceof CorralError) return
        if (!this.#closed.signal.aborted) await this.#askToUnload(kept, name).catch(() => {})
        throw error
      })
      .finally(() => ended.abort())
    void answer.catch(() => {})
  }

  async #askToUnload({ variant }: Kept, name: string): Promise<void> {
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

  /** @param lacking how many more nodes are needed */
  #askForMachines(lacking: number, now: number): void {
    const { members, log } = this.#options
    const growing = members.roster.growing()
    // An autoscaler must not take all nodes because they are not known yet.
    const sources = [...growing, ...(members.all().length > 0 ? [ALL] : [])]
    for (const source of this.#machines.keys()) if (!sources.includes(source)) this.#machines.delete(source)
    const up = members.all().filter(({ view }) => view.state === 'up')
    const chosen = new Set([...this.#kept.values()].flatMap(({ loads }) => [...loads]))
    const isOccupied = (member: ClusterNode) => chosen.has(member.name) || [...member.engines].length > 0
    // A node that has room but cannot load the model would not help in greater numbers.
    const spare = up.filter(member => !isOccupied(member)).length
    for (const [index, source] of sources.entries()) {
      const isOf = (member: ClusterNode) => source === ALL || member.source === source
      const load = {
        known: members.all().filter(isOf).length,
        present: up.filter(isOf).length,
        occupied: up.filter(isOf).filter(isOccupied).length,
        lacking: index === 0 || source === ALL ? Math.max(0, lacking - spare) : 0
      }
      const before = this.#machines.get(source)
      const { state, at } = decideMachines(before, load, this.#options.cooldown(), now)
      this.#machines.set(source, state)
      if (at !== undefined) this.#lookAt(at)
      if (source === ALL || before?.wanted === state.wanted) continue
      if (before) log.info({ source, members: state.wanted }, 'the number of wanted members has changed')
      members.roster.want(source, state.wanted)
    }
  }
}

/** The replicas that a model has and should have. */
interface Demand {
  kept: Kept
  bounds: ReplicaBounds
  decision: ReplicaDecision
  loaded: readonly Host[]
  loading: ReadonlySet<string>
  planned: PlannedModel
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

/** Milliseconds until something that failed is tried again. */
const getWait = (count: number) => Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** (count - 1))

/** The first question of a replica, by mode. */
const FIRST_REQUESTS: Record<string, Pick<AskBody, 'call' | 'request'>> = {
  chat: { call: 'completion', request: { prompt: 'Hi', max_tokens: 1 } },
  embedding: { call: 'embed', request: { input: ['Hi'] } },
  rerank: { call: 'rerank', request: { query: 'Hi', documents: ['Hi'] } }
}

const REASONS: Record<ReplicaDecision['why'], string> = {
  minimum: 'This is the configured minimum.',
  queue: 'Its queue is long.',
  idle: 'Fewer are enough. One is unloaded when it is idle.',
  unused: 'Nobody has used it for the configured time.',
  maximum: 'This is the configured maximum.',
  enough: 'The number is right.'
}
