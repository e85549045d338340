import { existsSync } from 'node:fs'
import { dirname } from 'node:path'
import pino from 'pino'
import type { CoreConfig } from '../config/core-schema.ts'
import { isSystemError, reasonOf } from '../errors.ts'
import { printable, printableJson } from './printable.ts'

export type LogRecord = Record<string, unknown> & { level: number; msg?: string }

/** The process's logger: JSON lines on standard output, or in `file`. `show` gets the fields of each line instead. */
export function createLogger(
  level: CoreConfig['log_level'],
  { file, show }: { file?: string; show?: (record: LogRecord) => void } = {}
): pino.Logger {
  const options: pino.LoggerOptions = {
    level,
    // JSON escapes most control characters, but a terminal shows the parsed text.
    hooks: { streamWrite: show ? printableJson : line => `${printable(line.slice(0, -1))}\n` },
    base: undefined,
    // Request headers and bodies are never logged, because they contain keys and prompts.
    serializers: { err: pino.stdSerializers.err }
  }
  if (file) {
    try {
      return pino(options, pino.destination({ dest: file, mkdir: true, append: true, sync: true }))
    } catch (error) {
      const what = existsSync(dirname(file))
        ? `The log ${file} cannot be written`
        : `The log folder ${dirname(file)} cannot be created`
      throw new Error(`${what} (${reasonOf(error)}). Set CORRAL_HOME to a writable folder.`, { cause: error })
    }
  }
  if (show) return pino(options, { write: line => show(JSON.parse(line)) })
  const stdout = pino.destination({ dest: 1, sync: true })
  stdout.on('error', error => {
    // The terminal was closed, which must not stop the server.
    if (!isSystemError(error, 'EIO', 'EPIPE')) throw error
    stdout.write = () => true
  })
  return pino(options, stdout)
}
