import { randomBytes } from 'node:crypto'
import { rename, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import type { Access } from '../../../core/contracts/built-in-services.ts'
import type { Caller } from '../../../core/contracts/callers.ts'
import { CorralError, errorMessage, invalidRequest, isSystemError, whenMissing } from '../../../core/errors.ts'
import { type InnerReply, sendInternally } from '../../../core/http/internal-request.ts'
import { namesIn } from '../../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { withShortLock } from '../../../core/system/short-lock.ts'
import {
  BATCH_ID,
  type BatchRecord,
  BatchRecordSchema,
  batchesToRun,
  type Ending,
  hasEnded,
  newBatch
} from './batch-record.ts'
import {
  checkLines,
  isLineError,
  type LineLimits,
  parseLine,
  type RequestLine,
  ResultFile,
  readLines
} from './json-lines.ts'
import { secondsNow, type UserFiles } from './user-files.ts'

export interface BatchLimits extends LineLimits {
  batches: number
  running: number
  parallel: number
  keep: number
}

interface BatchDependencies {
  folder: string
  /** Whether other servers may use the folder too. */
  isShared: boolean
  files: UserFiles
  access: Pick<Access, 'callerOf'>
  limits(): BatchLimits
  log: Pick<FastifyBaseLogger, 'info' | 'warn' | 'error'>
}

const CHECK_INTERVAL_MS = 500
/** Milliseconds between two checks while all batches have ended, and until a batch is retried, as after a full disk. */
const RETRY_INTERVAL_MS = 60_000
/** As `RETRY_INTERVAL_MS`, if other servers may begin batches. */
const SHARED_INTERVAL_MS = 5000
/** Milliseconds after which a batch of a server that was killed is continued by another one. */
const LOCK_STALE_MS = 15_000
const MAX_RETRY_DELAY_MS = 600_000

type Results = { output: ResultFile; errors: ResultFile; answered: Set<string> }

/**
 * Stores batches and sends their requests while no client needs the models.
 *
 *   validating → in_progress → finalizing → completed, or expired
 *       ↓ failed ↓ cancelling → cancelled
 *
 * Every change is on disk before anything depends on it: `batches/<id>.json` is the record, and the results so far are
 * the contents of two files that the owner sees at the end. Every step can be repeated, so a batch resumes after a kill.
 */
export class Batches {
  readonly #deps: BatchDependencies
  readonly #records = new Map<string, BatchRecord>()
  readonly #running = new Map<string, { controller: AbortController; done: Promise<void> }>()
  readonly #pausedUntil = new Map<string, number>()
  #app: FastifyInstance | undefined
  #timer: NodeJS.Timeout | undefined
  #sweptAt = Number.NEGATIVE_INFINITY
  #isClosed = false

  constructor(deps: BatchDependencies) {
    this.#deps = deps
  }

  async load(): Promise<void> {
    const { folder, files } = this.#deps
    const names = await this.#readAll()
    // Earlier versions stored the results of a batch in a folder of its own.
    for (const name of names.filter(each => BATCH_ID.test(each))) {
      const { outputFile, errorFile } = this.#records.get(name) ?? {}
      if (outputFile) await rename(join(folder, name, 'output.jsonl'), files.pathOf(outputFile)).catch(whenMissing)
      if (errorFile) await rename(join(folder, name, 'errors.jsonl'), files.pathOf(errorFile)).catch(whenMissing)
      await rm(join(folder, name), { recursive: true, force: true })
    }
  }

  /** Reads what other servers that use the folder have changed. */
  async refresh(): Promise<void> {
    if (!this.#deps.isShared) return
    await Promise.all([this.#readAll(), this.#deps.files.refresh()])
  }

  /** Reads the records, except known ones that can no longer change. @returns the names in the folder */
  async #readAll(): Promise<string[]> {
    const { folder, log } = this.#deps
    // Only these are ever removed. New ones may not be stored yet.
    const ended = [...this.#records.values()].filter(hasEnded)
    const names = await namesIn(folder)
    const there = new Set(names)
    for (const { id } of ended) if (!there.has(`${id}.json`)) this.#records.delete(id)
    for (const name of names.filter(each => each.endsWith('.json'))) {
      const batch = this.#records.get(basename(name, '.json'))
      if (batch && hasEnded(batch)) continue
      const path = join(folder, name)
      const { value, fault } = (await readJsonFile(path, BatchRecordSchema)) ?? { fault: 'the file is gone' }
      if (!value || !BATCH_ID.test(value.id)) log.warn(`${path} cannot be used: ${fault ?? 'it has no valid id'}`)
      else if (!batch) this.#records.set(value.id, value)
      else if (!this.#running.has(batch.id)) Object.assign(batch, value)
      else this.#adopt(batch, value)
    }
    return names
  }

  /** Ends a batch that this server answers, if another server has ended it in the folder. */
  #adopt(batch: BatchRecord, stored: BatchRecord | undefined): void {
    if (!stored?.ending || batch.ending) return
    Object.assign(batch, stored)
    this.#running.get(batch.id)?.controller.abort()
  }

  /** Whether a batch that has not ended reads or will write this file. */
  needs(fileId: string): boolean {
    return [...this.#records.values()].some(
      batch => !hasEnded(batch) && [batch.inputFile, batch.outputFile, batch.errorFile].includes(fileId)
    )
  }

  start(app: FastifyInstance): void {
    this.#app = app
    this.#tick()
  }

  /** Aborts running requests. They are sent again after the next start. */
  async close(): Promise<void> {
    this.#isClosed = true
    clearTimeout(this.#timer)
    const running = [...this.#running.values()]
    for (const { controller } of running) controller.abort()
    await Promise.all(running.map(({ done }) => done))
  }

  list(owner: string): BatchRecord[] {
    return [...this.#records.values()].filter(batch => batch.owner === owner)
  }

  /** @throws CorralError `batch_not_found`, also for batches of other owners */
  get(owner: string, id: string, param = 'batch_id'): BatchRecord {
    const batch = this.#records.get(id)
    if (batch?.owner === owner) return batch
    throw new CorralError(
      'batch_not_found',
      `You have no batch ${JSON.stringify(id.slice(0, 100))}. List your batches with GET /v1/batches.`,
      { param }
    )
  }

  /** @throws CorralError `file_not_found`, `invalid_request`, `over_limit` */
  async create(
    { owner, turn, address }: Caller,
    given: Pick<BatchRecord, 'endpoint' | 'window' | 'inputFile' | 'metadata'>,
    windowSeconds: number
  ): Promise<BatchRecord> {
    const { purpose } = this.#deps.files.get(owner, given.inputFile, 'input_file_id')
    if (purpose !== 'batch') {
      throw invalidRequest('input_file_id', 'The input file must have been uploaded with the purpose "batch".')
    }
    await this.#makeRoom(owner)
    const batch = newBatch({ ...given, owner, turn, address }, secondsNow(), windowSeconds)
    const begun = structuredClone(batch)
    this.#records.set(batch.id, batch)
    try {
      await this.#save(batch)
    } catch (error) {
      this.#records.delete(batch.id)
      throw error
    }
    this.#tick()
    return begun
  }

  /** @throws CorralError `batch_not_found`, or `batch_ended` if the batch has ended */
  async cancel(owner: string, id: string): Promise<BatchRecord> {
    const batch = this.get(owner, id)
    if (hasEnded(batch) || (batch.ending && batch.ending !== 'cancelled')) throw ended(batch)
    if (!batch.ending) await this.#endAs(batch, 'cancelled')
    return { ...batch, status: 'cancelling' }
  }

  async #makeRoom(owner: string): Promise<void> {
    const { batches } = this.#deps.limits()
    const own = this.list(owner)
    if (own.length < batches) return
    const [oldest] = own.filter(hasEnded).sort((a, b) => a.createdAt - b.createdAt)
    if (oldest) return await this.#remove(oldest)
    throw new CorralError(
      'over_limit',
      `You have ${own.length === 1 ? '1 batch that has' : `${own.length} batches that have`} not ended, and the limit is ${batches} (api-batches.batches). Wait until one has ended, or cancel one.`,
      { details: { limit: 'api-batches.batches', value: own.length + 1, maximum: batches } }
    )
  }

  async #remove({ id }: BatchRecord): Promise<void> {
    this.#records.delete(id)
    await rm(join(this.#deps.folder, `${id}.json`), { force: true })
  }

  async #save(batch: BatchRecord): Promise<void> {
    const path = join(this.#deps.folder, `${batch.id}.json`)
    if (this.#deps.isShared) this.#adopt(batch, (await readJsonFile(path, BatchRecordSchema))?.value)
    await writeJsonFile(path, batch, { mode: 0o600 })
  }

  async #endAs(batch: BatchRecord, ending: Ending): Promise<void> {
    batch.ending = ending
    if (ending === 'cancelled') Object.assign(batch, { status: 'cancelling', cancellingAt: secondsNow() })
    else if (batch.status === 'in_progress') Object.assign(batch, { status: 'finalizing', finalizingAt: secondsNow() })
    await this.#save(batch)
    this.#pausedUntil.delete(batch.id)
    this.#running.get(batch.id)?.controller.abort()
    this.#tick()
  }

  #tick(): void {
    const app = this.#app
    if (!app || this.#isClosed) return
    const now = Date.now()
    const moment = performance.now()
    const records = [...this.#records.values()]
    clearTimeout(this.#timer)
    // The extra tick ensures that the next sweep is due by then.
    const { isShared } = this.#deps
    const rest = isShared ? SHARED_INTERVAL_MS : RETRY_INTERVAL_MS
    const next = () =>
      void this.refresh().then(
        () => this.#tick(),
        error => {
          this.#deps.log.error(`The batches cannot be read: ${errorMessage(error)}`)
          this.#tick()
        }
      )
    this.#timer = setTimeout(next, records.every(hasEnded) ? rest + CHECK_INTERVAL_MS : CHECK_INTERVAL_MS).unref()
    if (app.drain.since) {
      // Aborted requests are sent again later, so the server can stop now.
      for (const { controller } of this.#running.values()) controller.abort()
      return
    }
    for (const batch of records) {
      if (batch.ending || hasEnded(batch) || batch.expiresAt * 1000 > now) continue
      this.#endAs(batch, 'expired').catch(error => this.#pause(batch, error))
    }
    const ready = records.filter(({ id }) => (this.#pausedUntil.get(id) ?? 0) <= moment)
    const ending = ready.filter(batch => batch.ending && !hasEnded(batch) && !this.#running.has(batch.id))
    const isWorking = ({ ending }: BatchRecord) => !ending
    const others = batchesToRun(ready.filter(isWorking), new Set(this.#running.keys()), this.#deps.limits().running)
    for (const batch of [...ending, ...others]) this.#begin(batch)
    if (moment - this.#sweptAt >= RETRY_INTERVAL_MS) {
      this.#sweptAt = moment
      void this.#sweep(records, now)
    }
  }

  async #sweep(records: readonly BatchRecord[], now: number): Promise<void> {
    const { files, limits, log } = this.#deps
    try {
      const isOld = (batch: BatchRecord) => hasEnded(batch) && batch.createdAt * 1000 < now - limits().keep
      for (const batch of records.filter(isOld)) await this.#remove(batch)
      await files.sweep(id => this.needs(id))
    } catch (error) {
      log.warn(`Old batches and files cannot be removed: ${errorMessage(error)}`)
    }
  }

  #begin(batch: BatchRecord): void {
    const controller = new AbortController()
    const done = this.#workAlone(batch, controller)
      .catch(error => {
        if (!controller.signal.aborted) this.#pause(batch, error)
      })
      .finally(() => {
        this.#running.delete(batch.id)
        this.#tick()
      })
    this.#running.set(batch.id, { controller, done })
  }

  #pause(batch: BatchRecord, error: unknown): void {
    this.#pausedUntil.set(batch.id, performance.now() + RETRY_INTERVAL_MS)
    this.#deps.log.error(`The batch ${batch.id} failed and will be retried in a minute: ${errorMessage(error)}`)
  }

  /** Runs a batch, unless another server does. */
  async #workAlone(batch: BatchRecord, controller: AbortController): Promise<void> {
    const { signal } = controller
    if (!this.#deps.isShared) return await this.#work(batch, signal)
    const path = join(this.#deps.folder, `${batch.id}.json`)
    const work = async () => {
      Object.assign(batch, (await readJsonFile(path, BatchRecordSchema))?.value)
      if (!hasEnded(batch)) await this.#work(batch, signal)
    }
    await withShortLock(path, work, {
      stale: LOCK_STALE_MS,
      maxWait: 0,
      signal,
      onLost: () => controller.abort()
    }).catch(error => {
      if (!isSystemError(error, 'ELOCKED')) throw error
      this.#pausedUntil.set(batch.id, performance.now() + SHARED_INTERVAL_MS)
    })
  }

  /** Runs a batch to its end. @throws an error that interrupts it, after which the batch is started again */
  async #work(batch: BatchRecord, signal: AbortSignal): Promise<void> {
    if (batch.ending) return await this.#conclude(batch)
    if (batch.status === 'validating') await this.#validate(batch, signal)
    if (batch.status === 'in_progress') {
      await this.#withResults(batch, results => this.#answerAll(batch, results, signal))
      signal.throwIfAborted()
      Object.assign(batch, { status: 'finalizing', finalizingAt: secondsNow(), ending: 'completed' })
      await this.#save(batch)
    }
    await this.#conclude(batch)
  }

  async #validate(batch: BatchRecord, signal: AbortSignal): Promise<void> {
    const { files, limits } = this.#deps
    const { total, faults } = await checkLines(files.pathOf(batch.inputFile), batch.endpoint, limits(), signal)
    if (batch.ending) throw new Error('the batch is ending')
    if (faults.length > 0) Object.assign(batch, { faults, ending: 'failed' })
    else {
      batch.counts.total = total
      Object.assign(batch, { status: 'in_progress', inProgressAt: secondsNow() })
    }
    await this.#save(batch)
  }

  async #withResults({ outputFile, errorFile, counts }: BatchRecord, use: (results: Results) => Promise<void>) {
    const answered = new Set<string>()
    const opened: ResultFile[] = []
    try {
      for (const id of [outputFile, errorFile]) {
        opened.push(await ResultFile.open(this.#deps.files.pathOf(id), customId => answered.add(customId)))
      }
      const [output, errors] = opened as [ResultFile, ResultFile]
      const count = () => Object.assign(counts, { completed: output.count, failed: errors.count })
      count()
      await use({ output, errors, answered })
      count()
    } finally {
      for (const file of opened) await file.close()
    }
  }

  /** Yields the requests without a result. Limits do not apply, because the file was validated at the start. */
  async *#unanswered(batch: BatchRecord, answered: Set<string>): AsyncGenerator<RequestLine> {
    const unlimited = { endpoint: batch.endpoint, most: Number.POSITIVE_INFINITY, depth: Number.POSITIVE_INFINITY }
    for await (const line of readLines(this.#deps.files.pathOf(batch.inputFile))) {
      const request = parseLine(line, unlimited)
      if (!isLineError(request) && !answered.delete(request.customId)) yield request
    }
  }

  async #answerAll(batch: BatchRecord, results: Results, signal: AbortSignal): Promise<void> {
    const asking = new Set<Promise<void>>()
    const failed = new AbortController()
    const stop = AbortSignal.any([signal, failed.signal])
    try {
      for await (const request of this.#unanswered(batch, results.answered)) {
        if (stop.aborted) break
        const work = this.#answer(batch, request, results, stop)
          .catch(error => failed.abort(error))
          .finally(() => asking.delete(work))
        asking.add(work)
        if (asking.size >= this.#deps.limits().parallel) await Promise.race(asking)
      }
      await Promise.all(asking)
      stop.throwIfAborted()
    } finally {
      failed.abort()
      await Promise.all(asking)
    }
  }

  async #answer(batch: BatchRecord, request: RequestLine, results: Results, signal: AbortSignal): Promise<void> {
    const { access } = this.#deps
    const { owner, turn, address, endpoint: url } = batch
    const body = JSON.stringify(request.body)
    for (;;) {
      signal.throwIfAborted()
      const caller = access.callerOf(owner)
      if (!caller) {
        const message = 'The key that created the batch is no longer valid.'
        batch.faults = [{ code: 'unauthorized', line: null, message, param: null }]
        await this.#endAs(batch, 'failed')
        signal.throwIfAborted()
      }
      const reply = await sendInternally(this.#app!, { ...caller!, turn, address, idle: true }, { url, body, signal })
      const wait = retryDelay(reply)
      if (wait === undefined) {
        const isGood = reply.status >= 200 && reply.status < 300
        const response = { status_code: reply.status, request_id: reply.requestId, body: parseBody(reply) }
        await results[isGood ? 'output' : 'errors'].add(resultLine(request.customId, response, null))
        Object.assign(batch.counts, { completed: results.output.count, failed: results.errors.count })
        return
      }
      await sleep(wait, undefined, { signal })
    }
  }

  async #conclude(batch: BatchRecord): Promise<void> {
    const { files, log } = this.#deps
    const { id, owner, ending, counts } = batch
    if (batch.inProgressAt !== undefined) {
      await this.#withResults(batch, async results => {
        if (ending === 'expired') await this.#expireRest(batch, results)
      })
      await this.#save(batch)
    }
    await files.addResults(batch.outputFile, owner, `${id}_output.jsonl`)
    await files.addResults(batch.errorFile, owner, `${id}_error.jsonl`)
    Object.assign(batch, { status: ending, [`${ending}At`]: secondsNow() })
    await this.#save(batch)
    log.info(
      { batch: id, ...counts },
      `The batch ${id} ${ending === 'completed' ? 'is complete' : `ended: ${ending}`}.`
    )
  }

  async #expireRest(batch: BatchRecord, { answered, errors }: Results): Promise<void> {
    const message = 'This request could not be executed before the completion window expired.'
    const lines: object[] = []
    for await (const { customId } of this.#unanswered(batch, answered)) {
      lines.push(resultLine(customId, null, { code: 'batch_expired', message }))
    }
    if (lines.length > 0) await errors.add(...lines)
  }
}

function resultLine(customId: string, response: object | null, error: object | null) {
  return { id: `batch_req_${randomBytes(12).toString('hex')}`, custom_id: customId, response, error }
}

function ended({ status, ending }: BatchRecord): CorralError {
  const message = `The batch cannot be cancelled because its status is ${ending ?? status}.`
  return new CorralError('batch_ended', message, { param: 'batch_id' })
}

/** Error codes that mean "try again later", with the delay in milliseconds. */
const RETRY_DELAYS_MS: Record<string, number> = {
  rate_limited: 1000,
  queue_full: 1000,
  too_busy: 1000,
  engine_unreachable: 5000,
  unauthorized: 200,
  draining: 1000,
  shutting_down: 1000,
  // Another model needed the memory.
  model_stopped: 30_000
}

/** Returns the delay before a request is sent again, in milliseconds, or undefined if the reply is final. */
function retryDelay(reply: InnerReply): number | undefined {
  if (reply.status < 400) return undefined
  const body = parseBody(reply)
  const code = isObject(body) && isObject(body.error) ? String(body.error.code) : ''
  const wait = Object.hasOwn(RETRY_DELAYS_MS, code) ? RETRY_DELAYS_MS[code]! : undefined
  return wait && Math.min(MAX_RETRY_DELAY_MS, Math.max(wait, reply.retryAfter * 1000))
}

function parseBody({ body }: InnerReply): unknown {
  const text = body.toString()
  return parseAnyJson(text) ?? text
}
