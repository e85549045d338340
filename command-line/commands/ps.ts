import type { Command } from 'commander'
import type { LoadingRecord, RunningRecord } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import type { CommandContext } from '../context.ts'
import { formatTable, printJson, printText, relativeTime } from '../output.ts'
import { withServer } from '../server-connection.ts'

interface PsReply {
  models: RunningRecord[]
  loading: LoadingRecord[]
}

export function definePs(program: Command, context: CommandContext): void {
  program
    .command('ps')
    .description('list the models in memory')
    .option('--json', 'print the records of GET /api/ps')
    .addHelpText(
      'after',
      `
UNTIL is when the model is unloaded if no request comes; for a model that is not ready, what it is doing.

Examples:
  corral ps
  watch -n1 corral ps`
    )
    .action(async ({ json }: { json?: boolean }) => {
      let reply: PsReply = { models: [], loading: [] }
      try {
        reply = await withServer(context, 'fail', ({ client }) => client.json<PsReply>('GET', '/api/ps'), {
          without: 'Nothing is loaded.'
        })
      } catch (error) {
        if (json && error instanceof CommandFailure && error.exitCode === EXIT.noServer) printJson(reply)
        throw error
      }
      if (json) printJson(reply)
      else printText(formatRunning(reply, new Date()))
    })
}

/** The models in memory as a table; those that are still loading last. */
export function formatRunning({ models, loading }: PsReply, now: Date): string {
  return formatTable(
    ['NAME', 'ID', '>SIZE', 'PROCESSOR', '>CONTEXT', 'UNTIL'],
    [
      ...models.map(({ name, digest, size, size_vram, context_length, expires_at }) => [
        name,
        digest.slice(0, 12),
        formatBytes(size),
        processorOf(size, size_vram),
        String(context_length),
        relativeTime(expires_at, now)
      ]),
      ...loading.map(({ name, state, status }) => [name, '', '', '', '', status ?? state])
    ]
  )
}

/** Where a model's memory lies: `100% GPU`, `100% CPU` or `48%/52% CPU/GPU`. */
export function processorOf(size: number, vram: number): string {
  if (vram <= 0 || size <= 0) return '100% CPU'
  if (vram >= size) return '100% GPU'
  const cpu = Math.min(99, Math.max(1, Math.round((1 - vram / size) * 100)))
  return `${cpu}%/${100 - cpu}% CPU/GPU`
}
