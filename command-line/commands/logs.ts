import { type Command, InvalidArgumentError } from 'commander'
import type { EngineLogRecord } from '../../core/contracts/engines.ts'
import type { LogEvent } from '../../plugins/api-native/log-routes.ts'
import { type CommandContext, modelArgument } from '../context.ts'
import { printable, printJson, printText } from '../output.ts'
import { withServer } from '../server-connection.ts'

interface LogsReply {
  model: string
  /** The newest first. */
  engines: EngineLogRecord[]
}

function lineCount(text: string): number {
  const count = Number(text)
  if (!Number.isSafeInteger(count) || count < 0) throw new InvalidArgumentError('It must be a whole number, 0 or more.')
  return count
}

export function defineLogs(program: Command, context: CommandContext): void {
  program
    .command('logs')
    .description('show what the engines of a model printed, and why they stopped')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .option('-f, --follow', 'print new lines as they come, until Ctrl-C')
    .option('-n, --lines <count>', 'only the last lines of each engine', lineCount)
    .option('--json', 'print the reply of GET /api/logs/<model>')
    .addHelpText(
      'after',
      `
The logs of the latest engines are kept while the server runs, even after the engines have stopped.

Examples:
  corral logs corral/tiny-chat
  corral logs corral/tiny-chat -n 20 -f`
    )
    .action(async (model: string, options: { follow?: boolean; lines?: number; json?: boolean }) => {
      const query = options.lines === undefined ? '' : `lines=${options.lines}`
      const path = `/api/logs/${model}`
      await withServer(
        context,
        'fail',
        async ({ client }) => {
          if (options.follow) {
            for await (const part of client.stream<LogEvent>(`${path}?follow=1&${query}`, undefined)) {
              if (!('event' in part)) continue
              const text = options.json ? JSON.stringify(part.event) : eventText(part.event)
              if (text !== undefined) printText(printable(text))
            }
            return
          }
          const reply = await client.json<LogsReply>('GET', `${path}?${query}`)
          if (options.json) printJson(reply)
          else printText(printable(formatLogs(reply)))
        },
        { without: 'Logs are kept only while a server runs.' }
      )
    })
}

function header({ engine, build, startedAt }: Pick<EngineLogRecord, 'engine' | 'build' | 'startedAt'>): string {
  return `== engine ${engine}, started ${startedAt} on ${build} ==`
}

function ending({ endedAt, exit, failure }: Pick<EngineLogRecord, 'endedAt' | 'exit' | 'failure'>): string | undefined {
  if (endedAt === undefined) return undefined
  const how = exit ? (exit.signal ?? `exit code ${exit.code}`) : 'not started'
  const why = failure ? ` ${failure.code} (${failure.cause}): ${failure.message}` : ''
  return `== ended ${endedAt}, ${how} ==${why}`
}

/** The logs for people; the newest engine is last, where a terminal ends. */
export function formatLogs({ model, engines }: LogsReply): string {
  if (engines.length === 0) return `No engine of ${model} has run since the server started.`
  return engines
    .toReversed()
    .map(record => {
      const dropped = record.dropped > 0 ? [`(${record.dropped} earlier lines)`] : []
      const end = ending(record)
      return [header(record), ...dropped, ...record.lines, ...(end === undefined ? [] : [end])].join('\n')
    })
    .join('\n\n')
}

function eventText(event: LogEvent): string | undefined {
  if ('line' in event) return event.line
  return 'startedAt' in event ? header(event) : ending(event)
}
