import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { CorralError, errorMessage } from '../../../../core/errors.ts'
import { abortAfter } from '../../../../core/system/abort-signals.ts'
import { dateAt } from '../../../../core/system/clock.ts'
import { readJsonFile, writeJsonFile } from '../../../../core/system/json-file.ts'
import type { ClusterNode } from '../nodes/node.ts'
import type { ClusterNodes } from '../nodes/nodes.ts'
import { type Change, changeFor, type Place, verify } from './changes.ts'
import { type Asker, isInCanary, nextStep, type Step } from './next-step.ts'
import { isEnded, type Rollout, RolloutSchema } from './rollout-record.ts'

/** Milliseconds between two looks at nodes that are waited for. */
const POLL_MS = 250
/** Milliseconds between two claims of the nodes, which forget one after a minute. */
const CLAIM_INTERVAL_MS = 15_000
/** How often a step is tried if the connection fails although the node is up. */
const MAX_TRIES = 5
const CLAIM_PATH = '/api/cluster/claim'

interface RolloutsOptions {
  members: ClusterNodes
  home: string
  command(): readonly string[]
  changed(): void
  log: Pick<FastifyBaseLogger, 'info' | 'warn'>
}

export type RolloutRequest = Pick<Rollout, 'kind' | 'target' | 'key' | 'from' | 'digest' | 'ask' | 'expect'> & {
  canary?: { share?: number; key?: string; after?: number }
}

/** Runs one rollout at a time over the nodes of this gateway. Its state is on disk before each step. */
export class Rollouts {
  readonly #options: RolloutsOptions
  readonly #path: string
  readonly #closed = new AbortController()
  #rollout: Rollout | undefined
  /** Aborted when the current step or wait must end. */
  #step = new AbortController()
  #running: Promise<void> | undefined
  #writing: Promise<void> = Promise.resolve()
  #tries = 0

  constructor(options: RolloutsOptions) {
    this.#options = options
    this.#path = join(options.home, 'rollout.json')
  }

  get current(): Rollout | undefined {
    return this.#rollout
  }

