import { freeSpan, requestSize, type Span, Speeds, stolenSpan, unclaimedBytes } from './chunks.ts'
import { type ActiveLocation, type FileSource, followRedirect } from './file-source.ts'
import { type FetchResult, fetchBytes, type Sink } from './http/http-client.ts'
import type { Answer } from './http/http-response.ts'
import { ConnectionFailure } from './http/http-socket.ts'
import { type PartFile, PartWriter, StreamWriter } from './part-file.ts'
import { type Retries, retryAfterDelay } from './retries.ts'
import type { SharedResources } from './shared-resources.ts'
import { type FetchProblem, fetchError } from './transfer-errors.ts'
import type { Mismatch, Verification } from './verification.ts'

/** One running request. */
interface Fetch {
  span: Span | undefined
  /** The first chunk that it fetched. */
  from: number
  writer: PartWriter | StreamWriter | undefined
  controller: AbortController
  startedAt: number
  bytes: number
}

export interface FetchEvents {
  /** A request has ended. */
  onEnd(): void
  /** The size has become known. */
  onSize(): void
  /** The server has other content than before: nothing on disk can be used. */
  onChanged(mismatch: Mismatch): void
  onFailed(error: unknown): void
}

export interface FetchContext {
  /** In the repository; for messages. */
  path: string
  part: PartFile
  source: FileSource
  retries: Retries
  verification: Verification
}

/** The reason of requests that are cancelled here, which is no failure. */
class Cancelled extends Error {}

/** The requests for one file: plans them, and decides what follows from how they end. */
export class FileFetches {
  readonly #shared: SharedResources
  readonly #context: FetchContext
  readonly #events: FetchEvents
  readonly #running = new Set<Fetch>()
  readonly #speeds = new Speeds()
  #ranges: 'unknown' | 'yes' | 'no' = 'unknown'
  #stopped = false
  #allEnded: (() => void) | undefined
  /** Bytes received in all, and the most that was ever on disk. */
  #arrived = 0
  #best = 0

  constructor(shared: SharedResources, context: FetchContext, events: FetchEvents) {
    this.#shared = shared
    this.#context = context
    this.#events = events
  }

  get running(): number {
    return this.#running.size
  }

  /** Requests that receive bytes. */
  get delivering(): number {
    let count = 0
    for (const fetch of this.#running) if (fetch.bytes > 0) count += 1
    return count
  }

  /** Requests that could be running. */
  get wanted(): number {
    return this.#ranges === 'yes' ? this.#shared.connectionsPerFile : this.#running.size
  }

  /** Starts another request. @returns false when there is nothing to do for it now */
  start(now: number): boolean {
    const { part, retries } = this.#context
    if (this.#stopped || now < retries.waitUntil || part.map?.complete) return false
    // One request finds out whether the server supports ranges.
    if (this.#running.size >= (this.#ranges === 'yes' ? this.#shared.connectionsPerFile : 1)) return false
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

  /** Called once a second: measures the speed, and replaces a request that crawls while others do not. */
  tick(now: number): void {
    this.#speeds.tick(now, this.#arrived, this.#running)
    this.#speeds.crawling(now, this.#running)?.controller.abort(new Cancelled())
  }

  /** Writes what was received. */
  flush(): void {
    for (const fetch of this.#running) this.#flush(fetch)
  }

  /** Cancels all requests without writing what they received, so that the file can be fetched from the start. */
  restart(): void {
    for (const fetch of this.#running) fetch.writer = undefined
    this.#abort()
    this.#ranges = 'unknown'
  }

  /** Cancels all requests for good; resolves when nothing is written any more. */
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
    for (const { controller } of this.#running) controller.abort(new Cancelled())
  }

  #nextSpan(): Span | undefined {
    const map = this.#context.part.map!
    const taken = [...this.#running].flatMap(fetch => fetch.span ?? [])
    const speed = this.#speeds.each(performance.now(), this.#running)
    const bytes = requestSize(unclaimedBytes(map, taken), this.#shared.connectionsPerFile, speed)
    return freeSpan(map, taken, bytes) ?? stolenSpan(map, taken, speed)
  }

  async #fetch(fetch: Fetch): Promise<void> {
    const { signal } = fetch.controller
    const location = await unlessAborted(this.#context.source.current(), signal)
    if (location === undefined) return
    this.#useReported(location)
    const buffer = this.#shared.buffers.take()
    try {
      for (;;) {
        const result = await this.#request(fetch, location, buffer)
        if (result.answer.kind !== 'redirect') {
          this.#onResult(fetch, location, result)
          return
        }
        const why = followRedirect(location, result.answer.to)
        if (why === undefined) continue
        this.#failed(fetch, location, { kind: 'failed', what: why })
        return
      }
    } catch (error) {
      if (signal.aborted) return
      if (!(error instanceof ConnectionFailure)) throw error
      if (fetch.span) this.#context.verification.suspect(fetch.from, fetch.span.at)
      this.#failed(fetch, location, { kind: 'failed', what: failureText(error) })
    } finally {
      this.#flush(fetch)
      fetch.writer = undefined
      this.#shared.buffers.give(buffer)
    }
  }

  async #request(fetch: Fetch, location: ActiveLocation, buffer: Buffer): Promise<FetchResult> {
    const { map } = this.#context.part
    const { span } = fetch
    const start = map && span ? map.start(span.at) + map.have[span.at]! : 0
    return await fetchBytes(
      this.#shared.connections,
      { url: location.url, headers: location.headers, proxy: location.reported.proxy },
      {
        start,
        end: map && span ? map.end(span.to - 1) : undefined,
        size: map?.size,
        onAnswer: (answer, tag) => this.#onAnswer(fetch, answer, location.reported.identity ?? tag, buffer)
      },
      {
        signal: fetch.controller.signal,
        stallTimeout: this.#shared.stallTimeout,
        pace: bytes => this.#shared.bandwidth.delay(bytes, performance.now())
      }
    )
  }

  /** Takes over size and digest from the hub where its listing had none. */
  #useReported({ reported }: ActiveLocation): void {
    const { verification, part } = this.#context
    verification.expected.sha256 ??= reported.sha256
    if (reported.size !== undefined && !part.map) this.#setSize(reported.size)
  }

  #setSize(size: number): void {
    this.#context.part.setSize(size)
    this.#events.onSize()
  }

  #onAnswer(fetch: Fetch, answer: Answer, tag: string | undefined, buffer: Buffer): Sink | undefined {
    const { part, verification } = this.#context
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
        filled: length => {
          fetch.bytes += length
          this.#shared.received(this.#context.source.host, length)
          return writer.filled(length)
        }
      }
    )
  }

  #writer(fetch: Fetch, buffer: Buffer): PartWriter | StreamWriter | undefined {
    const { part, verification } = this.#context
    const { map, descriptor } = part
    if (!map) return new StreamWriter(descriptor, buffer)
    if (map.size === 0) return undefined
    fetch.span ??= { at: 0, to: map.count }
    // Without ranges the whole file is one stream; there is no other request then.
    if (this.#ranges === 'no') fetch.span.to = map.count
    const { span } = fetch
    return new PartWriter(descriptor, map, span, buffer, this.#shared.bandwidth.readSize, length => {
      this.#arrived += length
      if (map.isComplete(span.at)) verification.advance()
    })
  }

