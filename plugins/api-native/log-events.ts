import type { EngineLogRecord } from '../../core/contracts/engines.ts'

/** What a follower of a model's log is told, each with the engine that it is of. */
export type LogEvent =
  | { engine: string; build: string; startedAt: string }
  | { engine: string; line: string }
  | { engine: string; endedAt: string; exit?: EngineLogRecord['exit']; failure?: EngineLogRecord['failure'] }

/**
 * Tells what is new in a model's records since the last call, oldest first. The first call gives the last `backlog`
 * lines of the newest engine; all engines that come later are told from their start.
 */
export function createLogEvents(backlog: number): (records: readonly EngineLogRecord[]) => LogEvent[] {
  /** By engine: how many of its lines have been told, and whether its end has. */
  const told = new Map<string, { lines: number; ended: boolean }>()
  let first = true
  return records => {
    const events: LogEvent[] = []
    const begins = first
    first = false
    for (const [age, { engine, build, startedAt, endedAt, exit, failure, dropped, lines }] of [
      ...records.entries()
    ].reverse()) {
      let known = told.get(engine)
      if (!known) {
        known = { lines: 0, ended: false }
        told.set(engine, known)
        if (begins && age > 0) {
          told.set(engine, { lines: Number.POSITIVE_INFINITY, ended: true })
          continue
        }
        if (begins) known.lines = dropped + Math.max(0, lines.length - backlog)
        events.push({ engine, build, startedAt })
      }
      if (known.lines !== Number.POSITIVE_INFINITY) {
        for (const line of lines.slice(Math.max(0, known.lines - dropped))) events.push({ engine, line })
        known.lines = Math.max(known.lines, dropped + lines.length)
      }
      if (endedAt !== undefined && !known.ended) {
        known.ended = true
        events.push({ engine, endedAt, ...(exit && { exit }), ...(failure && { failure }) })
      }
    }
    return events
  }
}
