import { freeSpan, requestSize, type Span, Speeds, stolenSpan, unclaimedBytes } from './chunks.ts'
import { follow, type Place, type Spot } from './file-source.ts'
import { type FetchResult, fetchBytes, type Sink } from './http/http-client.ts'
import type { Answer } from './http/http-response.ts'
import { ConnectionFailure } from './http/http-socket.ts'
import { type PartFile, PartWriter, StreamWriter } from './part-file.ts'
import { type Retries, wishedDelay } from './retries.ts'
import type { SharedResources } from './shared-resources.ts'
import { type Trouble, troubleError } from './transfer-errors.ts'
import type { Verification, Wrong } from './verification.ts'

/** One request under way. */
interface Fetch {
  span: Span | undefined
  /** Its first chunk. */
  from: number
  writer: PartWriter | StreamWriter | undefined
  controller: AbortController
  startedAt: number
  bytes: number
}

export interface FetchesEvents {
  /** One has ended. */
  onEnd(): void
  /** The size has become known. */
  onSize(): void
  /** The place has another content than before: nothing of what is there can be used. */
  onChanged(wrong: Wrong): void
  onFailed(error: unknown): void
}

export interface FetchesNeeds {
  /** Of the file in its repository, for messages. */
  path: string
  part: PartFile
  place: Place
  retries: Retries
  verification: Verification
}

/** The request was ended here, and nobody is to blame. */
class Ended extends Error {}

/** The requests for one file: plans them, and decides what their ends mean. */
export class FileFetches {
  readonly #parts: SharedResources
  readonly #needs: FetchesNeeds
  readonly #events: FetchesEvents
  readonly #running = new Set<Fetch>()
  readonly #speeds = new Speeds()
  #ranges: 'unknown' | 'yes' | 'no' = 'unknown'
  #stopped = false
  #allEnded: (() => void) | undefined
  /** Bytes that have come, in all, and the most that was there of the file. */
  #arrived = 0
  #best = 0

  constructor(parts: SharedResources, needs: FetchesNeeds, events: FetchesEvents) {
    this.#parts = parts
    this.#needs = needs
    this.#events = events
  }

  get running(): number {
    return this.#running.size
  }

