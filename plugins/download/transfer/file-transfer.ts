import type { FileLocation } from '../../../core/downloads.ts'
import { messageOf } from '../../../core/errors.ts'
import type { Answer } from './answer.ts'
import { wishedDelay } from './back-off.ts'
import type { EngineParts } from './engine.ts'
import { type FetchResult, fetchBytes, type Sink } from './fetch.ts'
import { checkTarget } from './file-check.ts'
import { storageError, type Trouble, troubleError, wrongContent } from './file-errors.ts'
import { ConnectionFailure } from './http/connection.ts'
import { PartFile } from './part-file.ts'
import { PartWriter } from './part-writer.ts'
import { follow, Place, type Spot } from './place.ts'
import { Retries } from './retries.ts'
import { freeSpan, requestSize, type Span, stolenSpan, unclaimedBytes } from './span-plan.ts'
import { StreamWriter } from './stream-writer.ts'
import type { TransferFile, TransferredFile } from './transfer.ts'
import { Verification, type Wrong } from './verification.ts'

/** Times that a file's content may change while it is fetched. */
const MOST_CHANGES = 2
/** Milliseconds over which a connection is compared with the others, and how much slower it may be. */
const CRAWL_TIME = 10_000
const CRAWL = 20
const SLOW = 64 * 1024

/** One request under way. */
interface Fetch {
  span: Span | undefined
  /** Its first chunk. */
  from: number
  writer: PartWriter | StreamWriter | undefined
  controller: AbortController
  startedAt: number
  /** Bytes that came, in all and when it was last compared. */
  bytes: number
  compared: number
}

/** The request was ended here, and nobody is to blame. */
class Ended extends Error {}

/** Fetches one file: plans its requests, keeps what comes, and verifies it. */
export class FileTransfer {
  readonly file: TransferFile
  readonly #parts: EngineParts
  readonly #identity: string
  readonly #signal: AbortSignal
  readonly #place: Place
  readonly #retries: Retries
  readonly #verification: Verification
  readonly #fetches = new Set<Fetch>()
  readonly #settled: Promise<TransferredFile>
  #resolve!: (file: TransferredFile) => void
  #reject!: (error: unknown) => void
  #part: PartFile | undefined
  /** Of a target that was there already. */
  #doneSize: number | undefined
  #ranges: 'unknown' | 'yes' | 'no' = 'unknown'
  #ended = false
  /** Bytes that have come, in all; never less than before. */
  #arrived = 0
  /** The most that was there of it. */
  #best = 0
  #speed: number | undefined
  #measured = { at: 0, arrived: 0 }
  #replacedAt = 0
  #changes = 0