  /** Continues a rollout that was interrupted by the end of this server. */
  async open(): Promise<void> {
    const read = await readJsonFile(this.#path, RolloutSchema)
    if (read?.fault !== undefined) {
      this.#options.log.warn({ path: this.#path }, `The last rollout cannot be read: ${read.fault}`)
    }
    this.#rollout = read?.value
    if (this.#rollout && !isEnded(this.#rollout)) this.#run()
  }

  async close(): Promise<void> {
    this.#closed.abort()
    this.#step.abort()
    await this.#running
    await this.#writing
  }

  /** @throws CorralError `rollout_running`, `forbidden_role`, `invalid_request` */
  async start({ canary, ...request }: RolloutRequest, nodes: readonly ClusterNode[]): Promise<Rollout> {
    const { members, log } = this.#options
    if (this.#rollout && !isEnded(this.#rollout)) {
      const { kind, target, state } = this.#rollout
      throw new CorralError(
        'rollout_running',
        `A rollout of ${kind} ${target} is ${state}. Wait for its end ("corral rollout status"), or undo it first.`
      )
    }
    if (members.all().filter(({ view }) => view.state === 'up').length < 2) {
      throw new CorralError('invalid_request', 'A rollout needs two members that are up, so that one can answer.')
    }
    const id = randomUUID()
    const present = nodes.filter(({ view }) => view.state !== 'away')
    const claims = await Promise.allSettled(present.map(node => this.#claim(node, id)))
    const refused = claims.find(({ status }) => status === 'rejected')
    if (refused?.status === 'rejected') {
      await Promise.allSettled(present.map(node => this.#claim(node, id, true)))
      throw refused.reason
    }
    const rollout: Rollout = {
      ...{ version: 1, id, ...request, state: 'running', started_at: new Date().toISOString() },
      ...(canary && { canary: { ...canary, over: false } }),
      nodes: nodes.map(({ name }) => ({ name, phase: 'waiting', out: false, applied: false, back: false }))
    }
    this.#rollout = rollout
    await this.#save()
    log.info({ rollout: id, kind: rollout.kind, target: rollout.target }, 'a rollout begins')
    this.#run()
    return rollout
  }

  /** Finishes the current node and then waits. @throws CorralError `rollout_not_found` */
  async pause(): Promise<Rollout> {
    const rollout = this.#require('running')
    rollout.state = 'paused'
    await this.#save()
    return rollout
  }

  /** Continues a paused or failed rollout, or lets updated nodes of a canary get all requests. */
  async resume(): Promise<Rollout> {
    const rollout = this.#require('running', 'paused', 'failed')
    if (rollout.state === 'running' && rollout.canary) rollout.canary.over = true
    for (const node of rollout.nodes) {
      if (node.back || node.phase === 'skipped') Object.assign(node, { phase: 'waiting', back: false, note: undefined })
    }
    delete rollout.failure
    delete rollout.paused
    delete rollout.ended_at
    rollout.state = 'running'
    return await this.#goOn()
  }

  async undo(): Promise<Rollout> {
    const rollout = this.#require('running', 'paused', 'failed', 'done')
    if (rollout.state === 'done' && rollout.kind === 'model') {
      const text = 'The rollout has ended, and the former files were removed. Roll out the former revision instead.'
      throw new CorralError('invalid_request', text)
    }
    for (const node of rollout.nodes) {
      if (['waiting', 'skipped', 'restored'].includes(node.phase)) continue
      node.back = true
      if (node.phase === 'stuck') node.phase = 'applying'
    }
    delete rollout.ended_at
    rollout.state = 'undoing'
    this.#step.abort()
    return await this.#goOn()
  }

  /** Returns the nodes that a request may not go to, if a rollout divides requests. */
  readonly divide = (model: string, asker: Asker): ReadonlySet<string> => {
    const rollout = this.#rollout
    if (!rollout?.canary || rollout.canary.over || isEnded(rollout)) return NONE
    if (rollout.key !== undefined && model !== rollout.key) return NONE
    const goesToUpdated = isInCanary(rollout, asker)
    const barred = rollout.nodes.filter(({ applied }) => applied !== goesToUpdated)
    return barred.length === rollout.nodes.length ? NONE : new Set(barred.map(({ name }) => name))
  }

  /** Returns what happens at a node now. */
  readonly at = (member: string): string | undefined => {
    const rollout = this.#rollout
    return rollout && !isEnded(rollout) ? rollout.nodes.find(({ name }) => name === member)?.note : undefined
  }

  #require(...states: Rollout['state'][]): Rollout {
    const rollout = this.#rollout
    if (rollout && states.includes(rollout.state)) return rollout
    const last = rollout ? `The last one is ${rollout.state}.` : 'None was started.'
    throw new CorralError('rollout_not_found', `No rollout can be changed in this way. ${last}`)
  }

  async #goOn(): Promise<Rollout> {
    await this.#save()
    this.#run()
    return this.#rollout!
  }

  async #save(): Promise<void> {
    const text = structuredClone(this.#rollout)
    this.#options.changed()
    this.#writing = this.#writing.catch(() => {}).then(() => writeJsonFile(this.#path, text, { pretty: true }))
    await this.#writing
  }

  #run(): void {
    this.#running ??= this.#follow().finally(() => {
      this.#running = undefined
    })
  }

  async #follow(): Promise<void> {
    const { members, log } = this.#options
    const timer = setInterval(() => void this.#claimAll(), CLAIM_INTERVAL_MS)
    try {
      while (!this.#closed.signal.aborted) {
        const rollout = this.#rollout!
        if (isEnded(rollout)) return
        this.#step = new AbortController()
        const { signal } = this.#step
        const facts = new Map(
          members.all().map(({ name, view, since }) => [name, { state: view.state, since: since.getTime() }])
        )
        const step = nextStep(rollout, facts, dateAt(performance.now()).getTime())
        try {
          await this.#perform(rollout, step, signal)
          this.#tries = 0
        } catch (error) {
          if (signal.aborted) continue
          await this.#failed(rollout, step, error)
        }
      }
    } catch (error) {
      // Only the disk: without the state on it, no step may follow.
      log.warn(error, 'The rollout waits, because its state cannot be stored')
      await sleep(CLAIM_INTERVAL_MS, undefined, { signal: this.#closed.signal }).catch(() => {})
      if (!this.#closed.signal.aborted) queueMicrotask(() => this.#run())
    } finally {
      clearInterval(timer)
    }
  }

  async #perform(rollout: Rollout, step: Step, signal: AbortSignal): Promise<void> {
    if (step.do === 'hold') {
      if (rollout.note !== step.why) {
        rollout.note = step.why
        await this.#save()
      }
      return await sleep(POLL_MS, undefined, { signal })
    }
    delete rollout.note
    if (step.do === 'end') return await this.#end(rollout, step.state, signal)
    if (step.do === 'widen') {
      rollout.canary!.over = true
      return await this.#save()
    }
    const { node } = step
    if (step.do === 'skip') {
      Object.assign(node, { phase: node.back ? 'stuck' : 'skipped', note: step.why })
      return await this.#save()
    }
    if (step.do === 'fail') throw new CorralError('member_unreachable', step.why)
    if (step.do === 'leave') {
      Object.assign(node, { phase: 'restored', note: undefined })
      return await this.#save()
    }
    const place: Place = {
      ...{ node, signal, member: this.#options.members.require(node.name) },
      note: text => {
        if (node.note === text) return
        node.note = text
        this.#options.changed()
      },
      save: () => this.#save()
    }
    this.#options.log.info({ rollout: rollout.id, member: node.name, step: step.do }, 'a step of a rollout')
    await this.#performAt(rollout, step.do, place)
    delete node.note
    await this.#save()
  }

  async #performAt(rollout: Rollout, step: Exclude<Step, { why: string }>['do'], place: Place): Promise<void> {
    const { node, member, signal } = place
    const change = this.#change(rollout)
    const done = () => {
      node.phase = 'done'
      const { canary } = rollout
      if (canary?.after !== undefined) canary.until ??= dateAt(performance.now() + canary.after).toISOString()
    }
    switch (step) {
      case 'prepare':
        if (!(await this.#claim(member, rollout.id)) && rollout.kind !== 'corral') {
          const message = `It runs corral ${member.version}, which cannot be updated in this way. First update corral there.`
          throw new CorralError('invalid_request', message)
        }
        if (await change.prepare(place)) node.phase = 'prepared'
        else if (node.applied || node.out) node.phase = 'applied'
        else done()
        return
      case 'drain':
        return await this.#drain(place)
      case 'apply':
        Object.assign(node, { phase: 'applying', applied: true })
        await this.#save()
        await change.apply(place)
        node.phase = 'applied'
        return
      case 'verify':
        await verify(rollout, change.tested(place), place)
        await change.check?.(place)
        node.phase = 'verified'
        return
      case 'restore':
        place.note('Restores what it had')
        await change.restore(place)
        node.applied = false
        return
      case 'release':
        await member.tell('/api/drain', { method: 'DELETE', signal })
        member.hold(false)
        node.out = false
        // Otherwise no node seems to be up when the next one is drained.
        while (member.view.state === 'draining') await sleep(POLL_MS / 5, undefined, { signal })
        if (node.back) node.phase = 'restored'
        else done()
    }
  }

  #change = (rollout: Rollout): Change => changeFor(rollout, this.#options.members, this.#options.command())

  /** Resolves when the node has no requests. */
  async #drain({ member, node, signal, note, save }: Place): Promise<void> {
    node.out = true
    await save()
    for (;;) {
      const { open } = await member.ask<{ open: number }>('/api/drain', { signal })
      if (open === 0 && member.view.state === 'draining') return
      note(`Finishes its requests (${open})`)
      await sleep(POLL_MS, undefined, { signal })
    }
  }

  /** Rolls the node back after a refusal. If it was lost, the step is repeated when it is there again. */
  async #failed(rollout: Rollout, step: Step, error: unknown): Promise<void> {
    const { members, log } = this.#options
    if (!('node' in step)) throw error
    const { node } = step
    const member = members.get(node.name)
    const isRefusal = error instanceof CorralError && error.code !== 'shutting_down'
    if (!isRefusal && (member?.view.state !== 'up' || ++this.#tries < MAX_TRIES)) {
      return await sleep(POLL_MS, undefined, { signal: this.#step.signal }).catch(() => {})
    }
    const why = member && !isRefusal ? member.explain(error) : errorMessage(error)
    log.warn({ rollout: rollout.id, member: node.name, step: step.do, reason: why }, 'a step of a rollout failed')
    node.note = why
    if (node.back) node.phase = 'stuck'
    node.back = true
    const said = step.do === 'restore' || step.do === 'release' ? 'could not be restored, and stays drained' : 'failed'
    rollout.failure ??= `${node.name} ${said}: ${why}`
    await this.#save()
  }

  async #end(rollout: Rollout, state: 'done' | 'failed' | 'undone', signal: AbortSignal): Promise<void> {
    const { members, log } = this.#options
    const nodes = rollout.nodes.flatMap(node => {
      const member = members.get(node.name)
      return member && member.view.state !== 'away' ? [{ node, member, signal }] : []
    })
    for (const place of state === 'failed' ? [] : nodes) {
      await this.#change(rollout)
        .clean?.(place)
        .catch(error => log.warn({ member: place.node.name, reason: errorMessage(error) }, 'former files stay'))
    }
    await Promise.all(nodes.map(({ member }) => this.#claim(member, rollout.id, true).catch(() => {})))
    Object.assign(rollout, { state, ended_at: new Date().toISOString() })
    await this.#save()
    log.info({ rollout: rollout.id, reason: rollout.failure }, `a rollout is ${state}`)
  }

  /**
   * Tells a node that this rollout may drain and change it.
   * @returns false if it runs an earlier version, which has no rollouts
   * @throws CorralError `rollout_running` of another gateway's rollout; `forbidden_role`
   */
  async #claim(member: ClusterNode, rollout: string, ends = false): Promise<boolean> {
    try {
      await member.tell(CLAIM_PATH, { body: { rollout, ends }, signal: abortAfter(CLAIM_INTERVAL_MS) })
      return true
    } catch (error) {
      if (error instanceof CorralError && error.code === 'route_not_found') return false
      if (!(error instanceof CorralError)) {
        throw new CorralError(
          'member_unreachable',
          `The member "${member.name}" was not asked: ${member.explain(error)}.`
        )
      }
      if (error.code !== 'forbidden_role') throw new CorralError(error.code, `${member.name}: ${error.message}`)
      throw new CorralError(
        'forbidden_role',
        `The key that this server uses at "${member.name}" may not change it. Create one there with "corral key create front --role admin", and set it as the key of this member.`
      )
    }
  }

  /** Renews the claims. If another gateway has a rollout, this one is paused. */
  async #claimAll(): Promise<void> {
    const rollout = this.#rollout
    if (!rollout || isEnded(rollout)) return
    const nodes = rollout.nodes.flatMap(({ name }) => this.#options.members.get(name) ?? [])
    const up = nodes.filter(({ view }) => view.state !== 'away')
    const results = await Promise.allSettled(up.map(member => this.#claim(member, rollout.id)))
    const refusal = results.find(
      result => result.status === 'rejected' && (result.reason as CorralError).code === 'rollout_running'
    )
    if (refusal?.status !== 'rejected' || rollout.state !== 'running') return
    rollout.state = 'paused'
    rollout.paused = errorMessage(refusal.reason)
    await this.#save().catch(error => this.#options.log.warn(error, 'The pause of the rollout was not stored'))
  }
}

const NONE: ReadonlySet<string> = new Set()
