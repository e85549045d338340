import type { FastifyBaseLogger, FastifyRequest } from 'fastify'
import { version } from '../../../core/system/package-info.ts'
import { printable } from '../../../core/system/printable.ts'
import { type AuditEntry, auditDecision, toAuditEntry } from './audit-entry.ts'
import { LineLog, type LineLogLimits } from './line-log.ts'

const TIDY_INTERVAL = 3_600_000

export interface AuditOptions extends LineLogLimits {
  reads: boolean
}

export class AuditTrail {
  readonly lines: LineLog
  readonly #refusals = new RefusalLimit(omitted => this.note({ event: 'refusals_omitted', ...omitted }))
  #reads: boolean
  readonly #followers = new Set<(entry: AuditEntry) => void>()
  readonly #tidy: NodeJS.Timeout

  constructor(folder: string, { reads, ...limits }: AuditOptions, log: FastifyBaseLogger) {
    this.#reads = reads
    this.lines = new LineLog(folder, limits, log, lost =>
      JSON.stringify({ time: new Date().toISOString(), event: 'lines_lost', lost })
    )
    this.#tidy = setInterval(() => void this.lines.tidy(), TIDY_INTERVAL).unref()
    void this.lines.tidy()
    this.note({ event: 'started', target: version })
  }

  configure({ reads, ...limits }: AuditOptions): void {
    this.#reads = reads
    this.lines.limit(limits)
  }

  take(request: FastifyRequest): void {
    const telling = auditDecision(request, this.#reads)
    if (telling === 'no') return
    if (telling === 'refusal' && !this.#refusals.take(request.caller.turn, request.record.status)) return
    this.#push(toAuditEntry(request, new Date()))
  }

  /** Records an event that is not a request. */
  note({ target, ...event }: Omit<AuditEntry, 'time'> & { event: string }): void {
    this.#push({
      time: new Date().toISOString(),
      ...event,
      ...(target !== undefined && { target: printable(target, 200) })
    })
  }

  /** @returns a function that stops following */
  follow(follower: (entry: AuditEntry) => void): () => void {
    this.#followers.add(follower)
    return () => this.#followers.delete(follower)
  }

  async close(): Promise<void> {
    clearInterval(this.#tidy)
    this.#refusals.end()
    this.note({ event: 'stopped' })
    await this.lines.close()
  }

  #push(entry: AuditEntry): void {
    this.lines.push(JSON.stringify(entry))
    for (const follower of this.#followers) follower(entry)
  }
}

/** Refusals logged per minute: for one caller, and in total. */
const MAX_PER_CLIENT = 30
const MAX_REFUSALS = 600
const MINUTE = 60_000

/** Limits how many refusals are logged, since a flood of them would push older entries out. Others are only counted. */
class RefusalLimit {
  readonly #omit: (refusals: { omitted: number; statuses: Record<string, number> }) => void
  readonly #byCaller = new Map<string, number>()
  #told = 0
  #statuses: Record<string, number> = {}
  #timer: NodeJS.Timeout | undefined

  /** @param omit called with the omitted refusals, by status, at the end of each minute that had any */
  constructor(omit: (refusals: { omitted: number; statuses: Record<string, number> }) => void) {
    this.#omit = omit
  }

  /** @param caller a key, or the network of an address. @returns whether to log this refusal individually */
  take(caller: string, status: number): boolean {
    this.#timer ??= setTimeout(() => this.end(), MINUTE).unref()
    const count = this.#byCaller.get(caller) ?? 0
    if (count < MAX_PER_CLIENT && this.#told < MAX_REFUSALS) {
      this.#byCaller.set(caller, count + 1)
      this.#told++
      return true
    }
    this.#statuses[status] = (this.#statuses[status] ?? 0) + 1
    return false
  }

  end(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    const statuses = this.#statuses
    this.#byCaller.clear()
    this.#told = 0
    this.#statuses = {}
    const omitted = Object.values(statuses).reduce((sum, count) => sum + count, 0)
    if (omitted > 0) this.#omit({ omitted, statuses })
  }
}
