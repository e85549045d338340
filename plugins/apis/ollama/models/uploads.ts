import type { Caller } from '../../../../core/contracts/callers.ts'
import { CorralError } from '../../../../core/errors.ts'
import type { ArrivingUpload } from '../../../../core/http/arriving-body.ts'
import { formatBytes } from '../../../../core/system/bytes.ts'

/** Maximum number of waiting uploads, per client and in total. Ollama's command line sends one per processor core. */
const MAX_QUEUED = { ofClient: 64, all: 256 }
/** Bytes per second. A slower upload may be ended to free its slot for a client without one. */
const SLOW_BYTES_PER_SECOND = 64_000

/** A running upload. */
export interface Upload extends ArrivingUpload {
  readonly turn: string
  readonly begun: number
  /** Must be called exactly once, when the upload ends. */
  release(): void
}

interface RunningUpload extends Upload {
  end(error: CorralError): void
}

/**
 * Decides which uploads run, at most `limits.uploads` at a time:
 *
 * 1. A client gets at most half of the slots.
 * 2. A free slot goes to the waiting client with the fewest uploads. Ties go to the request that waited longest.
 * 3. If no slot is free and a client without an upload waits, the slowest upload of the busiest client is ended,
 *    provided it is so slow that it may only be holding the slot.
 * 4. A client with too many waiting uploads is refused.
 */
export class UploadSlots {
  readonly #most: number
  readonly #now: () => number
  readonly #running = new Set<RunningUpload>()
  readonly #waiting: { turn: string; start: () => void }[] = []

  constructor(most: number, now = () => performance.now()) {
    this.#most = most
    this.#now = now
  }

  /**
   * Resolves when the upload may start.
   * @throws CorralError `rate_limited`, or the signal's reason
   */
  async take({ turn }: Pick<Caller, 'turn'>, signal: AbortSignal): Promise<Upload> {
    signal.throwIfAborted()
    if (this.#mayRun(turn)) return this.#begin(turn)
    const ofClient = this.#waiting.filter(other => other.turn === turn).length
    if (ofClient >= MAX_QUEUED.ofClient || this.#waiting.length >= MAX_QUEUED.all) throw tooMany(this.#most)
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

  #countFor(turn: string): number {
    let count = 0
    for (const upload of this.#running) if (upload.turn === turn) count++
    return count
  }

  #mayRun(turn: string): boolean {
    return this.#running.size < this.#most && this.#countFor(turn) < Math.ceil(this.#most / 2)
  }

  #next(): void {
    const able = this.#waiting.filter(({ turn }) => this.#mayRun(turn))
    const [first] = able.sort((a, b) => this.#countFor(a.turn) - this.#countFor(b.turn))
    if (!first) return
    this.#waiting.splice(this.#waiting.indexOf(first), 1)
    first.start()
  }

  #makeRoom(turn: string): void {
    if (this.#running.size < this.#most || this.#countFor(turn) > 0) return
    const pace = ({ received, begun }: Upload) => received / Math.max(1, (this.#now() - begun) / 1000)
    const slow = [...this.#running].filter(
      upload => !upload.ended.aborted && this.#countFor(upload.turn) > 1 && pace(upload) < SLOW_BYTES_PER_SECOND
    )
    const [slowest] = slow.sort((a, b) => this.#countFor(b.turn) - this.#countFor(a.turn) || pace(a) - pace(b))
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
    `Too many files are being uploaded: ${most} are received at a time (limits.uploads), and the queue is full. ` +
      'Send this file again when others are complete.',
    { retryAfter: 30, details: { limit: 'limits.uploads', maximum: most } }
  )
}

/** Limits the disk space of uploaded files that are not part of a model yet. One client may use half of it. */
export class UploadSpace {
  readonly #most: number
  /** Size and client, by the digest of a stored file or the name of a running upload. */
  readonly #taken = new Map<string, { bytes: number; turn?: string }>()

  constructor(most: number) {
    this.#most = most
  }

  /**
   * Sets the size of a file.
   * @throws CorralError `over_limit` if it does not fit; nothing changes in that case
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
    if (own > half) throw spaceExceeded(`one client may use ${formatBytes(half)} of it`, this.#most, own)
    if (all > this.#most) throw spaceExceeded('other clients use the rest', this.#most, all)
    this.#taken.set(key, { bytes, turn })
  }

  /** Counts a file that an unknown client stored earlier. */
  found(key: string, bytes: number): void {
    if (!this.#taken.has(key)) this.#taken.set(key, { bytes })
  }

  rename(from: string, to: string): void {
    const taken = this.#taken.get(from)
    this.#taken.delete(from)
    if (taken) this.#taken.set(to, taken)
  }

  free(key: string): void {
    this.#taken.delete(key)
  }
}

function spaceExceeded(why: string, most: number, wanted: number): CorralError {
  return new CorralError(
    'over_limit',
    `Uploaded files that are not part of a model may take ${formatBytes(most)} (limits.uploads_size), and this one would make it ` +
      `${formatBytes(wanted)}; ${why}. Create models from the uploaded files, or wait: unused files are deleted ` +
      'after a day.',
    { details: { limit: 'limits.uploads_size', value: wanted, maximum: most } }
  )
}
