import { existsSync } from 'node:fs'
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import type { OnPullEvent, PlannedDownload, Pull, PullPlan, PullRecord } from '../../../../core/contracts/downloads.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { CorralError } from '../../../../core/errors.ts'
import { toCorralError } from '../../../../core/http/native-error.ts'
import { bareName } from '../../../../core/models/model-name.ts'
import { untilAborted, withResolver } from '../../../../core/system/abort-signals.ts'
import { diskRefusal } from '../../../../core/system/disk-space.ts'
import { readJsonFile, writeJsonFile } from '../../../../core/system/json-file.ts'
import { refusal } from '../choice/choice.ts'
import type { TransferredFile } from '../transfer/transfers.ts'
import type { Place } from './fair-queue.ts'
import {
  allowedAddresses,
  type DownloadContext,
  dropChangedPartials,
  fetchedBytes,
  fileTarget,
  linkStored,
  plannedOrigin,
  sameFiles,
  variantWithFiles
} from './pull-planner.ts'
import { PullProgress } from './pull-progress.ts'

/** The record of a pull, in its folder. */
export const JOB_FILE = 'job.json'
const JOB_VERSION = 1
/**
 * Contains the number of attempts to read the headers of the files, and exists while they are read. If it is there at a
 * start, the process ended during this attempt: the first time someone may have killed it, the second time the files
 * are to blame.
 */
const READING_FILE = 'reading'
const SECOND_ATTEMPT = '2'

const JobSchema = Type.Object({
  version: Type.Literal(JOB_VERSION),
  id: Type.String({ pattern: '^[0-9a-f]{12}$' }),
  createdAt: Type.String(),
  /** `downloading` and `storing` are continued at the next start. */
  state: Type.Enum(['downloading', 'storing', 'paused', 'failed']),
  detached: Type.Boolean(),
  /** Its client (`Caller.turn`). Absent in records of older versions. */
  turn: Type.Optional(Type.String()),
  reason: Type.Optional(Type.String()),
  // Only the parts of the plan that decide which files are touched. The rest was written by corral.
  plan: Type.Object({
    label: Type.String(),
    files: Type.Array(
      Type.Object({
        storedPath: Type.String({ pattern: '^(?!.*(^|/)\\.\\.?(/|$))[^/\\\\:\\u0000]+(/[^/\\\\:\\u0000]+)*$' })
      }),
      { minItems: 1 }
    )
  })
})

export type JobRecord = Omit<Static<typeof JobSchema>, 'plan' | 'version'> & { plan: PullPlan }

/** Reads a pull's record. @throws Error if it is unusable */
export async function readJob(folder: string): Promise<JobRecord> {
  const file = await readJsonFile(join(folder, JOB_FILE), JobSchema)
  if (!file?.value) throw new Error(`its ${JOB_FILE} is unusable: ${file?.fault ?? 'it does not exist'}`)
  const { version: _, ...job } = file.value
  return job as JobRecord
}

const RETRIED = new Set(['hub_unreachable', 'hub_rate_limited'])

/** One pull: its state, files and watchers. Its operations run one at a time, beside the transfer. */
export class PullJob implements Pull {
  readonly folder: string
  readonly warnings: string[] = []
  readonly #context: DownloadContext
  readonly #onEnd: () => void
  #job: JobRecord
  #progress: PullProgress
  #run: { controller: AbortController; ended: Promise<void>; place: Place } | undefined
  #stopped: unknown
  /** The model is stored, and the pull's folder is being removed. */
  isStored = false
  /** Set when the pull is done or cancelled. */
  #outcome: Outcome | undefined
  /** The clients that watch. */
  readonly #watchers = new Set<{ settle(outcome: Outcome): void; onWaiting(): void }>()
  #pauseTimer: NodeJS.Timeout | undefined
  #retryTimer: NodeJS.Timeout | undefined
  #retries = 0
  #before = 0
  #lastOperation: Promise<unknown> = Promise.resolve()

  /** `completed` has the bytes of each file on disk. `onEnd` is called when the pull's files are removed. */
  constructor(
    job: JobRecord,
    completed: readonly number[],
    folder: string,
    context: DownloadContext,
    onEnd: () => void
  ) {
    this.folder = folder
    this.#context = context
    this.#onEnd = onEnd
    this.#job = job
    this.#progress = new PullProgress(job.plan, completed)
  }

