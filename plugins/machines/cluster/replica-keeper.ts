import type { FastifyBaseLogger } from 'fastify'
import type { EngineMode } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { ReplicasRecord } from '../../../core/contracts/native-records.ts'
import type { Progress } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { dateAt } from '../../../core/system/clock.ts'
import { ASK_PATH, type AskBody } from './asking/ask-protocol.ts'
import { callLines, callNode } from './asking/node-call.ts'
import type { Copies } from './copying/copies.ts'
import type { ClusterNode } from './nodes/node.ts'
import type { ClusterNodes } from './nodes/nodes.ts'
import { type Choice, chooseLoad } from './placement/choose-node.ts'
import { type Host, modelKey, type NodeView } from './placement/cluster-view.ts'
import {
  decideMachines,
  decideReplicas,
  type MachineState,
  type ReplicaBounds,
  type ReplicaDecision,
  type ReplicaState
} from './placement/replicas.ts'

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
      for await (const { phase } of callLines<Progress>(member, ASK_PATH, { body, signal })) {
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
    const reply = await callNode(member, '/api/generate', { body, signal: this.#closed.signal })
    await reply.body.dump()
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
    const growing = members.roster.growing
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