  constructor(
    file: TransferFile,
    identity: string,
    locate: () => Promise<FileLocation>,
    signal: AbortSignal,
    parts: EngineParts
  ) {
    this.file = file
    this.#parts = parts
    this.#identity = identity
    this.#signal = signal
    this.#place = new Place(locate)
    this.#retries = new Retries(parts.firstDelay, file.size, performance.now())
    this.#verification = new Verification({ sha256: file.sha256, gitSha1: file.gitSha1 }, parts.digests, {
      onRight: sha256 => void this.#finish(sha256),
      onMissing: () => this.#step(),
      onAllMissing: wrong => this.#changed(wrong),
      onWrong: wrong => void this.#giveUp(wrong),
      onFailed: error => this.#fail(error)
    })
    this.#settled = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    // Failures are told to whoever awaits `run`.
    this.#settled.catch(() => {})
  }

  get completed(): number {
    return this.#part?.map?.completed ?? this.#doneSize ?? 0
  }

  get total(): number {
    return this.#part?.map?.size ?? this.file.size ?? this.#doneSize ?? 0
  }

  /** Connections that it has. */
  get running(): number {
    return this.#fetches.size
  }

  /** Those from which bytes come. */
  get delivering(): number {
    let count = 0
    for (const fetch of this.#fetches) if (fetch.bytes > 0) count += 1
    return count
  }

  get host(): string | undefined {
    return this.#place.host
  }

  /** All bytes are there, or it is over; only the digest may be missing. */
  get fetched(): boolean {
    return this.#ended || this.#part?.map?.whole === true
  }

  /** When the next connection may be started; 0 is any time. */
  get waitUntil(): number {
    return this.#retries.waitUntil
  }

  /** Fetches and verifies it. @throws CorralError, the signal's reason */
  async run(): Promise<TransferredFile> {
    const abort = () => this.#fail(this.#signal.reason)
    try {
      this.#signal.throwIfAborted()
      this.#signal.addEventListener('abort', abort, { once: true })
      const present = await checkTarget(this.file, this.#parts.digests, this.#signal)
      if (present) {
        this.#doneSize = present.size
        this.#ended = true
        return present
      }
      const { path, size, sha256, gitSha1 } = this.file
      this.#part = await PartFile.open(this.file.target, { identity: this.#identity, path, size, sha256, gitSha1 })
      this.#begin()
      this.#step()
      return await this.#settled
    } catch (error) {
      throw await this.#told(error)
    } finally {
      this.#signal.removeEventListener('abort', abort)
      await this.#close()
    }
  }

  /** Notes in the journal what has come so far. */
  async save(): Promise<void> {
    if (this.#ended || !this.#part) return
    for (const fetch of this.#fetches) this.#flush(fetch)
    try {
      await this.#part.save()
    } catch (error) {
      this.#fail(error)
    }
  }

  /** Starts one more connection; false when there is nothing for it to do now. */
  start(now: number): boolean {
    const part = this.#part
    if (!part || this.fetched || now < this.#retries.waitUntil) return false
    if (this.#fetches.size >= (this.#ranges === 'yes' ? this.#parts.connectionsPerFile : 1)) return false
    let span: Span | undefined
    if (part.map) {
      if (this.#ranges === 'no' && part.map.completed > 0) this.#reset()
      span = this.#ranges === 'no' ? { at: 0, to: part.map.count } : this.#nextSpan()
      if (!span) return false
    }
    const controller = new AbortController()
    const from = span?.at ?? 0
    const fetch: Fetch = { span, from, writer: undefined, controller, startedAt: now, bytes: 0, compared: 0 }
    this.#fetches.add(fetch)
    void this.#fetch(fetch)
      .catch(error => this.#fail(error))
      .finally(() => {
        this.#fetches.delete(fetch)
        this.#step()
      })
    return true
  }

  /** Connections that it could use, those it has included. */
  get wanted(): number {
    if (!this.#part || this.fetched || this.#ranges !== 'yes') return this.#fetches.size
    return this.#parts.connectionsPerFile
  }

  /** To be called once a second: measures speed and replaces a connection that crawls while others do not. */
  tick(now: number): void {
    const seconds = (now - this.#measured.at) / 1000
    if (seconds >= 1 && this.#fetches.size > 0) {
      const speed = (this.#arrived - this.#measured.arrived) / seconds / this.#fetches.size
      this.#speed = this.#speed === undefined ? speed : (this.#speed + speed) / 2
      this.#measured = { at: now, arrived: this.#arrived }
    }
    if (now - this.#replacedAt < CRAWL_TIME) return
    this.#replacedAt = now
    const old = [...this.#fetches].filter(fetch => now - fetch.startedAt >= CRAWL_TIME)
    const speeds = old.map(fetch => ({ fetch, speed: ((fetch.bytes - fetch.compared) * 1000) / CRAWL_TIME }))
    for (const fetch of old) fetch.compared = fetch.bytes
    speeds.sort((a, b) => a.speed - b.speed)
    const [slowest, next] = speeds
    if (!slowest || !next || slowest.speed >= SLOW || slowest.speed * CRAWL > next.speed) return
    slowest.fetch.controller.abort(new Ended())
  }

  /** Bytes a second of one connection, before it was measured for a whole second. */
  #firstSpeed(): number | undefined {
    const speeds = [...this.#fetches].map(({ bytes, startedAt }) => (bytes * 1000) / (performance.now() - startedAt))
    return speeds.length === 0 ? undefined : Math.max(...speeds)
  }

  #spans(): Span[] {
    return [...this.#fetches].flatMap(fetch => fetch.span ?? [])
  }

  #nextSpan(): Span | undefined {
    const map = this.#part!.map!
    const taken = this.#spans()
    const speed = this.#speed ?? this.#firstSpeed()
    const bytes = requestSize(unclaimedBytes(map, taken), this.#parts.connectionsPerFile, speed)
    return freeSpan(map, taken, bytes) ?? stolenSpan(map, taken, speed)
  }

  async #fetch(fetch: Fetch): Promise<void> {
    const spot = await this.#place.spot()
    if (this.#ended) return
    this.#learn(spot)
    const buffer = this.#parts.buffers.take()
    try {
      for (;;) {
        const result = await this.#ask(fetch, spot, buffer)
        if (result.answer.kind !== 'redirect') return this.#onResult(fetch, spot, result)
        const why = follow(spot, result.answer.to)
        if (why !== undefined) return this.#failed(fetch, spot, { kind: 'failed', what: why })
      }
    } catch (error) {
      if (error instanceof Ended || this.#ended) return
      if (!(error instanceof ConnectionFailure)) throw error
      if (fetch.span) this.#verification.suspect(fetch.from, fetch.span.at)
      this.#failed(fetch, spot, { kind: 'failed', what: failureText(error) })
    } finally {
      this.#flush(fetch)
      fetch.writer = undefined
      this.#parts.buffers.give(buffer)
    }
  }

  async #ask(fetch: Fetch, spot: Spot, buffer: Buffer): Promise<FetchResult> {
    const map = this.#part!.map
    const { span } = fetch
    const start = map && span ? map.start(span.at) + (map.have[span.at] ?? 0) : 0
    return await fetchBytes(
      this.#parts.connections,
      { url: spot.url, headers: spot.headers, proxy: spot.location.proxy },
      {
        start,
        end: map && span ? map.end(span.to - 1) : undefined,
        size: map?.size,
        onAnswer: (answer, tag) => this.#onAnswer(fetch, answer, spot.location.identity ?? tag, buffer)
      },
      {
        signal: fetch.controller.signal,
        stallTimeout: this.#parts.stallTimeout,
        pace: bytes => this.#parts.bandwidth.delay(bytes, performance.now())
      }
    )
  }

  /** What the place's owner says of the file where the listing did not. */
  #learn({ location }: Spot): void {
    this.#verification.expected.sha256 ??= location.sha256
    if (location.size !== undefined && !this.#part!.map) {
      this.#part!.setSize(location.size)
      this.#begin()
    }
  }

  #onAnswer(fetch: Fetch, answer: Answer, tag: string | undefined, buffer: Buffer): Sink | undefined {
    const part = this.#part!
    if (answer.kind === 'rangeless' && this.#ranges === 'unknown') this.#ranges = 'no'
    if (answer.kind !== 'range' && answer.kind !== 'whole') return undefined
    const { sha256, gitSha1 } = this.#verification.expected
    const named = sha256 === undefined && gitSha1 === undefined
    if (named && tag !== undefined) {
      if (part.place !== undefined && part.place !== tag && this.completed > 0) {
        this.#changed({ expected: part.place, got: tag })
        return undefined
      }
      part.place = tag
    }
    if (!part.map && answer.size !== undefined) {
      part.setSize(answer.size)
      this.#begin()
    }
    if (answer.kind === 'range') this.#ranges = 'yes'
    else if (this.#ranges === 'unknown') this.#ranges = 'no'
    this.#verification.allowParts(this.#ranges === 'yes')
    const { map } = part
    if (!map) {
      fetch.writer = new StreamWriter(part.descriptor, buffer)
      return this.#counting(fetch, fetch.writer)
    }
    if (map.size === 0) return undefined
    fetch.span ??= { at: 0, to: map.count }
    // A whole file is one stream; there are no other connections before a place is known to do ranges.
    if (this.#ranges === 'no') fetch.span.to = map.count
    const { span } = fetch
    fetch.writer = new PartWriter(part.descriptor, map, span, buffer, this.#parts.bandwidth.readSize, length => {
      this.#written(length)
      if (map.isWhole(span.at)) this.#verification.advance()
    })
    return this.#counting(fetch, fetch.writer)
  }

  #counting(fetch: Fetch, sink: Sink): Sink {
    return {
      room: () => sink.room(),
      took: length => {
        fetch.bytes += length
        this.#parts.received(this.#place.host, length)
        return sink.took(length)
      }
    }
  }

  /** What counts as progress: where each try starts anew, only what goes beyond the tries before. */
  get #progress(): number {
    this.#best = Math.max(this.#best, this.completed)
    return this.#ranges === 'no' ? this.#best : this.#arrived
  }

  #written(length: number): void {
    this.#arrived += length
  }

  #onResult(fetch: Fetch, spot: Spot, { answer, head, text }: FetchResult): void {
    const said = text === '' ? '' : `: ${text}`
    const what = `answers ${head.status}${said}`
    const wish = wishedDelay(head.headers, Date.now())
    if (answer.kind === 'refused') {
      this.#refused(spot, { kind: 'refused', what, status: head.status })
      return
    }
    if (answer.kind === 'busy') {
      this.#parts.trouble(spot.url.host)
      this.#failed(fetch, undefined, {
        kind: 'busy',
        what,
        status: head.status,
        ...(wish === undefined ? {} : { wish })
      })
      return
    }
    if (answer.kind === 'unusable') {
      this.#failed(fetch, spot, { kind: 'failed', what: `${answer.why}${said}` })
      return
    }
    if (answer.kind === 'size') {
      this.#changed(sizes(this.#part!.map?.size, answer.size))
      return
    }
    if (answer.kind === 'rangeless') {
      if (this.#ranges === 'yes') this.#failed(fetch, spot, { kind: 'failed', what: 'sends the whole file for a part' })
      return
    }
    if (answer.kind === 'empty') {
      this.#part!.setSize(0)
      this.#begin()
      return
    }
    const { writer } = fetch
    if (writer instanceof StreamWriter) {
      writer.flush()
      this.#written(writer.written)
      this.#part!.setSize(writer.written).fill()
      this.#begin()
    } else if (
      answer.kind === 'whole' &&
      writer &&
      !this.#part!.map!.whole &&
      fetch.span!.to === this.#part!.map!.count
    ) {
      const { position } = writer
      this.#changed(sizes(this.#part!.map!.size, position))
    }
    spot.failures = 0
  }

  #failed(fetch: Fetch, spot: Spot | undefined, trouble: Trouble): void {
    if (this.#ended) return
    this.#flush(fetch)
    const host = this.#place.host ?? new URL(spot?.location.url ?? 'http://unknown').host
    if (spot) this.#place.failed(spot)
    const again = this.#retries.failed(performance.now(), fetch.startedAt, this.#progress, trouble.wish)
    if (!again) this.#fail(troubleError(this.file.path, host, trouble))
  }

  #refused(spot: Spot, trouble: Trouble): void {
    // All connections are refused when a location ends: that counts once.
    if (this.#ended || !this.#place.drop(spot)) return
    if (this.#fetches.size > 1) this.#parts.trouble(spot.url.host)
    if (!this.#retries.refused(performance.now(), this.#progress)) {
      this.#fail(troubleError(this.file.path, spot.url.host, trouble))
    }
  }

  /** The place has another content than before: nothing of what is there can be used. */
  #changed(what: Wrong): void {
    if (this.#ended) return
    this.#changes += 1
    if (this.#changes > MOST_CHANGES) return void this.#giveUp(what)
    this.#reset()
    if (this.file.size === undefined) this.#part!.map = undefined
    this.#part!.place = undefined
    this.#ranges = 'unknown'
    this.#place.renew()
  }

  #reset(): void {
    for (const fetch of this.#fetches) {
      fetch.writer = undefined
      fetch.controller.abort(new Ended())
    }
    this.#part!.reset()
    this.#begin()
  }

  #flush(fetch: Fetch): void {
    try {
      fetch.writer?.flush()
    } catch (error) {
      this.#fail(error)
    }
  }

  /** The map is new: verification starts with it. */
  #begin(): void {
    const { map, path } = this.#part!
    if (map) this.#verification.begin(path, map)
    else this.#verification.end()
  }

  async #giveUp(what: Wrong): Promise<void> {
    this.#ended = true
    await this.#endFetches()
    await this.#part!.discard()
    this.#reject(wrongContent(this.file.path, what.expected, what.got))
  }

  /** Goes on with whatever is next. */
  #step(): void {
    const map = this.#part?.map
    if (!this.#ended && map) {
      this.#verification.advance()
      if (map.whole && this.#fetches.size === 0) this.#verification.complete()
    }
    this.#parts.changed()
  }

  async #finish(sha256: string): Promise<void> {
    this.#ended = true
    try {
      const { size } = this.#part!.map!
      await this.#endFetches()
      await this.#part!.finish()
      this.#resolve({ size, sha256 })
    } catch (error) {
      this.#reject(error)
    }
  }

  #fail(error: unknown): void {
    this.#ended = true
    for (const fetch of this.#fetches) fetch.controller.abort(new Ended())
    this.#reject(error)
  }

  async #endFetches(): Promise<void> {
    for (const fetch of this.#fetches) fetch.controller.abort(new Ended())
    while (this.#fetches.size > 0) await new Promise(resolve => setImmediate(resolve))
  }

  async #close(): Promise<void> {
    this.#ended = true
    this.#verification.end()
    await this.#endFetches()
    try {
      await this.#part?.close()
    } catch (error) {
      // The journal of before stays, and holds; on a full disk there is no room for a newer one.
      this.#parts.log(`the journal of ${this.file.target} could not be written: ${messageOf(error)}`)
    }
  }

  async #told(error: unknown): Promise<unknown> {
    const missing = this.total - this.completed
    return await storageError(error, this.file.target, this.total, missing)
  }
}

function failureText(error: ConnectionFailure): string {
  if (error.kind === 'connect') return `cannot be reached: ${error.message}`
  return error.kind === 'protocol'
    ? `does not answer as a web server does: ${error.message}`
    : `failed: ${error.message}`
}

function sizes(expected: number | undefined, got: number): Wrong {
  return { expected: expected === undefined ? 'another size' : `${expected} bytes`, got: `${got} bytes` }
}
