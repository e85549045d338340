import { basename } from 'node:path'
import type { EngineLogRecord } from '../../core/contracts/engines.ts'
import type { CorralError } from '../../core/errors.ts'
import type { ProcessExit } from './engine-process.ts'

const KEPT_LINES = 500
const KEPT_LENGTH = 2000
const KEPT_CHARACTERS = 256 * 1024

/** The last lines of a log, oldest first: at most 500, none longer than 2000 characters, 256 Ki characters in all. */
export interface LogTail {
  push(text: string): void
  all(): string[]
  /** Starts a new section, such as serving after loading. */
  mark(): void
  sinceMark(): string[]
  /** How many earlier lines are not kept any more. */
  readonly dropped: number
  /** Of all lines kept. */
  readonly characters: number
}

export function createLogTail(): LogTail {
  const lines: string[] = []
  let since = 0
  let dropped = 0
  let characters = 0
  return {
    push(text) {
      const line = text.length > KEPT_LENGTH ? `${text.slice(0, KEPT_LENGTH)}…` : text
      lines.push(line)
      characters += line.length
      since++
      while (lines.length > KEPT_LINES || characters > KEPT_CHARACTERS) {
        characters -= lines.shift()!.length
        dropped++
      }
    },
    all: () => [...lines],
    mark: () => {
      since = 0
    },
    sinceMark: () => (since === 0 ? [] : lines.slice(-since)),
    get dropped() {
      return dropped
    },
    get characters() {
      return characters
    }
  }
}

/** The kept output of one engine. */
export interface LogPage extends LogTail {
  /** It has ended, or was never started. */
  end(exit: ProcessExit | undefined, failure: CorralError | undefined): void
}

/** What the latest engines of each variant printed, also after they have ended. */
export interface EngineLogBook {
  open(engine: { id: string; variant: string; build: string; paths: readonly string[] }): LogPage
  /** By the key of the variant, the newest first. Paths are shortened to their last part. */
  records(variant: string): EngineLogRecord[]
}

interface Entry {
  variant: string
  record: Omit<EngineLogRecord, 'lines' | 'dropped'>
  tail: LogTail
  paths: readonly string[]
}

/** Bounded to five engines of each variant and 8 Mi characters in all; records of engines that run are never dropped. */
export function createEngineLogBook(limits = { perVariant: 5, characters: 8 * 2 ** 20 }): EngineLogBook {
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
    open({ id, variant, build, paths }) {
      const tail = createLogTail()
      const entry: Entry = { variant, record: { engine: id, build, startedAt: new Date().toISOString() }, tail, paths }
      entries.unshift(entry)
      tidy()
      return Object.assign(tail, {
        end(exit: ProcessExit | undefined, failure: CorralError | undefined) {
          entry.record.endedAt = new Date().toISOString()
          if (exit) entry.record.exit = { code: exit.code, signal: exit.signal }
          if (failure) {
            const cause = String(failure.details?.cause ?? 'unknown')
            entry.record.failure = { code: failure.code, cause, message: failure.message }
          }
          tidy()
        }
      })
    },
    records: variant =>
      entries
        .filter(entry => entry.variant === variant)
        .map(({ record, tail, paths }) => ({
          ...record,
          dropped: tail.dropped,
          lines: tail.all().map(line => withoutFolders(line, paths))
        }))
  }
}

/** A text in which only the last part of every path is left. */
export function withoutFolders(text: string, paths: readonly string[]): string {
  let result = text
  for (const path of paths) result = result.replaceAll(path, basename(path))
  return result
    .replace(/'[^']*[\\/]([^'\\/]+)'/g, "'$1'")
    .replace(/(?:[A-Za-z]:)?(?:[\\/][^\s\\/:'"`,()]+)+[\\/]([^\s\\/:'"`,()]+)/g, '$1')
}
