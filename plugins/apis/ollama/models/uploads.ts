import type { Caller } from '../../../../core/contracts/callers.ts'
import { CorralError } from '../../../../core/errors.ts'
import type { ArrivingUpload } from '../../../../core/http/arriving-body.ts'
import { formatBytes } from '../../../../core/system/bytes.ts'

/** Uploads of one client, and of all, that wait for their turn; Ollama's command line sends one per processor core. */
const MAX_WAITING = { ofClient: 64, all: 256 }
/** Bytes a second below which an upload is ended so that a client without one gets a turn. */
const SLOW_PACE = 64_000

/** An upload that runs. */
export interface Upload extends ArrivingUpload {
  readonly turn: string
  readonly begun: number
  /** To be called once, at its end. */
  release(): void
}

interface RunningUpload extends Upload {
  end(error: CorralError): void
}

/**
 * Which uploads run, as many as `limits.uploads` at once. The decision, in this order:
 *
 * 1. A client has at most half of the turns, so that it cannot take all of them.
 * 2. A free turn goes to the waiting client with the fewest uploads, the first of them.
 * 3. Where none is free, and a client without any upload waits, the slowest upload of the client with the most of them
 *    ends, if it is so slow that it may be meant to hold the turn.
 * 4. Who has very many waiting already is refused.
 */
export class UploadTurns {
  readonly #most: number
  readonly #now: () => number
  readonly #running = new Set<RunningUpload>()
  readonly #waiting: { turn: string; start: () => void }[] = []

  constructor(most: number, now = () => performance.now()) {
    this.#most = most
    this.#now = now
  }

  /**
   * Settles when an upload may run.
   * @throws CorralError `rate_limited`; the signal's reason
   */
  async take({ turn }: Pick<Caller, 'turn'>, signal: AbortSignal): Promise<Upload> {
    signal.throwIfAborted()
    if (this.#mayRun(turn)) return this.#begin(turn)
    const ofClient = this.#waiting.filter(other => other.turn === turn).length
    if (ofClient >= MAX_WAITING.ofClient || this.#waiting.length >= MAX_WAITING.all) throw tooMany(this.#most)
    return await new Promise<Upload>((resolve, reject) => {
      const start = () => {
        signal.removeEventListener('abort', leave)
        resolve(this.#begin(turn))
      }
      const entry = { turn, start }
      const leave = () => {
        this.#waiting.splice(this.#waiting.indexOf(entry), 1)
        reject(signal.reason)
      }
      this.#waiting.push(entry)
      signal.addEventListener('abort', leave, { once: true })
      this.#makeRoom(turn)
    })
  }

  #begin(turn: string): Upload {
    const controller = new AbortController()
    const upload: RunningUpload = {
      turn,
      received: 0,
      begun: this.#now(),
      ended: controller.signal,
      end: error => controller.abort(error),
      release: () => {
        if (this.#running.delete(upload)) this.#next()
      }
    }
    this.#running.add(upload)
    return upload
  }

  #countOf(turn: string): number {
    let count = 0
    for (const upload of this.#running) if (upload.turn === turn) count++
    return count
  }

  #mayRun(turn: string): boolean {
    return this.#running.size < this.#most && this.#countOf(turn) < Math.ceil(this.#most / 2)
  }

  #next(): void {
    const able = this.#waiting.filter(({ turn }) => this.#mayRun(turn))
    const [first] = able.sort((a, b) => this.#countOf(a.turn) - this.#countOf(b.turn))
    if (!first) return
    this.#waiting.splice(this.#waiting.indexOf(first), 1)
    first.start()
  }

  #makeRoom(turn: string): void {
    if (this.#running.size < this.#most || this.#countOf(turn) > 0) return
    const pace = ({ received, begun }: Upload) => received / Math.max(1, (this.#now() - begun) / 1000)
    const slow = [...this.#running].filter(
      upload => !upload.ended.aborted && this.#countOf(upload.turn) > 1 && pace(upload) < SLOW_PACE
    )
    const [slowest] = slow.sort((a, b) => this.#countOf(b.turn) - this.#countOf(a.turn) || pace(a) - pace(b))
    slowest?.end(
      new CorralError('rate_limited', 'This slow upload ended so that another client can send a file. Send it again.', {
        retryAfter: 30
      })
    )
  }
}

function tooMany(most: number): CorralError {
  return new CorralError(
    'rate_limited',
    `Too many files are being sent: ${most} are received at once (limits.uploads), and more wait already than may. ` +
      'Send this one again when others are complete.',
    { retryAfter: 30, details: { limit: 'limits.uploads', maximum: most } }
  )
}

/** The disk that sent files may take until models are made of them. One client has half of it. */
export class UploadSpace {
  readonly #most: number
  /** Bytes and clients, by the digests of what was sent and by what is being sent. */
  readonly #taken = new Map<string, { bytes: number; turn?: string }>()

  /** @param most bytes */
  constructor(most: number) {
    this.#most = most
  }

  /**
   * Counts a file, or what it has grown to.
   * @throws CorralError `over_limit` when it does not fit; then nothing changes
   */
  take(key: string, bytes: number, turn: string): void {
    let all = bytes
    let own = bytes
    for (const [other, taken] of this.#taken) {
      if (other === key) continue
      all += taken.bytes
      if (taken.turn === turn) own += taken.bytes
    }
    const half = Math.floor(this.#most / 2)
    if (own > half) throw noSpace(`one client may have ${formatBytes(half)} of it`, this.#most, own)
    if (all > this.#most) throw noSpace('other clients have files there', this.#most, all)
    this.#taken.set(key, { bytes, turn })
  }

  /** Counts what is there already, whoever sent it. */
  found(key: string, bytes: number): void {
    if (!this.#taken.has(key)) this.#taken.set(key, { bytes })
  }

  /** Something is known by another key from now on. */
  rename(from: string, to: string): void {
    const taken = this.#taken.get(from)
    this.#taken.delete(from)
    if (taken) this.#taken.set(to, taken)
  }

  free(key: string): void {
    this.#taken.delete(key)
  }
}

function noSpace(why: string, most: number, wanted: number): CorralError {
  return new CorralError(
    'over_limit',
    `Files that no model has been created of may take ${formatBytes(most)} (limits.uploads_size), and with this one it ` +
      `would be ${formatBytes(wanted)}; ${why}. Create models of the files that were sent, or wait: what is not used ` +
      'goes after a day.',
    { details: { limit: 'limits.uploads_size', value: wanted, maximum: most } }
  )
}