  get id(): string {
    return this.#job.id
  }

  get plan(): PullPlan {
    return this.#job.plan
  }

  get ended(): boolean {
    return this.#outcome !== undefined
  }

  get running(): boolean {
    return this.#run !== undefined
  }

  record(): PullRecord {
    const files = this.#progress.files()
    const { id, state, detached, createdAt, reason, plan } = this.#job
    return {
      id,
      model: `${bareName(plan.name)}:${plan.label}`,
      state: this.#retryTimer ? 'paused' : this.#run?.place.isWaiting ? 'waiting' : state,
      detached,
      watchers: this.#watchers.size,
      origin: plan.repository.address,
      created_at: createdAt,
      completed: files.reduce((sum, file) => sum + file.completed, 0),
      total: files.reduce((sum, file) => sum + file.total, 0),
      speed: this.#run ? this.#progress.speed() : 0,
      files,
      ...(reason === undefined ? {} : { reason })
    }
  }

  async watch(onEvent: OnPullEvent, signal: AbortSignal, onWaiting = () => {}): Promise<StoredVariant> {
    if (!this.#outcome && !this.#run) throw this.#stopped
    let outcome = this.#outcome
    if (!outcome) {
      signal.throwIfAborted()
      clearTimeout(this.#pauseTimer)
      const { promise, resolve: settle } = withResolver<Outcome>()
      const watcher = { settle, onWaiting }
      this.#watchers.add(watcher)
      this.#changed()
      const stopListening = this.#progress.listen(onEvent)
      if (this.#run?.place.isWaiting) onWaiting()
      try {
        outcome = await untilAborted(promise, signal)
      } finally {
        stopListening()
        this.#watchers.delete(watcher)
        this.#changed()
        this.#armPause()
      }
    }
    if ('stored' in outcome) return outcome.stored
    throw outcome.error
  }

  /** Creates the folder and starts the pull. @throws CorralError if that is impossible; `rate_limited` */
  create(): Promise<void> {
    return this.#serial(async () => {
      let place: Place | undefined
      try {
        place = this.#enter(false)
        await mkdir(join(this.folder, 'files'), { recursive: true, mode: 0o700 })
        await this.#write()
      } catch (error) {
        place?.leave()
        const failure = pullFailure(error, this.plan)
        await this.#remove().catch(cause => this.#context.log.warn(cause, `${this.folder} cannot be removed`))
        this.#end({ error: failure })
        throw failure
      }
      this.#start(place)
    })
  }

  /**
   * Called when another client requests this variant: continues the pull if it is not running. Does nothing if it has
   * ended.
   * @throws CorralError `model_exists` if the variant is being pulled at another revision; `rate_limited`
   */
  join(plan: PullPlan, { detached, turn }: { detached: boolean; turn: string }): Promise<void> {
    return this.#serial(async () => {
      if (this.#outcome) return
      if (this.#run) {
        if (!sameFiles(plan, this.plan)) {
          const [own, wanted] = [this.plan.repository.revision, plan.repository.revision]
          throw refusal(
            'model_exists',
            `"${this.record().model}" is being pulled at revision ${own}, and revision ${wanted} has other files. ` +
              `Wait for it, or cancel the pull ${this.id} first.`
          )
        }
        if (detached && !this.#job.detached) await this.#save({ detached })
        this.#armPause()
        return
      }
      const place = this.#enter(false, turn)
      try {
        // Files with the same content are kept. The new plan may have others.
        await dropChangedPartials(this.folder, this.plan, plan)
        this.#progress = new PullProgress(plan, await fetchedBytes(this.folder, plan))
      } catch (error) {
        place.leave()
        throw error
      }
      this.#job = { ...this.#job, plan, turn, detached: detached || this.#job.detached }
      await this.#restart(place)
    })
  }

  /** Continues it, detached. @param turn of the client that resumes it; undefined at a start of corral */
  resume(turn: string | undefined): Promise<void> {
    return this.#serial(async () => {
      if (this.#outcome) return
      const place = this.#run ? undefined : this.#enter(turn === undefined, turn)
      this.#job = { ...this.#job, detached: true, ...(place && turn !== undefined ? { turn } : {}) }
      await this.#restart(place)
    })
  }

