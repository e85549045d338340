/** What a request is for: a search, facts about a repository, its list of files, a file's place, or a file's bytes. */
export type RequestKind = 'search' | 'info' | 'tree' | 'resolve' | 'bytes'

/** How a 429 says when to come again. */
export type RateLimitForm = 'ratelimit' | 'retry-after' | 'retry-after-date' | 'retry-after-fraction' | 'none'

/** What goes wrong. Bytes count from the start of one answer's body, offsets from the start of the file. */
export type FaultKind =
  /** The connection is reset after so many bytes. */
  | { kind: 'cut'; after: number }
  /** Nothing more comes after so many bytes, and the connection stays. */
  | { kind: 'stall'; after: number }
  | { kind: 'trickle'; bytesPerSecond: number }
  /** One byte of the file is another. */
  | { kind: 'wrong-byte'; at: number }
  /** The body ends early, and the connection with it, although Content-Length says more. */
  | { kind: 'short'; missing: number }
  /** Content-Length (and Content-Range) say less than was asked, and the body agrees. */
  | { kind: 'less-than-asked'; missing: number }
  /** Neither Content-Length nor a whole body: chunks that end in order, too early. */
  | { kind: 'short-chunked'; missing: number }
  /** A 206 for bytes that start elsewhere than asked. */
  | { kind: 'wrong-range'; shift: number }
  /** 200 and the whole file whatever was asked. */
  | { kind: 'range-ignored' }
  /** The right bytes and Content-Range with 200, as ModelScope does. */
  | { kind: 'range-with-200' }
  | { kind: 'range-unsatisfiable' }
  /** 403 with the XML of an expired signature. */
  | { kind: 'expired' }
  /** 403 that no fresh address cures. */
  | { kind: 'forbidden' }
  | { kind: 'rate-limit'; form: RateLimitForm; seconds: number }
  | { kind: 'status'; status: number; body?: string; headers?: Record<string, string> }
  | { kind: 'latency'; milliseconds: number }
  /** A page for people with status 200 in place of what was asked for. */
  | { kind: 'html'; status?: number }
  /** JSON that breaks off. */
  | { kind: 'broken-json' }
  /** The connection is reset before any answer. */
  | { kind: 'reset' }

export interface FaultScope {
  /** Which requests; `bytes` by default. */
  on?: RequestKind
  /** Only requests for files whose path this is or matches. */
  path?: string | RegExp
  /** Requests that pass unharmed before it starts. */
  skip?: number
  /** How many requests it meets; all by default. */
  times?: number
  /** Only requests that ask for this byte of the file. */
  covering?: number
  /** Only the second listener's (true) or only the hub's own answers (false). */
  cdn?: boolean
}

export type Fault = FaultKind & FaultScope

export interface SetFault {
  /** Requests it met so far. */
  hits: number
  remove(): void
}

export interface FaultedRequest {
  kind: RequestKind
  path: string | undefined
  cdn: boolean
  /** First byte asked for and the one after the last. */
  range: [number, number] | undefined
}

const applies = (fault: Fault, request: FaultedRequest) =>
  (fault.on ?? 'bytes') === request.kind &&
  (fault.cdn === undefined || fault.cdn === request.cdn) &&
  (fault.path === undefined ||
    (request.path !== undefined &&
      (typeof fault.path === 'string' ? fault.path === request.path : fault.path.test(request.path)))) &&
  (fault.covering === undefined ||
    (request.range !== undefined && request.range[0] <= fault.covering && fault.covering < request.range[1]))

/** The faults that are set, and how often each may still strike. */
export class Faults {
  #set: { fault: Fault; skip: number; left: number; record: SetFault }[] = []

  add(asked: Fault): SetFault {
    const fault = asked.kind === 'wrong-byte' ? { covering: asked.at, ...asked } : asked
    const record: SetFault = {
      hits: 0,
      remove: () => {
        this.#set = this.#set.filter(other => other.record !== record)
      }
    }
    this.#set.push({ fault, skip: fault.skip ?? 0, left: fault.times ?? Number.POSITIVE_INFINITY, record })
    return record
  }

  clear(): void {
    this.#set = []
  }

  /** All that strike this request; each one counts it. */
  take(request: FaultedRequest): FaultKind[] {
    const struck: FaultKind[] = []
    for (const set of this.#set) {
      if (set.left <= 0 || !applies(set.fault, request)) continue
      if (set.skip > 0) {
        set.skip--
        continue
      }
      set.left--
      set.record.hits++
      struck.push(set.fault)
    }
    return struck
  }
}
