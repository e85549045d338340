import { basename } from 'node:path'
import type { EngineLogRecord } from '../../core/contracts/engine-log.ts'
import type { CorralError } from '../../core/errors.ts'
import type { ProcessExit } from './engine-process.ts'
import { plainEvents } from './log-events.ts'

const KEPT_LINES = 500
const KEPT_LENGTH = 2000
const KEPT_CHARACTERS = 256 * 1024

/** What lines begin with that repeat a client's text and are none of the engine's own. */
const QUOTE = '│ '

/** A line of the log for text that a client or the model has written; what it says of failures does not count. */
export const quoted = (text: string) => QUOTE + text
export const isQuoted = (line: string) => line.startsWith(QUOTE)

/** The last lines of a log, oldest first: at most 500, none longer than 2000 characters, 256 Ki characters in all. */
export class LogTail {
  readonly #lines: string[] = []
  #sinceMark = 0
  /** How many earlier lines are not kept any more. */
  dropped = 0
  /** Of all lines kept. */
  characters = 0

  push(text: string): void {
    const line = text.length > KEPT_LENGTH ? `${text.slice(0, KEPT_LENGTH)}…` : text
    this.#lines.push(line)
    this.characters += line.length
    this.#sinceMark++
    while (this.#lines.length > KEPT_LINES || this.characters > KEPT_CHARACTERS) {
      this.characters -= this.#lines.shift()!.length
      this.dropped++
    }
  }

  all(): string[] {
    return [...this.#lines]
  }

  /** Starts a new section, such as serving after loading. */
  mark(): void {
    this.#sinceMark = 0
  }

  sinceMark(): string[] {
    return this.#sinceMark === 0 ? [] : this.#lines.slice(-this.#sinceMark)
  }
}

/** What the latest engines of each variant printed, also after they have ended. */
export type EngineLogBook = ReturnType<typeof createEngineLogBook>

interface Entry {
  variant: string
  record: Omit<EngineLogRecord, 'lines' | 'dropped'>
  tail: LogTail
  paths: readonly string[]
}

/** Bounded to five engines of each variant and 8 Mi characters in all; records of engines that run are never dropped. */
export function createEngineLogBook(limits = { perVariant: 5, characters: 8 * 2 ** 20 }) {
  /** The newest first. */
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
    /** The kept output of an engine. `end` is called when it has ended, or was never started. */
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
    /** By the key of the variant, the newest first. Paths are shortened to their last part. */
    records(variant: string): EngineLogRecord[] {
      const found = entries.filter(entry => entry.variant === variant)
      return found.map(({ record, tail, paths }) => {
        const lines = tail.all().map(line => withoutFolders(line, paths))
        return { ...record, dropped: tail.dropped, lines, events: plainEvents(lines, tail.dropped, isQuoted) }
      })
    }
  }
}

/** A text in which only the last part of every path is left. */
export function withoutFolders(text: string, paths: readonly string[]): string {
  return paths
    .reduce((result, path) => result.replaceAll(path, basename(path)), text)
    .replace(/'[^']*[\\/]([^'\\/]+)'/g, "'$1'")
    .replace(/(?:[A-Za-z]:)?(?:[\\/][^\s\\/:'"`,()]+)+[\\/]([^\s\\/:'"`,()]+)/g, '$1')
}
