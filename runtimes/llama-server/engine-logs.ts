import { basename } from 'node:path'
import type { EngineLogRecord } from '../../core/contracts/engine-log.ts'
import type { CorralError } from '../../core/errors.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { LogTail } from '../../core/system/log-tail.ts'
import { plural } from '../../core/system/plural.ts'
import type { ProcessExit } from './engine-process.ts'

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
        return { ...record, dropped: tail.dropped, lines, events: plainEvents(lines, tail.dropped) }
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

type Prompts = Map<string, { count: string; speed: string }>
type Rule = [pattern: RegExp, say: (found: string[], prompts: Prompts) => string | undefined]

/** Explains lines of llama-server to people. The first matching rule wins. */
const RULES: Rule[] = [
  [/load_model: loading model '(.+?)'/, ([file]) => `loads ${file}`],
  [/threadpool init, n_threads = (\d+)/, ([count]) => `computes with ${plural(Number(count), 'thread')}`],
  [/offloaded (\d+)\/(\d+) layers to GPU/, ([some, all]) => `${some} of ${all} layers are on the GPU`],
  [/(\S+) +model buffer size = +([\d.]+) MiB/, ([where, size]) => `weights: ${amount(size!)} in ${getPlace(where!)}`],
  [/(\S+) +KV buffer size = +([\d.]+) MiB/, ([where, size]) => `context: ${amount(size!)} in ${getPlace(where!)}`],
  [
    /n_slots = (\d+), n_ctx_slot = (\d+)/,
    ([slots, context]) =>
      `answers ${plural(Number(slots), 'request')} at once, each with a context of ${context} tokens`
  ],
  [/llama_server: model loaded/, () => 'is loaded and takes requests'],
  [
    /task (\d+) \| +prompt eval time = .*\/ +(\d+) tokens .*?([\d.]+) tokens per second/,
    ([task, count, speed], prompts) => {
      prompts.set(task!, { count: count!, speed: speed! })
      return undefined
    }
  ],
  [
    /task (\d+) \| +eval time = .*\/ +(\d+) tokens .*?([\d.]+) tokens per second/,
    ([task, count, speed], prompts) => {
      const prompt = prompts.get(task!)
      prompts.delete(task!)
      const read = prompt ? `read ${plural(Number(prompt.count), 'token')} (${pace(prompt.speed)}), ` : ''
      return `request ${task}: ${read}wrote ${plural(Number(count), 'token')} (${pace(speed!)})`
    }
  ],
  [/release: id +\d+ \| task (\d+) \|.* truncated = 1/, ([task]) => `request ${task}: the context was full`],
  // A level, a component, a function, then the message.
  [/^[EF] (?:\S+ +[^:]+: )?(.+)/, ([message]) => `error: ${message}`],
  [/^W (?:\S+ +[^:]+: )?(.+)/, ([message]) => `warning: ${message}`]
]

const pace = (speed: string) => `${Number(speed) < 10 ? Number(speed).toFixed(1) : Math.round(Number(speed))} tokens/s`
const amount = (mebibytes: string) => formatBytes(Number(mebibytes) * 2 ** 20)
const getPlace = (buffer: string) => (/^CPU/.test(buffer) ? 'main memory' : `the memory of ${buffer}`)

/** Explains an engine's log in plain words, without clients' lines. @param dropped number of dropped earlier lines */
function plainEvents(lines: readonly string[], dropped: number): NonNullable<EngineLogRecord['events']> {
  const prompts: Prompts = new Map()
  return lines.flatMap((line, index) => {
    if (isQuoted(line)) return []
    for (const [pattern, say] of RULES) {
      const found = pattern.exec(line)
      if (!found) continue
      const text = say(found.slice(1), prompts)
      return text === undefined ? [] : [{ line: dropped + index, text }]
    }
    return []
  })
}
