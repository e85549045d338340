import pretty from 'pino-pretty'
import type { LogRecord } from './log.ts'

export function lineFormat(): (record: LogRecord) => string {
  const format = pretty.prettyFactory({
    colorize: process.stdout.hasColors?.() ?? false,
    translateTime: 'SYS:HH:MM:ss',
    // Fields that the message already contains, or that only programs need.
    ignore:
      'requestId,traceId,pid,hostname,part,phase,subject,source,outcome,reasons,build,version,kind,directory,options,need,use',
    singleLine: true
  })
  return record => format(record).trimEnd()
}
