import type { FastifyBaseLogger } from 'fastify'
import type { FileMirror, PullPlan } from '../../../../core/contracts/downloads.ts'
import type { Model } from '../../../../core/contracts/models.ts'
import type { LoadingRecord } from '../../../../core/contracts/native-records.ts'
import { type OnProgress, type Progress, progressText } from '../../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../../core/errors.ts'
import { formatModelName, modelKey } from '../../../../core/models/model-name.ts'
import { untilAborted } from '../../../../core/system/abort-signals.ts'
import type { DescribedModel } from '../asking/ask-protocol.ts'
import { callLines, callNode, explainFailure } from '../asking/node-call.ts'
import type { ClusterNode } from '../nodes/node.ts'
import type { ClusterNodes } from '../nodes/nodes.ts'
import { COPY_PATH, type OpenSource, type SourceFiles, TICKETS_PATH } from './source-files.ts'

/** A node that lacks a model, and a node that has it. */
type Way = Record<'member' | 'from', Pick<ClusterNode, 'name'>>

/** Why a copy failed, and the node to avoid. There is no such node if part of the copy had arrived. */
export interface CopyFailure {
  error: CorralError
  member?: string
  from?: string
}

interface Copy {
  variant: Model
  to: ClusterNode
  from: ClusterNode
  progress: Progress
  waiting: Set<OnProgress>
  controller: AbortController
  ended: Promise<CopyFailure | undefined>
}

/** Copies of models from one node to another that requests of this server wait for. */
export class Copies {
  readonly #members: ClusterNodes
  readonly #changed: () => void
  readonly #log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  readonly #going = new Set<Copy>()

  /** @param changed called when a copy has begun, ended or progressed */
  constructor(members: ClusterNodes, changed: () => void, log: Pick<FastifyBaseLogger, 'info' | 'warn'>) {
    this.#members = members
    this.#changed = changed
    this.#log = log
  }

  /**
   * Copies a model from one node to another. All requests that want it there wait for one copy. The copy continues as
   * long as a request waits for it and then pauses. The next copy resumes it.
   * @param isOpen whether it may be at a node
   * @returns undefined when the node has it
   * @throws the signal's reason
   */
  async copy(
    variant: Model,
    way: Way,
    isOpen: (member: string) => boolean,
    signal: AbortSignal,
    onProgress: OnProgress = () => {}
  ): Promise<CopyFailure | undefined> {
    const isShared = (copy: Copy) => copy.variant.key === variant.key && isOpen(copy.to.name)
    const copy = [...this.#going].find(isShared) ?? this.#begin(variant, way)
    // A new function: the same one may wait twice.
    const listener: OnProgress = progress => onProgress(progress)
    copy.waiting.add(listener)
    listener(copy.progress)
    try {
      return await untilAborted(copy.ended, signal)
    } finally {
      copy.waiting.delete(listener)
      if (copy.waiting.size === 0) {
        this.#end(copy)
        copy.controller.abort(new Error('nobody waits for it any more'))
      }
    }
  }

  loading(): LoadingRecord[] {
    return [...this.#going].map(({ variant, to, progress, waiting }) => ({
      name: variant.publicName,
      model: variant.publicName,
      format: variant.format,
      mode: 'chat' as const,
      state: 'copying' as const,
      status: progressText(progress),
      ...(progress.fraction !== undefined && { progress: progress.fraction }),
      queued: waiting.size,
      member: to.name
    }))
  }

  #begin(variant: Model, way: Way): Copy {
    const [to, from] = [this.#members.require(way.member.name), this.#members.require(way.from.name)]
    const copy: Copy = {
      variant,
      to,
      from,
      progress: { phase: 'copying', subject: `${variant.publicName} from ${from.name}` },
      waiting: new Set(),
      controller: new AbortController(),
      ended: Promise.resolve(undefined)
    }
    this.#going.add(copy)
    const fields = { model: variant.publicName, member: to.name, from: from.name }
    this.#log.info(fields, 'a model is copied from one member to another')
    copy.ended = this.#run(copy).then(failure => {
      this.#end(copy)
      if (!failure) this.#log.info(fields, 'a model was copied from one member to another')
      else if (!copy.controller.signal.aborted) {
        this.#log.warn({ ...fields, code: failure.error.code, reason: failure.error.message }, 'a model was not copied')
      }
      return failure
    })
    this.#changed()
    return copy
  }

  #end(copy: Copy): void {
    if (this.#going.delete(copy)) this.#changed()
  }

  async #run(copy: Copy): Promise<CopyFailure | undefined> {
    const { variant, to, from } = copy
    const { signal } = copy.controller
    const failed = (why: string) =>
      new CorralError(
        'copy_failed',
        `"${variant.publicName}" could not be copied from member "${from.name}" to "${to.name}": ${why}. The part that was copied is kept. Send the request again. GET /api/cluster shows the state of the members.`
      )
    let ticket: string
    try {
      const name = this.#members.nameAt(from, variant) ?? variant.publicName
      ticket = await requestTicket(from, name, signal)
    } catch (error) {
      const why = explainFailure(from, error)
      if (!signal.aborted && !(error instanceof CorralError)) from.suspect(why)
      return { error: failed(`"${from.name}" does not permit it: ${why}`), from: from.name }
    }
    let before: number | undefined
    let now = 0
    try {
      const { url, tlsName } = from.known
      const body = {
        source: from.name,
        url: new URL(url).origin,
        ...(tlsName !== undefined && { tls_name: tlsName }),
        ticket,
        digest: variant.digest
      }
      const lines = callLines<{ progress?: Progress; model?: DescribedModel }>(to, COPY_PATH, { body, signal })
      for await (const { progress, model } of lines) {
        if (model) return void to.learn(model)
        if (!progress) continue
        if (progress.completed !== undefined) {
          before ??= progress.completed
          now = progress.completed
        }
        this.#progressed(copy, progress)
      }
      throw new Error('its answer ended before the model was there')
    } catch (error) {
      if (error instanceof CorralError) {
        if (error.code !== 'copy_failed') {
          const why = `"${variant.publicName}" cannot be copied to member "${to.name}": ${error.message}`
          return { error: new CorralError(error.code, why, { details: error.details ?? {} }), member: to.name }
        }
        return { error, ...(now <= (before ?? 0) && { from: from.name }) }
      }
      const why = to.explain(error)
      if (!signal.aborted) to.suspect(why)
      return { error: failed(`"${to.name}" was lost: ${why}`), member: to.name }
    }
  }

  #progressed(copy: Copy, progress: Progress): void {
    const before = progressText(copy.progress)
    copy.progress = progress
    if (progressText(progress) === before) return
    for (const listener of copy.waiting) listener(progress)
    this.#changed()
  }
}

