import { mkdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { OnPullEvent, Pull, PullPlan, PullRecord, PullState } from '../../../core/contracts/downloads.ts'
import type { Hooks } from '../../../core/contracts/hooks.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import type { CorralError } from '../../../core/errors.ts'
import { bareName } from '../../../core/models/model-name.ts'
import { otherRevisionRunning, pullCancelled, pullFailure, pullPaused } from './pull-errors.ts'
import {
  dropChangedPartials,
  FILES_FOLDER,
  fetchedBytes,
  JOB_FILE,
  type JobRecord,
  sameFiles,
  writeJob
} from './pull-folder.ts'
import { PullProgress } from './pull-progress.ts'
import type { PullWork } from './pull-work.ts'

export interface PullJobOptions {
  folder: string
  work: PullWork
  /** Milliseconds after the last watcher has left. */
  pauseAfter: number
  /** Shortest and longest pause, in milliseconds, before a detached pull is tried again whose hub does not answer. */
  retryPauses: readonly [number, number]
  hooks: Pick<Hooks, 'pullFinished'>
  log: FastifyBaseLogger
  /** The pull is done or cancelled, and nothing of it is left. */
  onEnd(): void
}

/** Errors that may pass by themselves. */
const RETRIED = new Set(['hub_unreachable', 'hub_rate_limited'])

/**
 * One pull: its state, its files on disk and its watchers. Operations on it (join, pause, cancel …) run one at a time;
 * the transfer runs beside them.
 */
export class PullJob implements Pull {
  readonly folder: string
  readonly id: string
  readonly #options: PullJobOptions
  readonly #createdAt: string
  #plan: PullPlan
  #progress: PullProgress
  #state: PullState
  #detached: boolean
  #reason: string | undefined
  #run: { controller: AbortController; ended: Promise<void> } | undefined
  /** Why it is not running. */
  #stopped: unknown
  /** The model is stored; the pull's folder is being removed. */
  #stored = false
  /** Set when the pull has ended for good. */
  #outcome: Outcome | undefined
  readonly #watchers = new PullWatchers()
  #pauseTimer: NodeJS.Timeout | undefined
  #retryTimer: NodeJS.Timeout | undefined
  /** Consecutive attempts without a byte. */
  #retries = 0
  /** Bytes that had been received when the run began. */
  #before = 0
  #turn: Promise<unknown> = Promise.resolve()

  /** @param completed bytes of each file that are on disk */
  constructor(record: JobRecord, completed: readonly number[], options: PullJobOptions) {
    this.#options = options
    this.folder = options.folder
    this.id = record.id
    this.#createdAt = record.createdAt
    this.#plan = record.plan
    this.#state = record.state
    this.#detached = record.detached
    this.#reason = record.reason
    this.#progress = new PullProgress(record.plan, completed)
  }

  get plan(): PullPlan {
    return this.#plan
  }

  get ended(): boolean {
    return this.#outcome !== undefined
  }

  get stored(): boolean {
    return this.#stored
  }

  get running(): boolean {
    return this.#run !== undefined
  }

  /** Whether it was running when it was last recorded. */
  get unfinished(): boolean {
    return this.#state === 'downloading' || this.#state === 'storing'
  }

  record(): PullRecord {
    const files = this.#progress.files()
    const { name, label, repository } = this.#plan
    return {
      id: this.id,
      model: `${bareName(name)}:${label}`,
      state: this.#retryTimer ? 'paused' : this.#state,
      detached: this.#detached,
      origin: repository.address,
      createdAt: this.#createdAt,
      completed: files.reduce((sum, file) => sum + file.completed, 0),
      total: files.reduce((sum, file) => sum + file.total, 0),
      speed: this.#run ? this.#progress.speed() : 0,
      files,
      ...(this.#reason === undefined ? {} : { reason: this.#reason })
    }
  }

  async watch(onEvent: OnPullEvent, signal: AbortSignal): Promise<StoredVariant> {
    if (this.#outcome && 'stored' in this.#outcome) return this.#outcome.stored
    if (this.#outcome) throw this.#outcome.error
    if (!this.#run) throw this.#stopped
    signal.throwIfAborted()
    clearTimeout(this.#pauseTimer)
    return await this.#watchers.add(this.#progress, onEvent, signal, () => this.#armPause())
  }

  /** Creates the folder and starts the pull. @throws CorralError when the folder cannot be created */
  create(): Promise<void> {
    return this.#serial(async () => {
      try {
        await mkdir(join(this.#options.folder, FILES_FOLDER), { recursive: true, mode: 0o700 })
        await writeJob(this.#options.folder, this.#jobRecord())
      } catch (error) {
        const failure = pullFailure(error, this.#plan)
        await this.#remove().catch(cause => this.#options.log.warn(cause, `${this.#options.folder} cannot be removed`))
        this.#end({ error: failure })
        throw failure
      }
      this.#start()
    })
  }

  /**
   * Another client wants this variant: continues the pull where it is not running. Does nothing when it has ended.
   * @throws CorralError `model_exists` when the same variant is being pulled at another revision
   */
  join(plan: PullPlan, detached: boolean): Promise<void> {
    return this.#serial(async () => {
      if (this.#outcome) return
      if (this.#run) {
        if (!sameFiles(plan, this.#plan)) throw otherRevisionRunning(this.record(), this.#plan, plan)
        if (detached && !this.#detached) {
          this.#detached = true
          await this.#save()
        }
        this.#armPause()
        return
      }
      // Files with the same content are kept; the new plan may have others.
      await dropChangedPartials(this.#options.folder, this.#plan, plan)
      this.#progress = new PullProgress(plan, await fetchedBytes(this.folder, plan))
      this.#plan = plan
      this.#detached ||= detached
      await this.#restart()
    })
  }

  /** Continues it, detached. */
  resume(): Promise<void> {
    return this.#serial(async () => {
      if (this.#outcome) return
      this.#detached = true
      await this.#restart()
    })
  }

  pause(): Promise<void> {
    return this.#serial(() => this.#pause('It was paused.', pullPaused(this.record())))
  }

  /** Ends it and removes its files. @returns whether there was something to cancel */
  cancel(error: CorralError = pullCancelled(this.record())): Promise<boolean> {
    return this.#serial(async () => {
      if (this.#outcome) return false
      await this.#interrupt(error)
      if (this.#outcome) return false
      await this.#remove()
      this.#end({ error })
      return true
    })
  }

  /** Stops it with the server; a detached pull is continued at the next start. */
  stop(error: CorralError): Promise<void> {
    return this.#serial(async () => {
      if (this.#outcome) return
      const running = this.#run !== undefined
      await this.#interrupt(error)
      if (this.#outcome) return
      if (running && !this.#detached && this.#state !== 'storing') {
        this.#state = 'paused'
        this.#reason = 'corral was stopped.'
      }
      await this.#save()
    })
  }

  #serial<T>(operation: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(operation)
    this.#turn = turn.catch(() => undefined)
    return turn
  }

  /** Records the state before it starts: when the run has ended there may be no folder any more. */
  async #restart(): Promise<void> {
    if (!this.#run) {
      this.#state = 'downloading'
      this.#reason = undefined
    }
    await this.#save()
    this.#start()
  }

  #start(): void {
    clearTimeout(this.#retryTimer)
    this.#retryTimer = undefined
    if (this.#run) return
    this.#state = 'downloading'
    this.#reason = undefined
    this.#stopped = undefined
    this.#progress.resetSpeed()
    this.#before = this.#progress.received
    const controller = new AbortController()
    this.#run = { controller, ended: this.#work(controller.signal) }
    this.#armPause()
  }

  async #work(signal: AbortSignal): Promise<void> {
    const { work, folder } = this.#options
    // Let `#start` set `#run` before anything happens.
    await Promise.resolve()
    try {
      const stored = (await work.stored(this.#plan)) ?? (await this.#fetchAndStore(signal))
      this.#stored = true
      try {
        await this.#remove()
      } catch (error) {
        this.#options.log.warn(error, `${folder} is no longer needed but cannot be removed`)
      }
      this.#run = undefined
      this.#end({ stored })
    } catch (error) {
      this.#run = undefined
      this.#progress.resetSpeed()
      // After an abort its caller sets the state.
      if (!signal.aborted) await this.#fail(error)
    }
  }

  async #fetchAndStore(signal: AbortSignal): Promise<StoredVariant> {
    const { work, folder, hooks } = this.#options
    const plan = this.#plan
    const files = await work.fetch(plan, join(folder, FILES_FOLDER), this.#progress, signal)
    this.#progress.finish(files.map(file => file.size))
    this.#state = 'storing'
    await this.#save()
    const stored = await work.store(plan, join(folder, FILES_FOLDER), files, signal)
    hooks.pullFinished({ model: this.record().model, origin: plan.repository.address, size: stored.size })
    return stored
  }

  async #fail(error: unknown): Promise<void> {
    const failure = pullFailure(error, this.#plan)
    this.#stopped = failure
    this.#reason = failure.message
    const { log, retryPauses } = this.#options
    if (this.#progress.received > this.#before) this.#retries = 0
    if (this.#detached && RETRIED.has(failure.code)) {
      const [shortest, longest] = retryPauses
      const pause = Math.max(Math.min(shortest * 2 ** this.#retries++, longest), (failure.retryAfter ?? 0) * 1000)
      this.#state = 'downloading'
      this.#reason += ` It is tried again at ${new Date(Date.now() + pause).toISOString()}.`
      this.#retryTimer = setTimeout(() => void this.#serial(async () => this.#outcome || this.#start()), pause)
      this.#retryTimer.unref()
    } else {
      this.#state = 'failed'
    }
    log.warn({ err: failure.cause, code: failure.code }, `The pull of ${this.record().model}: ${this.#reason}`)
    this.#watchers.settle({ error: failure })
    await this.#save()
  }

  async #pause(reason: string, error: CorralError): Promise<void> {
    // A failed pull keeps its reason.
    if (this.#outcome || (!this.#run && !this.#retryTimer)) return
    await this.#interrupt(error)
    if (this.#outcome) return
    this.#state = 'paused'
    this.#reason = reason
    this.#detached = false
    await this.#save()
  }

  /** Ends the run, or the wait for a retry; watchers get the reason. */
  async #interrupt(reason: CorralError): Promise<void> {
    clearTimeout(this.#pauseTimer)
    clearTimeout(this.#retryTimer)
    this.#retryTimer = undefined
    const run = this.#run
    run?.controller.abort(reason)
    await run?.ended
    if (this.#outcome) return
    this.#stopped = reason
    this.#watchers.settle({ error: reason })
  }

  /** Pauses it after a while when nobody watches it. */
  #armPause(): void {
    clearTimeout(this.#pauseTimer)
    if (this.#watchers.size > 0 || this.#detached || !this.#run) return
    const unwatched = () => this.#run && this.#state !== 'storing' && this.#watchers.size === 0 && !this.#detached
    this.#pauseTimer = setTimeout(() => {
      void this.#serial(async () => {
        if (unwatched()) await this.#pause('Nobody was watching it any more.', pullPaused(this.record()))
      })
    }, this.#options.pauseAfter)
    this.#pauseTimer.unref()
  }

  #end(outcome: Outcome): void {
    clearTimeout(this.#pauseTimer)
    this.#outcome = outcome
    this.#options.onEnd()
    this.#watchers.settle(outcome)
  }

  /** Removes the folder; first the record, so that nothing is continued after a crash in between. */
  async #remove(): Promise<void> {
    await rm(join(this.#options.folder, JOB_FILE), { force: true })
    await rm(this.#options.folder, { recursive: true, force: true, maxRetries: 3 })
  }

  #jobRecord(): JobRecord {
    return {
      id: this.id,
      createdAt: this.#createdAt,
      state: this.#state,
      detached: this.#detached,
      ...(this.#reason === undefined ? {} : { reason: this.#reason }),
      plan: this.#plan
    }
  }

  /** Records the state. On a full disk the older record stays, which does no harm. */
  async #save(): Promise<void> {
    try {
      await writeJob(this.#options.folder, this.#jobRecord())
    } catch (error) {
      this.#options.log.warn(error, `The state of the pull of ${this.record().model} cannot be recorded`)
    }
  }
}

/** How a pull ended. */
export type Outcome = { stored: StoredVariant } | { error: unknown }

/** The clients that watch one pull. */
export class PullWatchers {
  readonly #settlers = new Set<(outcome: Outcome) => void>()

  get size(): number {
    return this.#settlers.size
  }

  /** Waits for `settle` and passes on progress; when the signal is aborted first, `onLeave` is called. */
  add(progress: PullProgress, onEvent: OnPullEvent, signal: AbortSignal, onLeave: () => void): Promise<StoredVariant> {
    return new Promise((resolve, reject) => {
      const stopListening = progress.listen(onEvent)
      const settle = (outcome: Outcome) => {
        stopListening()
        signal.removeEventListener('abort', leave)
        this.#settlers.delete(settle)
        if ('stored' in outcome) resolve(outcome.stored)
        else reject(outcome.error)
      }
      const leave = () => {
        settle({ error: signal.reason })
        onLeave()
      }
      signal.addEventListener('abort', leave)
      this.#settlers.add(settle)
    })
  }

  /** Resolves or rejects all watchers. */
  settle(outcome: Outcome): void {
    for (const settle of [...this.#settlers]) settle(outcome)
  }
}