  /** Marks the pull as failed if two processes ended while they read the files' headers. @returns whether it did */
  async setAside(): Promise<boolean> {
    const marker = join(this.folder, READING_FILE)
    if (!existsSync(marker) || (await readFile(marker, 'utf8')) !== SECOND_ATTEMPT) return false
    const reason =
      'corral ended twice while it read the files of this pull, so the pull was not continued: a file may be damaged ' +
      'or malicious. Resume it to try again, or cancel it to remove its files.'
    this.#stopped = new CorralError('unsupported_capability', `The pull of "${this.record().model}": ${reason}`)
    await this.#save({ state: 'failed', reason })
    await rm(marker, { force: true })
    return true
  }

  /** @param options.unlessShared see `Downloads.pause` */
  pause({ unlessShared = false }: { unlessShared?: boolean } = {}): Promise<void> {
    return this.#serial(async () => {
      if (unlessShared && (this.#watchers.size > 1 || this.#job.detached)) return
      await this.#pause('It was paused.')
    })
  }

  /** Cancels it and removes its files. @returns whether there was something to cancel */
  cancel(
    error = this.#interruption('cancelled, and its downloaded data was removed. Pull it again to get the model.')
  ) {
    return this.#serial(async () => {
      if (this.#outcome) return false
      await this.#interrupt(error)
      if (this.#outcome) return false
      await this.#remove()
      this.#end({ error })
      return true
    })
  }

  /** Stops it with the server. A detached pull is continued at the next start. */
  stop(error: CorralError): Promise<void> {
    return this.#serial(async () => {
      if (this.#outcome) return
      const running = this.#run !== undefined
      await this.#interrupt(error)
      if (this.#outcome) return
      const isPaused = running && !this.#job.detached && this.#job.state !== 'storing'
      await this.#save(isPaused ? { state: 'paused', reason: 'corral was stopped.' } : {})
    })
  }