/** Asks a node for permission to copy a model. @param model its name there @throws CorralError of its refusal */
async function requestTicket(member: ClusterNode, model: string, signal: AbortSignal): Promise<string> {
  const reply = await callNode(member, TICKETS_PATH, { body: { model }, signal })
  return JSON.parse(await reply.body.text()).ticket
}

const MAX_ASKED_NODES = 4

interface Found {
  member: string
  source: OpenSource
  /** Digests of files already located there. A file that failed or was different is not located there again. */
  given: Set<string>
}

/** Lets pulls of this server read files from nodes that have the same files, because nodes are closer than the hub. */
export function nodeFiles(
  members: ClusterNodes,
  sources: SourceFiles,
  log: Pick<FastifyBaseLogger, 'info' | 'warn'>
): FileMirror {
  const found = new WeakMap<PullPlan, Promise<Found[]>>()

  async function findAt(plan: PullPlan, signal: AbortSignal): Promise<Found[]> {
    const key = `${modelKey(plan.name)}:${plan.label.toLowerCase()}`
    const holders = members.all().filter(({ view, models }) => view.state !== 'away' && models.has(key))
    const opened = await Promise.all(
      holders.slice(0, MAX_ASKED_NODES).map(async member => {
        const { publicName } = member.models.get(key)!
        try {
          const { url, tlsName } = member.known
          const ticket = await requestTicket(member, publicName, signal)
          const source = await sources.open({ name: member.name, url: new URL(url).origin, tlsName, ticket }, signal)
          await source.close()
          return [{ member: member.name, source, given: new Set<string>() }]
        } catch (error) {
          signal.throwIfAborted()
          log.warn(
            { member: member.name, model: publicName, reason: errorMessage(error) },
            'a member does not provide its files'
          )
          return []
        }
      })
    )
    return opened.flat()
  }

  return {
    async locate(plan, { sha256, path }, signal) {
      if (sha256 === undefined || plan.origin !== undefined) return undefined
      const finding = found.get(plan) ?? findAt(plan, signal)
      found.set(plan, finding)
      for (const { member, source, given } of await finding) {
        const location = given.has(sha256) ? undefined : source.locate(sha256)
        if (!location) continue
        given.add(sha256)
        log.info(
          { member, model: formatModelName({ ...plan.name, variant: plan.label }), file: path },
          'a file comes from a member'
        )
        return location
      }
      return undefined
    }
  }
}
