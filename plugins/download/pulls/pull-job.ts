import { mkdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { OnPullEvent, Pull, PullPlan, PullRecord, PullState } from '../../../core/contracts/downloads.ts'
import type { Hooks } from '../../../core/contracts/hooks.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import type { CorralError } from '../../../core/errors.ts'
import { bareName } from '../../../core/models/model-name.ts'
import { otherRevisionGoingOn, pullCancelled, pullFailure, pullPaused } from './pull-errors.ts'
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
  /** It is done or cancelled: there is nothing of it left. */
  onEnd(): void
}

/** What may be different a little later without anybody doing anything. */
const RETRIED = new Set(['hub_unreachable', 'hub_rate_limited'])

/**
 * One pull: its state, its files on disk and those who watch it. What changes it (joining, pausing, cancelling …) runs
 * one after another; the transfer itself goes on beside it.
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
  /** Why it does not run. */
  #stopped: unknown
  /** The model is there; what is left of the pull is on its way out. */
  #stored = false
  /** Set when there is nothing left of it. */
  #outcome: Outcome | undefined
  readonly #watchers = new PullWatchers()
  #pauseTimer: NodeJS.Timeout | undefined
  #retryTimer: NodeJS.Timeout | undefined
  /** Tries in a row that brought nothing. */
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

  /** Whether it was doing something when it was last recorded. */
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

  /** Writes its folder and starts it. @throws what keeps it from being recorded */
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
   * Lets somebody else who wants this variant in, and continues it where it does not run. Nothing happens when it has
   * ended.
   * @throws CorralError `model_exists` when the same variant is being pulled at another revision
   */
  join(plan: PullPlan, detached: boolean): Promise<void> {
    return this.#serial(async () => {
      if (this.#outcome) return
      if (this.#run) {
        if (!sameFiles(plan, this.#plan)) throw otherRevisionGoingOn(this.record(), this.#plan, plan)
        if (detached && !this.#detached) {
          this.#detached = true
          await this.#save()
        }
        this.#armPause()
        return
      }
      // What of the files is the same is kept; the plan may have been made anew for other reasons too.
      await dropChangedPartials(this.#options.folder, this.#plan, plan)
      this.#progress = new PullProgress(plan, await fetchedBytes(this.folder, plan))
      this.#plan = plan
      this.#detached ||= detached
      await this.#restart()
    })
  }

  /** Continues it without anybody watching. */
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

  /** Ends it and removes what was fetched. @returns whether there was something to cancel */
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

  /** Ends its work with the server's; what is detached goes on at the next start. */
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

  /** Starts it once that is recorded: when it has ended there is no folder to record anything in. */
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
    this.#progress.rest()
    this.#before = this.#progress.received
    const controller = new AbortController()
    this.#run = { controller, ended: this.#work(controller.signal) }
    this.#armPause()
  }

  async #work(signal: AbortSignal): Promise<void> {
    const { work, folder } = this.#options
    // So that whoever started it has the run before anything of it happens.
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
      this.#progress.rest()
      // Whoever called it off says what becomes of it.
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
    // What failed goes on telling why.
    if (this.#outcome || (!this.#run && !this.#retryTimer)) return
    await this.#interrupt(error)
    if (this.#outcome) return
    this.#state = 'paused'
    this.#reason = reason
    this.#detached = false
    await this.#save()
  }

  /** Ends the run and the waiting for another one; watchers get the reason. */
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

  /** Lets it pause in a while when nobody watches it. */
  #armPause(): void {
    clearTimeout(this.#pauseTimer)
    if (this.#watchers.size > 0 || this.#detached || !this.#run) return
    const unwatched = () => this.#run && this.#state !== 'storing' && this.#watchers.size === 0 && !this.#detached
    this.#pauseTimer = setTimeout(() => {
      void this.#serial(async () => {
        if (unwatched()) await this.#pause('Nobody watched it any longer.', pullPaused(this.record()))
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

  /** Removes its folder; first what makes it one, so that a crash leaves nothing that would be continued. */
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

  /** Records its state. On a full disk the older record stays, which is no reason to end anything. */
  async #save(): Promise<void> {
    try {
      await writeJob(this.#options.folder, this.#jobRecord())
    } catch (error) {
      this.#options.log.warn(error, `The state of the pull of ${this.record().model} cannot be recorded`)
    }
  }
}

/** How a pull ended for those who watch it. */
export type Outcome = { stored: StoredVariant } | { error: unknown }

/** Those who wait for one pull. */
export class PullWatchers {
  readonly #settlers = new Set<(outcome: Outcome) => void>()

  get size(): number {
    return this.#settlers.size
  }

  /** Waits until `settle`, hearing of progress meanwhile; or until the signal is aborted, when `onLeave` is called. */
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

  /** Ends the waiting of all. */
  settle(outcome: Outcome): void {
    for (const settle of [...this.#settlers]) settle(outcome)
  }
}
