import pino from 'pino'
import pretty from 'pino-pretty'
import type { CoreConfig } from '../config/core-schema.ts'
import { isSystemError } from '../errors.ts'
import { printable, printableJson } from './printable.ts'

/** What a line says, for those that lay it out. */
export type LogRecord = Record<string, unknown> & { level: number; msg?: string }

interface LogOutput {
  /** Where JSON lines go instead of standard output. */
  file?: string
  /** Takes lines for people, with the record that each is about, instead. */
  show?: (line: string, record: LogRecord) => void
}

/** The process's logger: JSON lines on standard output, unless told otherwise. */
export function createLogger(level: CoreConfig['log_level'], { file, show }: LogOutput = {}): pino.Logger {
  const options: pino.LoggerOptions = {
    level,
    // JSON escapes most control characters; a terminal gets them parsed.
    hooks: {
      streamWrite: show ? printableJson : line => `${printable(line.slice(0, -1))}\n`
    },
    base: undefined,
    // Request headers and bodies are never logged: they hold keys and prompts.
    serializers: { err: pino.stdSerializers.err }
  }
  if (file) return pino(options, pino.destination({ dest: file, mkdir: true, append: true, sync: true }))
  if (show) {
    const format = pretty.prettyFactory({
      colorize: process.stdout.hasColors?.() ?? false,
      translateTime: 'SYS:HH:MM:ss',
      // What the message says already, or only programs want.
      ignore:
        'requestId,traceId,pid,hostname,part,phase,subject,source,outcome,reasons,build,version,kind,directory,options,need,use',
      singleLine: true
    })
    return pino(options, {
      write(line) {
        const record = JSON.parse(line)
        show(format(record).trimEnd(), record)
      }
    })
  }
  const stdout = pino.destination({ dest: 1, sync: true })
  stdout.on('error', error => {
    // The terminal was closed, which is no reason to leave requests unanswered.
    if (!isSystemError(error, 'EIO', 'EPIPE')) throw error
    stdout.write = () => true
  })
  return pino(options, stdout)
}