  /** Those from which bytes come. */
  get delivering(): number {
    let count = 0
    for (const fetch of this.#running) if (fetch.bytes > 0) count += 1
    return count
  }

  /** Requests that could be running. */
  get wanted(): number {
    return this.#ranges === 'yes' ? this.#parts.connectionsPerFile : this.#running.size
  }

  /** Starts one more; false when there is nothing for it to do now. */
  start(now: number): boolean {
    const { part, retries } = this.#needs
    if (this.#stopped || now < retries.waitUntil || part.map?.whole) return false
    // Whether a place does ranges is found out by one request.
    if (this.#running.size >= (this.#ranges === 'yes' ? this.#parts.connectionsPerFile : 1)) return false
    if (this.#ranges === 'no' && part.map && part.map.completed > 0) {
      part.reset()
      this.#events.onSize()
    }
    const { map } = part
    const span = map && (this.#ranges === 'no' ? { at: 0, to: map.count } : this.#nextSpan())
    if (map && !span) return false
    const controller = new AbortController()
    const fetch: Fetch = { span, from: span?.at ?? 0, writer: undefined, controller, startedAt: now, bytes: 0 }
    this.#running.add(fetch)
    void this.#fetch(fetch)
      .catch(error => this.#events.onFailed(error))
      .finally(() => {
        this.#running.delete(fetch)
        if (this.#running.size === 0) this.#allEnded?.()
        this.#events.onEnd()
      })
    return true
  }

  /** To be called once a second: measures speed and replaces a request that crawls while others do not. */
  tick(now: number): void {
    this.#speeds.tick(now, this.#arrived, this.#running)
    this.#speeds.crawling(now, this.#running)?.controller.abort(new Ended())
  }

  /** Writes what has come. */
  flush(): void {
    for (const fetch of this.#running) this.#flush(fetch)
  }

  /** Ends all requests, so that the file can be begun anew: they write nothing any more. */
  restart(): void {
    for (const fetch of this.#running) fetch.writer = undefined
    this.#abort()
    this.#ranges = 'unknown'
  }

  /** Ends all requests for good; settles when nothing is written any longer. */
  async stop(): Promise<void> {
    this.#stopped = true
    this.#abort()
    if (this.#running.size > 0) {
      await new Promise<void>(resolve => {
        this.#allEnded = resolve
      })
    }
  }

  #abort(): void {
    for (const { controller } of this.#running) controller.abort(new Ended())
  }

  #nextSpan(): Span | undefined {
    const map = this.#needs.part.map!
    const taken = [...this.#running].flatMap(fetch => fetch.span ?? [])
    const speed = this.#speeds.each(performance.now(), this.#running)
    const bytes = requestSize(unclaimedBytes(map, taken), this.#parts.connectionsPerFile, speed)
    return freeSpan(map, taken, bytes) ?? stolenSpan(map, taken, speed)
  }

  async #fetch(fetch: Fetch): Promise<void> {
    const { signal } = fetch.controller
    const spot = await unlessAborted(this.#needs.place.spot(), signal)
    if (spot === undefined) return
    this.#learn(spot)
    const buffer = this.#parts.buffers.take()
    try {
      for (;;) {
        const result = await this.#ask(fetch, spot, buffer)
        if (result.answer.kind !== 'redirect') {
          this.#onResult(fetch, spot, result)
          return
        }
        const why = follow(spot, result.answer.to)
        if (why === undefined) continue
        this.#failed(fetch, spot, { kind: 'failed', what: why })
        return
      }
    } catch (error) {
      if (signal.aborted) return
      if (!(error instanceof ConnectionFailure)) throw error
      if (fetch.span) this.#needs.verification.suspect(fetch.from, fetch.span.at)
      this.#failed(fetch, spot, { kind: 'failed', what: failureText(error) })
    } finally {
      this.#flush(fetch)
      fetch.writer = undefined
      this.#parts.buffers.give(buffer)
    }
  }

  async #ask(fetch: Fetch, spot: Spot, buffer: Buffer): Promise<FetchResult> {
    const { map } = this.#needs.part
    const { span } = fetch
    const start = map && span ? map.start(span.at) + map.have[span.at]! : 0
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

  /** What the hub says of the file where its listing did not. */
  #learn({ location }: Spot): void {
    const { verification, part } = this.#needs
    verification.expected.sha256 ??= location.sha256
    if (location.size !== undefined && !part.map) this.#setSize(location.size)
  }

  #setSize(size: number): void {
    this.#needs.part.setSize(size)
    this.#events.onSize()
  }

  #onAnswer(fetch: Fetch, answer: Answer, tag: string | undefined, buffer: Buffer): Sink | undefined {
    const { part, verification } = this.#needs
    if (answer.kind === 'rangeless' && this.#ranges === 'unknown') this.#ranges = 'no'
    if (answer.kind !== 'range' && answer.kind !== 'whole') return undefined
    if (!verification.hasDigest && tag !== undefined) {
      if (part.place !== undefined && part.place !== tag && part.map && part.map.completed > 0) {
        this.#events.onChanged({ expected: `the content ${part.place}`, got: tag })
        return undefined
      }
      part.place = tag
    }
    if (!part.map && answer.size !== undefined) this.#setSize(answer.size)
    if (answer.kind === 'range') this.#ranges = 'yes'
    else if (this.#ranges === 'unknown') this.#ranges = 'no'
    verification.allowParts(this.#ranges === 'yes')
    const writer = this.#writer(fetch, buffer)
    fetch.writer = writer
    return (
      writer && {
        room: () => writer.room(),
        took: length => {
          fetch.bytes += length
          this.#parts.received(this.#needs.place.host, length)
          return writer.took(length)
        }
      }
    )
  }

  #writer(fetch: Fetch, buffer: Buffer): PartWriter | StreamWriter | undefined {
    const { part, verification } = this.#needs
    const { map, descriptor } = part
    if (!map) return new StreamWriter(descriptor, buffer)
    if (map.size === 0) return undefined
    fetch.span ??= { at: 0, to: map.count }
    // A whole file is one stream; there are no other requests before a place is known to do ranges.
    if (this.#ranges === 'no') fetch.span.to = map.count
    const { span } = fetch
    return new PartWriter(descriptor, map, span, buffer, this.#parts.bandwidth.readSize, length => {
      this.#arrived += length
      if (map.isWhole(span.at)) verification.advance()
    })
  }

  #onResult(fetch: Fetch, spot: Spot, { answer, head, text }: FetchResult): void {
    const said = text === '' ? '' : `: ${text}`
    const what = `answers ${head.status}${said}`
    const { part } = this.#needs
    switch (answer.kind) {
      case 'refused':
        this.#refused(spot, { kind: 'refused', what, status: head.status })
        break
      case 'busy':
        this.#parts.trouble(spot.url.host)
        this.#failed(fetch, spot, {
          kind: 'busy',
          what,
          status: head.status,
          wish: wishedDelay(head.headers, Date.now())
        })
        break
      case 'unusable':
        this.#failed(fetch, spot, { kind: 'failed', what: `${answer.why}${said}` })
        break
      case 'size':
        this.#events.onChanged(sizes(part.map?.size, answer.size))
        break
      case 'rangeless':
        if (this.#ranges === 'yes')
          this.#failed(fetch, spot, { kind: 'failed', what: 'sends the whole file for a part' })
        break
      case 'empty':
        this.#setSize(0)
        break
      default:
        spot.failures = 0
        this.#onBody(fetch, answer.kind === 'whole')
    }
  }

  #onBody({ writer, span }: Fetch, whole: boolean): void {
    const { part } = this.#needs
    if (writer instanceof StreamWriter) {
      writer.flush()
      this.#arrived += writer.written
      part.setSize(writer.written).fill()
      this.#events.onSize()
    } else if (writer && whole && span!.at < span!.to && span!.to === part.map!.count) {
      // It ended without a word on its length, and before the file's end.
      this.#events.onChanged(sizes(part.map!.size, writer.position))
    }
  }

  #failed(fetch: Fetch, spot: Spot, trouble: Trouble): void {
    if (this.#stopped) return
    this.#flush(fetch)
    const { place, retries, path } = this.#needs
    // One that has enough for now is not left for another one.
    if (trouble.kind !== 'busy') place.failed(spot)
    const again = retries.failed(performance.now(), fetch.startedAt, this.#progress(), trouble.wish)
    if (!again) this.#events.onFailed(troubleError(path, spot.url.host, trouble))
  }

  #refused(spot: Spot, trouble: Trouble): void {
    const { place, retries, path } = this.#needs
    // All requests are refused when a location ends: that counts once.
    if (this.#stopped || !place.drop(spot)) return
    if (this.#running.size > 1) this.#parts.trouble(spot.url.host)
    const again = retries.refused(performance.now(), this.#progress())
    if (!again) this.#events.onFailed(troubleError(path, spot.url.host, trouble))
  }

  /** Bytes that count as progress: where each try starts anew, only what goes beyond the tries before. */
  #progress(): number {
    this.#best = Math.max(this.#best, this.#needs.part.map?.completed ?? 0)
    return this.#ranges === 'no' ? this.#best : this.#arrived
  }

  #flush(fetch: Fetch): void {
    try {
      if (fetch.writer instanceof PartWriter) fetch.writer.flush()
    } catch (error) {
      this.#events.onFailed(error)
    }
  }
}

/** What a promise gives, or undefined as soon as the signal is aborted. */
function unlessAborted<Value>(promise: Promise<Value>, signal: AbortSignal): Promise<Value | undefined> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) resolve(undefined)
    signal.addEventListener('abort', () => resolve(undefined), { once: true })
    promise.then(resolve, reject)
  })
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
