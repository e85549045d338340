import type { Command } from 'commander'
import type { LocalModel } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { CommandContext } from '../context.ts'
import { formatTable, printJson, printNote, printText, relativeTime } from '../output.ts'
import { withServer } from '../server-connection.ts'

export function defineList(program: Command, context: CommandContext): void {
  program
    .command('list')
    .alias('ls')
    .description('list the models on disk')
    .option('--json', 'print the records of GET /api/tags')
    .addHelpText(
      'after',
      `
Examples:
  corral list
  corral list --json | jq -r '.models[].name'`
    )
    .action(async ({ json }: { json?: boolean }) => {
      const reply = await withServer(context, 'aside', ({ client }) =>
        client.json<{ models: LocalModel[] }>('GET', '/api/tags')
      )
      if (json) return printJson(reply)
      if (process.stderr.isTTY && reply.models.length === 0) {
        printNote('There is no model yet. Download one with: corral pull <owner>/<name>')
      }
      printText(formatModels(reply.models, new Date()))
    })
}

/** The models as a table, the newest first. */
export function formatModels(
  models: Pick<LocalModel, 'name' | 'digest' | 'size' | 'format' | 'modified_at'>[],
  now: Date
): string {
  const rows = models
    .toSorted((a, b) => b.modified_at.localeCompare(a.modified_at))
    .map(({ name, digest, size, format, modified_at }) => [
      name,
      digest.slice(0, 12),
      formatBytes(size),
      format,
      relativeTime(modified_at, now)
    ])
  return formatTable(['NAME', 'ID', '>SIZE', 'FORMAT', 'MODIFIED'], rows)
}
