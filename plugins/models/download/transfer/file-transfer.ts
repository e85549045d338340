import { basename } from 'node:path'
import type { FileLocation } from '../../../../core/contracts/hubs.ts'
import { CorralError, errorMessage } from '../../../../core/errors.ts'
import { untilAborted, withResolver } from '../../../../core/system/abort-signals.ts'
import { retryAfterSeconds } from '../../../../core/system/retry-after.ts'
import {
  checkTarget,
  compareDigests,
  type Digests,
  type FileDigest,
  type Mismatch,
  type WrittenChunks
} from './digests.ts'
import { type ActiveLocation, FileSource, followRedirect, requestTarget } from './file-source.ts'
import { type Answer, type ConnectionPool, type FetchResult, fetchBytes, type Sink } from './http-connection.ts'
import { ConnectionFailure } from './http-socket.ts'
import { type Bandwidth, LineSpeed, Retries } from './limits.ts'
import { freeSpan, PartFile, PartWriter, requestSize, type Span, stolenSpan, WRITE_BYTES } from './part-file.ts'
import { type FetchProblem, fetchError, storageError, wrongContent } from './transfer-errors.ts'
import type { TransferEngineOptions, TransferFile, TransferredFile } from './transfers.ts'

export interface SharedResources {
  readonly options: TransferEngineOptions
  readonly connections: ConnectionPool
  readonly bandwidth: Bandwidth
  readonly digests: Digests
  readonly buffers: Buffer[]
  /** Called when a connection may be started or has ended. */
  changed(): void
  received(bytes: number): void
  /** Called when the server refuses this many connections. */
  overloaded(host: string): void
}

interface Fetch {
  span: Span | undefined
  writer: PartWriter | undefined
  controller: AbortController
  ended?: Promise<void>
  startedAt: number
  answeredAt: number
  bytes: number
  /** Bytes when the requests were last compared. */
  compared: number | undefined
}

const MAX_CHANGES = 2
/** Maximum chunks of a file that may differ when they are read back. */
const MAX_DAMAGED_CHUNKS = 16
/** Bytes that are downloaded again before the digest is computed again. */
const REFETCH_BYTES = 8 * 1024 * 1024
/** A request is replaced if it is this much slower than the next slowest. */
const COMPARE_INTERVAL_MS = 10_000
const CRAWL_FACTOR = 20
/** Bytes per second that are never too slow. */
const FAST_ENOUGH_BYTES_PER_SECOND = 64 * 1024

/** Runs when all requests have ended. @throws the error of the transfer */
type Outcome = (part: PartFile) => Promise<TransferredFile>

/** Abort reason of requests that are cancelled here, which is not a failure. */
class Cancelled extends Error {}

export class FileTransfer {
  readonly file: TransferFile
  readonly #shared: SharedResources
  readonly #identity: string
  readonly #signal: AbortSignal
  readonly #source: FileSource
  readonly #outcome = withResolver<Outcome>()
  #part: PartFile | undefined
  #retries: Retries | undefined
  #presentSize: number | undefined
  #ended = false
  #changes = 0
  readonly #running = new Set<Fetch>()
  #ranges: 'unknown' | 'yes' | 'no' = 'unknown'
  readonly #line = new LineSpeed()
  #comparedAt = 0
  /** Bytes received in total, and the most that was ever on disk. */
  #arrived = 0
  #best = 0
  /** The digests of the hub, or of the file's location. */
  readonly #expected: Pick<TransferFile, 'sha256' | 'gitSha1'>
  #digest: FileDigest | undefined
  /** Chunks from an earlier process, and whether new chunks are compared too. */
  #found = new Set<number>()
  #careful = false
  /** The first chunk that was not sent to the digest. */
  #frontier = 0
  /** The next chunk to download again, and the old checksums of the chunks that are being downloaded again. */
  #again = 0
  readonly #before = new Map<number, number>()
  #mismatch: Mismatch | undefined
  #damages = 0

  constructor(
    file: TransferFile,
    identity: string,
    locate: () => Promise<FileLocation>,
    signal: AbortSignal,
    shared: SharedResources
  ) {
    this.file = file
    this.#shared = shared
    this.#identity = identity
    this.#signal = signal
    this.#source = new FileSource(locate)
    this.#expected = { sha256: file.sha256, gitSha1: file.gitSha1 }
  }

