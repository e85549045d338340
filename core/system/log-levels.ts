import pino, { type DestinationStream, type Logger } from 'pino'
import { type CoreConfig, LOG_LEVELS } from '../config/core-schema.ts'
import { CorralError } from '../errors.ts'
import { getOrAdd } from './collections.ts'
import { LogTail } from './log-tail.ts'

export type LogLevel = CoreConfig['log_level']

/** Parts of the core that log: its start and end, requests and connections, the plugins' host. */
export const CORE_PARTS = ['server', 'http', 'plugins'] as const

/** The log level of each part, as `GET /api/log-levels` returns it. */
export interface LevelReport {
  default: LogLevel
  /** The level of every existing part. */
  parts: Record<string, LogLevel>
}

/** The loggers of the plugins and of the core's modules, whose levels can be changed at runtime. */
export class LogLevels {
  /** The last lines that were logged, whatever becomes of the log itself. */
  readonly recent = new LogTail()
  readonly #root: Logger
  readonly #loggers = new Map<string, Logger>()
  #own: Map<string, LogLevel>

  /** @param own levels of parts, including parts that do not exist yet. `root` has the default. */
  constructor(root: Logger, own: Readonly<Record<string, LogLevel>> = {}) {
    this.#root = root
    this.#own = new Map(Object.entries(own))
    // Loggers inherit their stream from the root.
    const streams = root as unknown as Record<symbol, DestinationStream>
    const stream = streams[pino.symbols.streamSym]!
    const write = (line: string) => {
      this.recent.push(line.trimEnd())
      stream.write(line)
    }
    streams[pino.symbols.streamSym] = { write }
    for (const part of CORE_PARTS) this.part(part)
  }

  part(name: string): Logger {
    return getOrAdd(this.#loggers, name, () =>
      this.#root.child({ part: name }, { level: this.#own.get(name) ?? this.#root.level })
    )
  }

  report(): LevelReport {
    const parts = this.#names().map(name => [name, this.#loggers.get(name)!.level])
    return { default: this.#root.level as LogLevel, parts: Object.fromEntries(parts) }
  }

  /**
   * Changes what is logged.
   * @param part if absent, all parts without their own level
   * @param level if absent, the part uses the default again
   * @throws CorralError `invalid_option` for an unknown part or level
   */
  set(part: string | undefined, level: string | undefined): void {
    const refusal = (param: string, message: string) => new CorralError('invalid_option', message, { param })
    if (level !== undefined && !(LOG_LEVELS as readonly string[]).includes(level)) {
      throw refusal('level', `"${level.slice(0, 40)}" is not a log level. Use one of ${LOG_LEVELS.join(', ')}.`)
    }
    if (part !== undefined && !this.#loggers.has(part)) {
      throw refusal('part', `There is no part with this name. Known are: ${this.#names().join(', ')}.`)
    }
    if (part === undefined && level === undefined) throw refusal('level', 'The default needs a level.')
    if (part === undefined) this.#root.level = level!
    else if (level === undefined) this.#own.delete(part)
    else this.#own.set(part, level as LogLevel)
    this.#apply()
  }

  /** Replaces all levels with those of a configuration. */
  configure(usual: LogLevel, own: Readonly<Record<string, LogLevel>>): void {
    this.#root.level = usual
    this.#own = new Map(Object.entries(own))
    this.#apply()
  }

  #names(): string[] {
    return [...this.#loggers.keys()].sort()
  }

  #apply(): void {
    for (const [name, logger] of this.#loggers) logger.level = this.#own.get(name) ?? this.#root.level
  }
}