  #onResult(fetch: Fetch, location: ActiveLocation, { answer, head, text }: FetchResult): void {
    const reason = text === '' ? '' : `: ${text}`
    const what = `answers ${head.status}${reason}`
    const { part } = this.#context
    switch (answer.kind) {
      case 'refused':
        this.#refused(location, { kind: 'refused', what, status: head.status })
        break
      case 'busy':
        this.#shared.overloaded(location.url.host)
        this.#failed(fetch, location, {
          kind: 'busy',
          what,
          status: head.status,
          retryAfter: retryAfterDelay(head.headers, Date.now())
        })
        break
      case 'unusable':
        this.#failed(fetch, location, { kind: 'failed', what: `${answer.why}${reason}` })
        break
      case 'size':
        this.#events.onChanged(sizes(part.map?.size, answer.size))
        break
      case 'rangeless':
        if (this.#ranges === 'yes')
          this.#failed(fetch, location, { kind: 'failed', what: 'sends the whole file instead of a part' })
        break
      case 'empty':
        this.#setSize(0)
        break
      default:
        location.failures = 0
        this.#onBody(fetch, answer.kind === 'whole')
    }
  }

  #onBody({ writer, span }: Fetch, whole: boolean): void {
    const { part } = this.#context
    if (writer instanceof StreamWriter) {
      writer.flush()
      this.#arrived += writer.written
      part.setSize(writer.written).fill()
      this.#events.onSize()
    } else if (writer && whole && span!.at < span!.to && span!.to === part.map!.count) {
      // A response of unknown length ended before the end of the file.
      this.#events.onChanged(sizes(part.map!.size, writer.position))
    }
  }

  #failed(fetch: Fetch, location: ActiveLocation, problem: FetchProblem): void {
    if (this.#stopped) return
    this.#flush(fetch)
    const { source, retries, path } = this.#context
    // A server that is busy keeps its location: it will answer later.
    if (problem.kind !== 'busy') source.failed(location)
    const again = retries.failed(performance.now(), fetch.startedAt, this.#progress(), problem.retryAfter)
    if (!again) this.#events.onFailed(fetchError(path, location.url.host, problem))
  }

  #refused(location: ActiveLocation, problem: FetchProblem): void {
    const { source, retries, path } = this.#context
    // When a location expires all requests are refused: that counts as one refusal.
    if (this.#stopped || !source.drop(location)) return
    if (this.#running.size > 1) this.#shared.overloaded(location.url.host)
    const again = retries.refused(performance.now(), this.#progress())
    if (!again) this.#events.onFailed(fetchError(path, location.url.host, problem))
  }

  /** Bytes that count as progress: without ranges each attempt starts over, so only what goes beyond earlier ones. */
  #progress(): number {
    this.#best = Math.max(this.#best, this.#context.part.map?.completed ?? 0)
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

/** The value of a promise, or undefined as soon as the signal is aborted. */
function unlessAborted<Value>(promise: Promise<Value>, signal: AbortSignal): Promise<Value | undefined> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) resolve(undefined)
    signal.addEventListener('abort', () => resolve(undefined), { once: true })
    promise.then(resolve, reject)
  })
}

function failureText(error: ConnectionFailure): string {
  if (error.kind === 'connect') return `cannot be reached: ${error.message}`
  return error.kind === 'protocol' ? `does not answer like a web server: ${error.message}` : `failed: ${error.message}`
}

function sizes(expected: number | undefined, got: number): Mismatch {
  return { expected: expected === undefined ? 'another size' : `${expected} bytes`, got: `${got} bytes` }
}
