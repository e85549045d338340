import type { FastifyBaseLogger, FastifyRequest } from 'fastify'
import { version } from '../../../core/system/package-info.ts'
import { printable } from '../../../core/system/printable.ts'
import { type AuditEntry, auditDecision, toAuditEntry } from './audit-entry.ts'
import { LineLog, type LineLogLimits } from './line-log.ts'
import { RefusalLimit } from './refusal-limit.ts'

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
