import pretty from 'pino-pretty'
import type { LogRecord } from './log.ts'

/** Lays a record of the log out for people. */
export function lineFormat(): (record: LogRecord) => string {
  const format = pretty.prettyFactory({
    colorize: process.stdout.hasColors?.() ?? false,
    translateTime: 'SYS:HH:MM:ss',
    // What the message says already, or only programs want.
    ignore:
      'requestId,traceId,pid,hostname,part,phase,subject,source,outcome,reasons,build,version,kind,directory,options,need,use',
    singleLine: true
  })
  return record => format(record).trimEnd()
}
