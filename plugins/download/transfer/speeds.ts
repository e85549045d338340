/** Milliseconds over which requests are compared, how much slower one may be than the next, and what is never slow. */
const COMPARED = 10_000
const CRAWL = 20
const FAST_ENOUGH = 64 * 1024

interface Measured {
  readonly startedAt: number
  readonly bytes: number
}

/** How fast the requests for a file are. */
export class Speeds {
  #each: number | undefined
  #at = 0
  #arrived = 0
  #comparedAt = 0
  #before = new Map<Measured, number>()

  /** Bytes a second of one request; undefined while unknown. */
  each(now: number, running: ReadonlySet<Measured>): number | undefined {
    if (this.#each !== undefined || running.size === 0) return this.#each
    return Math.max(...[...running].map(({ bytes, startedAt }) => (bytes * 1000) / Math.max(1, now - startedAt)))
  }

  /** @param arrived bytes of all requests so far */
  tick(now: number, arrived: number, running: ReadonlySet<Measured>): void {
    const seconds = (now - this.#at) / 1000
    if (seconds < 0.5 || running.size === 0) return
    const each = (arrived - this.#arrived) / seconds / running.size
    if (this.#at > 0) this.#each = this.#each === undefined ? each : (this.#each + each) / 2
    this.#at = now
    this.#arrived = arrived
  }

  /** A request that crawls while the others do not; to be called often, it looks every ten seconds. */
  crawling<Request extends Measured>(now: number, running: ReadonlySet<Request>): Request | undefined {
    if (now - this.#comparedAt < COMPARED) return undefined
    const since = now - this.#comparedAt
    this.#comparedAt = now
    const speeds = [...running]
      .filter(request => this.#before.has(request))
      .map(request => ({ request, speed: ((request.bytes - this.#before.get(request)!) * 1000) / since }))
      .sort((a, b) => a.speed - b.speed)
    this.#before = new Map([...running].map(request => [request, request.bytes]))
    const [slowest, next] = speeds
    if (!slowest || !next || slowest.speed >= FAST_ENOUGH || slowest.speed * CRAWL > next.speed) return undefined
    return slowest.request
  }
}
