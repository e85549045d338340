import { json } from 'node:stream/consumers'
import type { FastifyBaseLogger } from 'fastify'
import type { FileMirror, PullPlan } from '../../../../core/contracts/downloads.ts'
import type { Model } from '../../../../core/contracts/models.ts'
import type { LoadingRecord } from '../../../../core/contracts/native-records.ts'
import { type OnProgress, type Progress, progressText, type Waiting } from '../../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../../core/errors.ts'
import { formatModelName, modelKey } from '../../../../core/models/model-name.ts'
import { SharedWork } from '../../../../core/system/shared-work.ts'
import type { DescribedModel } from '../asking/ask-protocol.ts'
import type { ClusterNode } from '../nodes/node.ts'
import type { ClusterNodes } from '../nodes/nodes.ts'
import { COPY_PATH, type CopySource, type OpenSource, type SourceFiles, TICKETS_PATH } from './source-files.ts'

/** A node that lacks a model, and a node that has it. */
type Way = Record<'member' | 'from', Pick<ClusterNode, 'name'>>

/** Why a copy failed, and the node to avoid. There is no such node if part of the copy had arrived. */
export interface CopyFailure {
  error: CorralError
  member?: string
  from?: string
}

interface Copy {
  key: string
  variant: Model
  to: ClusterNode
  progress: Progress
}

export type Copies = ReturnType<typeof createCopies>

/**
 * Copies models from one node to another while requests of this server wait for them.
 * @param changed called when a copy has begun, ended or progressed
 */
export function createCopies(
  members: ClusterNodes,
  changed: () => void,
  log: Pick<FastifyBaseLogger, 'info' | 'warn'>
) {
  const work = new SharedWork<CopyFailure | undefined>()
  const running = new Set<Copy>()

  async function copyOnce(key: string, variant: Model, to: ClusterNode, from: ClusterNode, waiting: Required<Waiting>) {
    const subject = `${variant.publicName} from ${from.name}`
    const copy: Copy = { key, variant, to, progress: { phase: 'copying', subject } }
    const { signal } = waiting
    const onProgress = (progress: Progress) => {
      const isSame = progressText(progress) === progressText(copy.progress)
      copy.progress = progress
      if (isSame) return
      waiting.onProgress(progress)
      changed()
    }
    const fields = { model: variant.publicName, member: to.name, from: from.name }
    log.info(fields, 'a model is copied from one member to another')
    running.add(copy)
    waiting.onProgress(copy.progress)
    changed()
    try {
      const failure = await transfer(variant, to, from, { signal, onProgress })
      if (!failure) log.info(fields, 'a model was copied from one member to another')
      else if (!signal.aborted) {
        log.warn({ ...fields, code: failure.error.code, reason: failure.error.message }, 'a model was not copied')
      }
      return failure
    } finally {
      running.delete(copy)
      changed()
    }
  }

  async function transfer(
    variant: Model,
    to: ClusterNode,
    from: ClusterNode,
    { signal, onProgress }: Required<Waiting>
  ): Promise<CopyFailure | undefined> {
    const failed = (why: string) =>
      new CorralError(
        'copy_failed',
        `"${variant.publicName}" could not be copied from member "${from.name}" to "${to.name}": ${why}. The part that was copied is kept. Send the request again. GET /api/cluster shows the state of the members.`
      )
    let source: CopySource
    try {
      source = await sourceAt(from, members.nameAt(from, variant) ?? variant.publicName, signal)
    } catch (error) {
      const why = from.explain(error)
      if (!signal.aborted && !(error instanceof CorralError)) from.suspect(why)
      return { error: failed(`"${from.name}" does not permit it: ${why}`), from: from.name }
    }
    let before: number | undefined
    let now = 0
    try {
      const { name, tlsName, pinned: _, ...rest } = source
      const body = {
        source: name,
        ...(tlsName !== undefined && { tls_name: tlsName }),
        ...rest,
        digest: variant.digest
      }
      const lines = to.lines<{ progress?: Progress; model?: DescribedModel }>(COPY_PATH, { body, signal })
      for await (const { progress, model } of lines) {
        if (model) return void to.learn(model)
        if (!progress) continue
        if (progress.completed !== undefined) {
          before ??= progress.completed
          now = progress.completed
        }
        onProgress(progress)
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

  return {
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
      onProgress?: OnProgress
    ): Promise<CopyFailure | undefined> {
      const shared = [...running].find(copy => copy.variant.key === variant.key && isOpen(copy.to.name))
      const [to, from] = [members.require(way.member.name), members.require(way.from.name)]
      const key = shared?.key ?? `${variant.key} ${to.name}`
      return await work.run(key, { signal, onProgress }, waiting => copyOnce(key, variant, to, from, waiting))
    },

    loading: (): LoadingRecord[] =>
      [...running].map(({ key, variant, to, progress }) => ({
        name: variant.publicName,
        model: variant.publicName,
        format: variant.format,
        mode: 'chat',
        state: 'copying',
        status: progressText(progress),
        ...(progress.fraction !== undefined && { progress: progress.fraction }),
        queued: work.callers(key),
        member: to.name
      }))
  }
}

/** Asks a node for permission to copy a model. @param model its name there @throws CorralError of its refusal */
export async function sourceAt(member: ClusterNode, model: string, signal: AbortSignal): Promise<CopySource> {
  const reply = await member.call(TICKETS_PATH, { body: { model }, signal })
  const { ticket } = (await json(reply.body)) as { ticket: string }
  const { url, tlsName, pinned } = member.known
  return { name: member.name, url: new URL(url).origin, tlsName, pinned, ticket }
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
          const source = await sources.open(await sourceAt(member, publicName, signal), signal)
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
