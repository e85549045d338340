import { basename } from 'node:path'
import type { EngineLogRecord } from '../../core/contracts/engine-log.ts'
import type { CorralError } from '../../core/errors.ts'
import { LogTail } from '../../core/system/log-tail.ts'
import type { ProcessExit } from './engine-process.ts'
import { plainEvents } from './log-events.ts'

const QUOTE = '│ '

/** Marks a log line as text of a client or the model, so that it is never taken for a failure. */
export const markAsClientText = (text: string) => QUOTE + text
export const isQuoted = (line: string) => line.startsWith(QUOTE)

export type EngineLogs = ReturnType<typeof createEngineLogs>

interface Entry {
  variant: string
  record: Omit<EngineLogRecord, 'lines' | 'dropped'>
  tail: LogTail
  paths: readonly string[]
}

/** Limited to five engines per variant and 8 Mi characters in all. Records of running engines are never dropped. */
export function createEngineLogs(limits = { perVariant: 5, characters: 8 * 2 ** 20 }) {
  let entries: Entry[] = []

  function tidy(): void {
    const counts = new Map<string, number>()
    let characters = 0
    entries = entries.filter(({ variant, record, tail }) => {
      const count = (counts.get(variant) ?? 0) + 1
      characters += tail.characters
      const keep = record.endedAt === undefined || (count <= limits.perVariant && characters <= limits.characters)
      if (keep) counts.set(variant, count)
      else characters -= tail.characters
      return keep
    })
  }

  return {
    /** Opens the record of an engine. Call `end` when the engine has ended or was never started. */
    open({ id, variant, build, paths }: { id: string; variant: string; build: string; paths: readonly string[] }) {
      const tail = new LogTail()
      const record: Entry['record'] = { engine: id, build, startedAt: new Date().toISOString() }
      entries.unshift({ variant, record, tail, paths })
      tidy()
      return Object.assign(tail, {
        end(exit: ProcessExit | undefined, failure: CorralError | undefined) {
          record.endedAt = new Date().toISOString()
          if (exit) record.exit = { code: exit.code, signal: exit.signal }
          if (failure) {
            const cause = String(failure.details?.cause ?? 'unknown')
            record.failure = { code: failure.code, cause, message: failure.message }
          }
          tidy()
        }
      })
    },
    /** Returns the records of a variant, newest first. Paths are shortened to their last part. */
    records(variant: string): EngineLogRecord[] {
      const found = entries.filter(entry => entry.variant === variant)
      return found.map(({ record, tail, paths }) => {
        const lines = tail.all().map(line => withoutFolders(line, paths))
        return { ...record, dropped: tail.dropped, lines, events: plainEvents(lines, tail.dropped, isQuoted) }
      })
    }
  }
}

/** Shortens every path in a text to its last part. */
export function withoutFolders(text: string, paths: readonly string[]): string {
  return paths
    .reduce((result, path) => result.replaceAll(path, basename(path)), text)
    .replace(/'[^']*[\\/]([^'\\/]+)'/g, "'$1'")
    .replace(/(?:[A-Za-z]:)?(?:[\\/][^\s\\/:'"`,()]+)+[\\/]([^\s\\/:'"`,()]+)/g, '$1')
}
