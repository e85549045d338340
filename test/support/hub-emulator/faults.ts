/**
 * The purpose of a request: a search, facts about a repository, its list of files, a file's location, or a file's
 * bytes.
 */
export type RequestKind = 'search' | 'info' | 'tree' | 'resolve' | 'bytes'

/** How a 429 says when to retry. */
export type RateLimitForm = 'ratelimit' | 'retry-after' | 'retry-after-date' | 'retry-after-fraction' | 'none'

/** The kind of fault. Bytes count from the start of one answer's body, offsets from the start of the file. */
export type FaultKind =
  /** The connection is reset after this many bytes. */
  | { kind: 'cut'; after: number }
  /** No more data is sent after this many bytes, but the connection stays open. */
  | { kind: 'stall'; after: number }
  | { kind: 'trickle'; bytesPerSecond: number }
  /** One byte of the file is wrong. */
  | { kind: 'wrong-byte'; at: number }
  /** The body and the connection end before the length in Content-Length. */
  | { kind: 'short'; missing: number }
  /** Content-Length and Content-Range announce less than was requested, and the body matches them. */
  | { kind: 'less-than-asked'; missing: number }
  /** No Content-Length and an incomplete body: the chunks end properly, but too early. */
  | { kind: 'short-chunked'; missing: number }
  /** A 206 for bytes at another position. */
  | { kind: 'wrong-range'; shift: number }
  /** A 200 with the whole file for every range. */
  | { kind: 'range-ignored' }
  /** The right bytes and Content-Range with 200, as ModelScope sends them. */
  | { kind: 'range-with-200' }
  | { kind: 'range-unsatisfiable' }
  /** 403 with the XML of an expired signature. */
  | { kind: 'expired' }
  /** 403, also for a new address. */
  | { kind: 'forbidden' }
  | { kind: 'rate-limit'; form: RateLimitForm; seconds: number }
  | { kind: 'status'; status: number; body?: string; headers?: Record<string, string> }
  | { kind: 'latency'; milliseconds: number }
  /** An HTML page with status 200 instead of the answer. */
  | { kind: 'html'; status?: number }
  /** Truncated JSON. */
  | { kind: 'broken-json' }
  /** The connection is reset before any answer. */
  | { kind: 'reset' }

export interface FaultScope {
  /** Kind of request, `bytes` by default. */
  on?: RequestKind
  /** Only requests for files with this or a matching path. */
  path?: string | RegExp
  /** Number of affected requests, all by default. */
  times?: number
  /** Only requests that ask for this byte of the file. */
  covering?: number
}

export type Fault = FaultKind & FaultScope

export interface SetFault {
  /** Affected requests so far. */
  hits: number
  remove(): void
}

export interface FaultedRequest {
  kind: RequestKind
  path: string | undefined
  /** First requested byte and the byte after the last. */
  range: [number, number] | undefined
}

const applies = (fault: Fault, request: FaultedRequest) =>
  (fault.on ?? 'bytes') === request.kind &&
  (fault.path === undefined ||
    (request.path !== undefined &&
      (typeof fault.path === 'string' ? fault.path === request.path : fault.path.test(request.path)))) &&
  (fault.covering === undefined ||
    (request.range !== undefined && request.range[0] <= fault.covering && fault.covering < request.range[1]))

/** The faults that are set, and how often each still applies. */
export class Faults {
  #set: { fault: Fault; left: number; record: SetFault }[] = []

  add(asked: Fault): SetFault {
    const fault = asked.kind === 'wrong-byte' ? { covering: asked.at, ...asked } : asked
    const record: SetFault = {
      hits: 0,
      remove: () => {
        this.#set = this.#set.filter(other => other.record !== record)
      }
    }
    this.#set.push({ fault, left: fault.times ?? Number.POSITIVE_INFINITY, record })
    return record
  }

  clear(): void {
    this.#set = []
  }

  /** All faults that apply to this request. Each counts it. */
  take(request: FaultedRequest): FaultKind[] {
    const struck: FaultKind[] = []
    for (const set of this.#set) {
      if (set.left <= 0 || !applies(set.fault, request)) continue
      set.left--
      set.record.hits++
      struck.push(set.fault)
    }
    return struck
  }
}
