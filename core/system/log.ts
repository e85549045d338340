import pino from 'pino'
import pretty from 'pino-pretty'
import type { CoreConfig } from '../config/core-schema.ts'
import { isSystemError } from '../errors.ts'
import { printable, printableJson } from './printable.ts'

/**
 * The process's logger: lines for people on a terminal, JSON lines elsewhere.
 * @param file where to write instead of standard output
 */
export function createLogger(level: CoreConfig['log_level'], file?: string): pino.Logger {
  const isForPeople = !file && process.stdout.isTTY
  const options: pino.LoggerOptions = {
    level,
    // JSON escapes most control characters; a terminal gets them parsed.
    hooks: {
      streamWrite: isForPeople ? printableJson : line => `${printable(line.slice(0, -1))}\n`
    },
    base: undefined,
    // Request headers and bodies are never logged: they hold keys and prompts.
    serializers: { err: pino.stdSerializers.err }
  }
  if (file) return pino(options, pino.destination({ dest: file, mkdir: true, append: true, sync: true }))
  const stdout = pino.destination({ dest: 1, sync: true })
  stdout.on('error', error => {
    // The terminal was closed, which is no reason to leave requests unanswered.
    if (!isSystemError(error, 'EIO', 'EPIPE')) throw error
    stdout.write = () => true
  })
  if (!isForPeople) return pino(options, stdout)
  return pino(
    options,
    pretty({
      colorize: true,
      translateTime: 'SYS:HH:MM:ss',
      // What the message says already, or only programs want.
      ignore:
        'requestId,traceId,pid,hostname,part,phase,subject,source,outcome,reasons,build,version,kind,directory,options,need,use',
      singleLine: true,
      destination: stdout
    })
  )
}