  get completed(): number {
    return this.#part?.map?.completed ?? this.#presentSize ?? 0
  }

  get total(): number {
    return this.#part?.map?.size ?? this.file.size ?? this.#presentSize ?? 0
  }

  get running(): number {
    return this.#running.size
  }

  get host(): string | undefined {
    return this.#source.host
  }

  /** All bytes are on disk, or the transfer has ended. The digest may be pending. */
  get fetched(): boolean {
    return this.#ended || this.#part?.map?.complete === true
  }

  get fetching(): boolean {
    return this.#part !== undefined && !this.fetched
  }

  async run(): Promise<TransferredFile> {
    const abort = () => this.#fail(this.#signal.reason)
    try {
      this.#signal.throwIfAborted()
      this.#signal.addEventListener('abort', abort, { once: true })
      const present = await checkTarget(this.file, this.#signal)
      if (present) {
        this.#presentSize = present.size
        return present
      }
      const { path, size, sha256, gitSha1, target } = this.file
      this.#part = await PartFile.open(target, { identity: this.#identity, path, size, sha256, gitSha1 })
      this.#retries = new Retries(this.#shared.options.firstDelay, size)
      this.#begin()
      this.#step()
      const outcome = await this.#outcome.promise
      await this.#stopRequests()
      return await outcome(this.#part!)
    } catch (error) {
      this.#signal.throwIfAborted()
      throw await storageError(error, this.file.target, this.total, this.total - this.completed)
    } finally {
      this.#signal.removeEventListener('abort', abort)
      await this.#close()
    }
  }

  async save(): Promise<void> {
    if (this.#ended) return
    for (const fetch of this.#running) this.#flush(fetch)
    const failed = (error: unknown) => this.#fail(error)
    // The journal does not wait for the disk, because the system keeps the written data even after a kill.
    void this.#part?.flush().catch(failed)
    await this.#part?.save().catch(failed)
  }

  #step(): void {
    const map = this.#part?.map
    if (!this.#ended && map) {
      this.#advance()
      if (map.complete && this.#running.size === 0) this.#compareAgain()
    }
    this.#shared.changed()
  }

  #setSize(size: number): void {
    this.#part!.setSize(size)
    this.#begin()
  }

  /** Starts over if nothing on disk can be used. */
  #changed(what: Mismatch): void {
    if (this.#ended) return
    this.#changes += 1
    if (this.#changes > MAX_CHANGES) {
      this.#giveUp(what)
      return
    }
    // Drop the data that running requests have received.
    for (const fetch of this.#running) fetch.writer = undefined
    this.#cancelRequests()
    this.#ranges = 'unknown'
    this.#source.drop()
    const part = this.#part!
    part.reset()
    part.place = undefined
    if (this.file.size === undefined) part.map = undefined
    this.#begin()
    this.#step()
  }

  #giveUp({ expected, got }: Mismatch): void {
    this.#end(async part => {
      await part.discard()
      throw wrongContent(this.file.path, expected, got)
    })
  }

  #finish(sha256: string): void {
    this.#end(async part => {
      await part.finish()
      return { size: part.map!.size, sha256 }
    })
  }

  #fail(error: unknown): void {
    this.#end(() => Promise.reject(error))
  }

  /** The first outcome counts. */
  #end(outcome: Outcome): void {
    this.#ended = true
    this.#outcome.resolve(outcome)
  }

  async #close(): Promise<void> {
    this.#ended = true
    this.#endDigest()
    await this.#stopRequests()
    try {
      await this.#part?.close()
    } catch (error) {
      // The earlier journal stays valid. On a full disk there is no space for a newer one.
      this.#shared.options.log(`the journal of ${this.file.target} could not be written: ${errorMessage(error)}`)
    }
  }

  // ---- verification ------------------------------------------------------------------------------------------------

  /*
   * A file is verified while its bytes arrive. Chunks from an earlier process are compared with the journal. New chunks
   * are compared only if the digest is wrong or the hub reports none. If the digest is wrong although all chunks are as
   * they arrived, chunks are downloaded again, a few at a time in order. The digest is recomputed as soon as one of them
   * differs from before.
   */

  get #hasDigest(): boolean {
    return this.#expected.sha256 !== undefined || this.#expected.gitSha1 !== undefined
  }

  /** Starts with the chunks that are already on disk. */
  #begin(): void {
    this.#endDigest()
    const { map } = this.#part!
    if (!map || this.#ended) return
    this.#again = 0
    this.#before.clear()
    this.#careful = false
    this.#found = new Set([...map.have.keys()].filter(chunk => map.isComplete(chunk)))
    this.#follow()
  }

  #follow(): void {
    this.#endDigest()
    this.#frontier = 0
    const { path, map } = this.#part!
    const { size, chunkSize } = map!
    const file = { path, size, chunkSize, git: this.#expected.gitSha1 !== undefined }
    this.#digest = this.#shared.digests.follow(file, reply => {
      if (reply.type === 'damaged') this.#onDamaged(reply.chunk)
      else if (reply.type === 'failed') this.#fail(Object.assign(new Error(reply.message), { code: reply.code }))
      else this.#onDigest(reply.sha256, reply.gitSha1)
    })
    this.#advance()
  }

  #endDigest(): void {
    this.#digest?.close()
    this.#digest = undefined
  }

  #advance(): void {
    const map = this.#part?.map
    if (!map || !this.#digest) return
    const first = this.#frontier
    const crcs: WrittenChunks['crcs'] = []
    for (; this.#frontier < map.count && map.isComplete(this.#frontier); this.#frontier++) {
      const checked = this.#careful || !this.#hasDigest || this.#found.has(this.#frontier)
      crcs.push(checked ? map.crc[this.#frontier] : undefined)
    }
    if (crcs.length > 0) this.#digest.written({ first, crcs })
  }

  #onDamaged(chunk: number): void {
    const { map, path } = this.#part!
    this.#damages += 1
    // Every chunk from an earlier process may be damaged once, but new chunks must not be.
    if (this.#damages > Math.max(MAX_DAMAGED_CHUNKS, map!.count)) {
      this.#endDigest()
      const message = `Data written to ${basename(path)} reads back differently. Check the disk.`
      this.#fail(new CorralError('internal', message))
      return
    }
    map!.drop(chunk)
    this.#frontier = chunk
    this.#step()
  }

  #onDigest(sha256: string, gitSha1: string | undefined): void {
    this.#digest = undefined
    this.#mismatch = compareDigests(this.#expected, sha256, gitSha1)
    const isPartial = this.#ranges !== 'no'
    if (!this.#mismatch) this.#finish(sha256)
    else if (isPartial && !this.#careful) {
      this.#careful = true
      this.#follow()
    } else {
      // Another location may have the right content.
      this.#source.drop()
      if (isPartial) this.#fetchAgain()
      else this.#changed(this.#mismatch)
    }
  }

  /** Called when all chunks are on disk and no request is running. */
  #compareAgain(): void {
    if (this.#digest || this.#before.size === 0) return
    const differs = [...this.#before].some(([chunk, crc]) => this.#part!.map!.crc[chunk] !== crc)
    if (differs) this.#follow()
    else this.#fetchAgain()
  }

  /** Drops the next chunks, so that they are downloaded again. */
  #fetchAgain(): void {
    const map = this.#part!.map!
    this.#before.clear()
    for (let bytes = 0; bytes < REFETCH_BYTES && this.#again < map.count; this.#again++) {
      bytes += map.have[this.#again]!
      this.#before.set(this.#again, map.crc[this.#again]!)
      map.drop(this.#again)
    }
    if (this.#before.size > 0) this.#step()
    else this.#giveUp(this.#mismatch!)
  }

  // ---- requests ----------------------------------------------------------------------------------------------------

  /** Starts another request. @returns false if none is possible now */
  start(now: number): boolean {
    const part = this.#part
    if (this.#ended || !part || now < this.#retries!.waitUntil || part.map?.complete) return false
    // The first request finds out whether the server supports ranges.
    if (this.#running.size >= (this.#ranges === 'yes' ? this.#shared.options.connectionsPerFile : 1)) return false
    if (this.#ranges === 'no' && part.map && part.map.completed > 0) {
      part.reset()
      this.#begin()
    }
    const { map } = part
    const span = map && (this.#ranges === 'no' ? { at: 0, to: map.count } : this.#nextSpan())
    if (map && !span) return false
    const times = { startedAt: now, answeredAt: now }
    const controller = new AbortController()
    const fetch: Fetch = { span, writer: undefined, controller, ...times, bytes: 0, compared: undefined }
    this.#running.add(fetch)
    fetch.ended = this.#fetch(fetch)
      .catch(error => this.#fail(error))
      .finally(() => {
        this.#running.delete(fetch)
        this.#step()
      })
    return true
  }

  /** Called often: replaces a request that crawls while others do not. */
  tick(now: number): void {
    if (now - this.#comparedAt < COMPARE_INTERVAL_MS) return
    const seconds = (now - this.#comparedAt) / 1000
    this.#comparedAt = now
    const [slowest, next] = [...this.#running]
      .filter(fetch => fetch.compared !== undefined)
      .map(fetch => ({ fetch, speed: (fetch.bytes - fetch.compared!) / seconds }))
      .sort((a, b) => a.speed - b.speed)
    for (const fetch of this.#running) fetch.compared = fetch.bytes
    if (!slowest || !next || slowest.speed >= FAST_ENOUGH_BYTES_PER_SECOND || slowest.speed * CRAWL_FACTOR > next.speed)
      return
    slowest.fetch.controller.abort(new Cancelled())
  }

  /** Whether a request could be made now, and none is running. */
  isIdle(now: number): boolean {
    return this.fetching && this.#running.size === 0 && now >= this.#retries!.waitUntil
  }

  /** Ends the latest request to free its connection for another run. Data it has received is kept. */
  yieldConnection(): void {
    const latest = [...this.#running].at(-1)
    if (latest && !latest.controller.signal.aborted) latest.controller.abort(new Cancelled())
  }

  #cancelRequests(): void {
    for (const { controller } of this.#running) controller.abort(new Cancelled())
  }

  async #stopRequests(): Promise<void> {
    this.#cancelRequests()
    await Promise.all([...this.#running].map(({ ended }) => ended))
  }

  #nextSpan(): Span | undefined {
    const map = this.#part!.map!
    const taken = [...this.#running].flatMap(fetch => fetch.span ?? [])
    const bytes = requestSize(map, taken, this.#shared.options.connectionsPerFile, this.#line.worthwhile)
    return freeSpan(map, taken, bytes) ?? stolenSpan(map, taken)
  }

  async #fetch(fetch: Fetch): Promise<void> {
    const { signal } = fetch.controller
    const location = await untilAborted(this.#source.current(), signal).catch(error => {
      if (!signal.aborted) throw error
    })
    if (location === undefined) return
    // The location may report facts that are missing in the hub's listing.
    this.#expected.sha256 ??= location.reported.sha256
    if (location.reported.size !== undefined && !this.#part!.map) this.#setSize(location.reported.size)
    const buffer = this.#shared.buffers.pop() ?? Buffer.allocUnsafeSlow(WRITE_BYTES)
    try {
      for (;;) {
        const { map } = this.#part!
        const { span } = fetch
        const { connections, options, bandwidth } = this.#shared
        const result = await fetchBytes(connections, requestTarget(location), {
          start: map && span ? map.start(span.at) + map.have[span.at]! : 0,
          end: map && span ? map.end(span.to - 1) : undefined,
          size: map?.size,
          onAnswer: (answer, tag, wait) => {
            if (answer.kind === 'range') this.#line.answered(wait)
            fetch.answeredAt = performance.now()
            return this.#onAnswer(fetch, answer, location.reported.identity ?? tag, buffer)
          },
          signal: fetch.controller.signal,
          stallTimeout: options.stallTimeout,
          pace: bytes => bandwidth.delay(bytes, performance.now())
        })
        if (result.answer.kind !== 'redirect') {
          this.#onResult(fetch, location, result)
          return
        }
        const why = followRedirect(location, result.answer.to)
        if (why === undefined) continue
        this.#failed(fetch, location, { what: why })
        return
      }
    } catch (error) {
      if (signal.aborted) return
      if (!(error instanceof ConnectionFailure)) throw error
      this.#failed(fetch, location, { what: failureText(error) })
    } finally {
      this.#line.received(fetch.bytes, performance.now() - fetch.answeredAt)
      this.#flush(fetch)
      fetch.writer = undefined
      this.#shared.buffers.push(buffer)
    }
  }

  #onAnswer(fetch: Fetch, answer: Answer, tag: string | undefined, buffer: Buffer): Sink | undefined {
    const part = this.#part!
    if (answer.kind === 'rangeless' && this.#ranges === 'unknown') this.#ranges = 'no'
    if (answer.kind !== 'range' && answer.kind !== 'whole') return undefined
    if (!this.#hasDigest && tag !== undefined) {
      if (part.place !== undefined && part.place !== tag && part.map && part.map.completed > 0) {
        this.#changed({ expected: `the content ${part.place}`, got: tag })
        return undefined
      }
      part.place = tag
    }
    if (!part.map) this.#setSize(answer.size!)
    if (answer.kind === 'range') this.#ranges = 'yes'
    else if (this.#ranges === 'unknown') this.#ranges = 'no'
    const map = part.map!
    if (map.size === 0) return undefined
    fetch.span ??= { at: 0, to: map.count }
    // Without ranges the whole file is one stream, and there is no other request.
    if (this.#ranges === 'no') fetch.span.to = map.count
    const { span } = fetch
    const { readSize } = this.#shared.bandwidth
    const onWritten = (length: number) => {
      this.#arrived += length
      if (map.isComplete(span.at)) this.#advance()
    }
    const writer = new PartWriter({ descriptor: part.descriptor, map, span, buffer, readSize, onWritten })
    fetch.writer = writer
    return {
      room: () => writer.room(),
      onBytes: length => {
        fetch.bytes += length
        this.#shared.received(length)
        return writer.filled(length)
      }
    }
  }

  #onResult(fetch: Fetch, location: ActiveLocation, { answer, head, text, isPage }: FetchResult): void {
    const reason = text === '' ? '' : `: ${text}`
    const what = `answers ${head.status}${reason}`
    const size = this.#part!.map?.size
    switch (answer.kind) {
      case 'refused':
        this.#refused(location, { what, status: head.status, isPage })
        break
      case 'busy': {
        this.#shared.overloaded(location.url.host)
        const retryAfter = retryAfterSeconds(head.headers, Date.now())
        this.#failed(fetch, location, { what, status: head.status, retryAfter })
        break
      }
      case 'unusable': {
        const problem = { what: `${answer.why}${reason}`, isPage: isPage || [407, 511].includes(head.status) }
        if (answer.isLasting) this.#refused(location, problem)
        else this.#failed(fetch, location, problem)
        break
      }
      case 'size':
        this.#changed(sizeMismatch(size, answer.size))
        break
      case 'rangeless':
        if (this.#ranges === 'yes') this.#failed(fetch, location, { what: 'sends the whole file instead of a part' })
        break
      case 'empty':
        this.#setSize(0)
        break
      default: {
        location.failures = 0
        const { writer, span } = fetch
        // A response of unknown length may end before the end of the file.
        const isShort = answer.kind === 'whole' && span && span.at < span.to && span.to === this.#part!.map!.count
        if (writer && isShort) this.#changed(sizeMismatch(size, writer.position))
      }
    }
  }

  #failed(fetch: Fetch, location: ActiveLocation, problem: FetchProblem): void {
    if (this.#ended) return
    this.#flush(fetch)
    // A busy server keeps its location: it will answer later.
    if (problem.status === undefined) this.#source.failed(location)
    const again = this.#retries!.failed(performance.now(), fetch.startedAt, this.#progress(), problem.retryAfter)
    if (!again) this.#fail(fetchError(this.file.path, location.url.host, problem))
  }

  #refused(location: ActiveLocation, problem: FetchProblem): void {
    // When a location expires, all its requests are refused. That counts as one refusal.
    if (this.#ended || !this.#source.drop(location)) return
    if (this.#running.size > 1) this.#shared.overloaded(location.url.host)
    const again = this.#retries!.refused(performance.now(), this.#progress())
    if (!again) this.#fail(fetchError(this.file.path, location.url.host, problem))
  }

  /** Without ranges each attempt starts over, so only bytes beyond earlier attempts count as progress. */
  #progress(): number {
    this.#best = Math.max(this.#best, this.completed)
    return this.#ranges === 'no' ? this.#best : this.#arrived
  }

  #flush(fetch: Fetch): void {
    try {
      fetch.writer?.flush()
    } catch (error) {
      this.#fail(error)
    }
  }
}

function failureText(error: ConnectionFailure): string {
  if (error.kind === 'connect') return `cannot be reached: ${error.message}`
  return error.kind === 'protocol' ? `does not answer like a web server: ${error.message}` : `failed: ${error.message}`
}

function sizeMismatch(expected: number | undefined, got: number): Mismatch {
  return { expected: expected === undefined ? 'another size' : `${expected} bytes`, got: `${got} bytes` }
}