  #serial<T>(operation: () => Promise<T>): Promise<T> {
    const turn = this.#lastOperation.then(operation)
    this.#lastOperation = turn.catch(() => undefined)
    return turn
  }

  #enter(isAdmitted: boolean, turn = this.#job.turn ?? ''): Place {
    return this.#context.queue.enter(turn, isAdmitted)
  }

  /** Records the state before starting: when the run has ended, the folder may no longer exist. */
  async #restart(place: Place | undefined): Promise<void> {
    await this.#save(this.#run ? {} : { state: 'downloading', reason: undefined })
    if (place) this.#start(place)
  }

  #start(place: Place): void {
    clearTimeout(this.#retryTimer)
    this.#retryTimer = undefined
    this.#job = { ...this.#job, state: 'downloading', reason: undefined }
    this.#stopped = undefined
    this.#progress.resetSpeed()
    this.#before = this.#progress.received
    const controller = new AbortController()
    this.#run = { controller, ended: this.#work(controller.signal), place }
    this.#changed()
    this.#armPause()
  }

  async #work(signal: AbortSignal): Promise<void> {
    // Let `#start` set `#run` first.
    await Promise.resolve()
    try {
      const variants = this.#context.storage.variants(this.plan.name)
      const { place } = this.#run!
      const stored =
        (await variantWithFiles(this.plan, variants)) ?? (await this.#store(await this.#fetchInTurn(signal), signal))
      place.leave()
      this.isStored = true
      this.#changed()
      await this.#remove().catch(error =>
        this.#context.log.warn(error, `${this.folder} is no longer needed but cannot be removed`)
      )
      this.#run = undefined
      this.#end({ stored })
    } catch (error) {
      this.#run?.place.leave()
      this.#run = undefined
      this.#progress.resetSpeed()
      // After an abort, the caller of `abort` sets the state.
      if (!signal.aborted) await this.#fail(error)
    }
  }

  /** Downloads the files when a place is free, and queues again if it has to make room for other clients' pulls. */
  async #fetchInTurn(signal: AbortSignal): Promise<TransferredFile[]> {
    for (;;) {
      const { place } = this.#run!
      if (place.isWaiting) for (const { onWaiting } of this.#watchers) onWaiting()
      try {
        await untilAborted(place.begun, signal)
        this.#changed()
        return await this.#fetch(AbortSignal.any([signal, place.yielding]))
      } catch (error) {
        if (signal.aborted || !place.yielding.aborted) throw error
        this.#run!.place = this.#enter(true)
        this.#progress.resetSpeed()
        this.#changed()
      } finally {
        place.leave()
      }
    }
  }

  async #fetch(signal: AbortSignal): Promise<TransferredFile[]> {
    const { storage, transfers, hubs, mirrors } = this.#context
    const { repository, files, isLocal } = this.plan
    const privateAddresses = allowedAddresses(this.#context, isLocal)
    const hub = hubs.find(({ name }) => name === repository.hub)
    if (!hub) {
      throw new CorralError(
        'hub_unreachable',
        `This pull comes from the hub "${repository.hub}", which is not enabled. Enable it in config.yaml, or cancel the pull.`
      )
    }
    // A model made from another model shares its files, whatever the server.
    const holders = this.plan.origin?.kind === 'made' ? storage.list() : storage.variants(this.plan.name)
    await linkStored(this.plan, this.folder, holders)
    // Files with digests may come from any revision.
    const revision = files.every(file => file.sha256 ?? file.gitSha1) ? [] : [repository.revision]
    const locate = async (file: PlannedDownload, aborted: AbortSignal) => {
      for (const mirror of mirrors) {
        const nearer = await mirror.locate(this.plan, file, aborted)
        if (nearer) return nearer
      }
      return await hub.locate({ ...repository, files }, file, aborted, privateAddresses)
    }
    const fetched = await transfers.run({
      identity: [repository.hub, repository.id, ...revision].join(' '),
      files: files.map(file => ({
        ...file,
        target: fileTarget(this.folder, file),
        isOptional: isOptional(file, this.plan)
      })),
      locate: (index, aborted) => locate(files[index]!, aborted),
      signal,
      onProgress: (index, completed, total) => this.#context.onReceived(this.#progress.report(index, completed, total))
    })
    this.#progress.finish(fetched.map(file => file.size))
    return fetched
  }

  /** Stores the files as a variant. They also stay in the folder. */
  async #store(fetched: readonly TransferredFile[], signal: AbortSignal): Promise<StoredVariant> {
    await this.#save({ state: 'storing' })
    const { name, format, label, files: planned, defaults } = this.plan
    const files = planned.flatMap((file, index) => {
      const { sha256, leftOut } = fetched[index]!
      if (leftOut === undefined) {
        return [{ source: fileTarget(this.folder, file), path: file.storedPath, role: file.role, sha256 }]
      }
      this.warnings.push(`Stored without ${file.path}. ${leftOut}`)
      return []
    })
    for (const warning of this.warnings) this.#context.log.warn(`The pull of ${this.record().model}: ${warning}`)
    const variant = { name, format, label, origin: plannedOrigin(this.plan), files, ...(defaults && { defaults }) }
    const marker = join(this.folder, READING_FILE)
    const removeMarker = () => rm(marker, { force: true })
    await writeFile(marker, existsSync(marker) ? SECOND_ATTEMPT : '1', { flush: true })
    const stored = await this.#context.storage.adopt(variant, { signal, onRead: removeMarker }).catch(async error => {
      await removeMarker()
      throw error instanceof CorralError && error.code === 'invalid_request' ? this.#unusable(error) : error
    })
    const { model, origin } = this.record()
    this.#context.hooks.pullFinished({ model, origin, size: stored.size })
    return stored
  }

  /** Storage's advice is for imported files. Here only its reason helps, since the hub has exactly these bytes. */
  #unusable(error: CorralError): CorralError {
    const { id, address } = this.plan.repository
    const [reason] = error.message
      .replaceAll(join(this.folder, 'files', '/'), '')
      .split(/(?<=[^.])\.(?:\s+(?=[A-Z])|$)|: (?=run "git lfs|its server may)/)
    return new CorralError(
      'unsupported_capability',
      `The model "${id}" at ${address} cannot be run: ${reason}. Cancel the pull and choose another variant or repository.`,
      { cause: error }
    )
  }

  async #fail(error: unknown): Promise<void> {
    const failure = pullFailure(error, this.plan)
    this.#stopped = failure
    const { log, hooks, retryPauses } = this.#context
    if (this.#progress.received > this.#before) this.#retries = 0
    const isRetried = this.#job.detached && RETRIED.has(failure.code)
    let reason = failure.message
    if (isRetried) {
      const [shortest, longest] = retryPauses
      const pause = Math.max(Math.min(shortest * 2 ** this.#retries++, longest), (failure.retryAfter ?? 0) * 1000)
      reason += ` It will be retried at ${new Date(Date.now() + pause).toISOString()}.`
      const retry = async () => {
        if (!this.#outcome && !this.#run) this.#start(this.#enter(true))
      }
      this.#retryTimer = setTimeout(() => this.#serial(retry), pause).unref()
    }
    const { model, origin } = this.record()
    log.warn({ err: failure.cause, code: failure.code }, `The pull of ${model}: ${reason}`)
    hooks.pullFailed({ model, origin, code: failure.code })
    this.#settle({ error: failure })
    await this.#save({ state: isRetried ? 'downloading' : 'failed', reason })
  }

  async #pause(reason: string): Promise<void> {
    // A failed pull keeps its reason.
    if (this.#outcome || (!this.#run && !this.#retryTimer)) return
    await this.#interrupt(
      this.#interruption('paused. Downloaded data is kept. Pull it again, or resume it, to continue.')
    )
    if (!this.#outcome) await this.#save({ state: 'paused', reason, detached: false })
  }

  #interruption(what: string): CorralError {
    return refusal('pull_cancelled', `The pull of "${this.record().model}" was ${what}`)
  }

  /** Stops the run, or the wait for a retry. Watchers get the reason. */
  async #interrupt(reason: CorralError): Promise<void> {
    clearTimeout(this.#pauseTimer)
    clearTimeout(this.#retryTimer)
    this.#retryTimer = undefined
    const run = this.#run
    run?.controller.abort(reason)
    await run?.ended
    if (this.#outcome) return
    this.#stopped = reason
    this.#settle({ error: reason })
  }

  #armPause(): void {
    clearTimeout(this.#pauseTimer)
    const isUnwatched = () => this.#run && this.#watchers.size === 0 && !this.#job.detached
    const pause = async () => {
      if (isUnwatched() && this.#job.state !== 'storing') await this.#pause('No client was watching it any longer.')
    }
    if (isUnwatched()) this.#pauseTimer = setTimeout(() => this.#serial(pause), this.#context.pauseAfter).unref()
  }

  #end(outcome: Outcome): void {
    clearTimeout(this.#pauseTimer)
    this.#outcome = outcome
    this.#onEnd()
    this.#changed()
    this.#settle(outcome)
  }

  #settle(outcome: Outcome): void {
    for (const { settle } of this.#watchers) settle(outcome)
  }

  /** Removes the folder. The record is removed first, so that a crash in between leaves nothing to continue. */
  async #remove(): Promise<void> {
    await rm(join(this.folder, JOB_FILE), { force: true })
    await rm(this.folder, { recursive: true, force: true, maxRetries: 3 })
  }

  #changed(): void {
    this.#context.hooks.stateChanged('pull')
  }

  /** Changes the state and records it. If the disk is full, the older record stays, which does no harm. */
  async #save(changes: Partial<JobRecord>): Promise<void> {
    this.#job = { ...this.#job, ...changes }
    this.#changed()
    await this.#write().catch(error =>
      this.#context.log.warn(error, `The state of the pull of ${this.record().model} cannot be recorded`)
    )
  }

  async #write(): Promise<void> {
    await writeJsonFile(join(this.folder, JOB_FILE), { version: JOB_VERSION, ...this.#job }, { mode: 0o600 })
  }
}

/** Whether a model works without a file: documentation, and files whose content is also in a GGUF header. */
const isOptional = ({ role, storedPath }: PlannedDownload, { format }: PullPlan) =>
  role === 'other' && (format === 'gguf' || /^(?:readme|licen[cs]e|notice)(?:\.|$)/i.test(storedPath))

type Outcome = { stored: StoredVariant } | { error: unknown }

function pullFailure(error: unknown, { name }: PullPlan): CorralError {
  return (
    diskRefusal(error, `The pull of "${bareName(name)}" stopped and can be resumed`, 'models') ?? toCorralError(error)
  )
}
