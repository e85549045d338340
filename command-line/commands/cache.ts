import { formatBytes } from '../../core/system/bytes.ts'
import { plural } from '../../core/system/plural.ts'
import type { CacheReport, ClearedCache } from '../../plugins/apis/native/cache-routes.ts'
import type { CommandContext } from '../context.ts'
import { formatTable, printable, printJson, printNote, printText } from '../output.ts'
import { ask } from '../server-connection.ts'

export async function cacheList(context: CommandContext, { json }: { json?: boolean }): Promise<void> {
  const report = await ask<CacheReport>(context, 'GET', '/api/cache')
  if (json) return printJson(report)
  if (report.models.length === 0) return printNote('Nothing is stored yet.')
  printText(printable(formatReport(report)))
}

export async function cacheClear(context: CommandContext, model: string | undefined): Promise<void> {
  const query = model === undefined ? '' : `?${new URLSearchParams({ model })}`
  const { deleted } = await ask<ClearedCache>(context, 'DELETE', `/api/cache${query}`)
  printNote(`Deleted ${plural(deleted, 'stored conversation')}.`)
}

function formatReport({ models }: CacheReport): string {
  const rows = models.map(({ model, conversations, tokens, memory, disk, hits, misses, restored_tokens }) => [
    model,
    `${conversations}`,
    `${tokens}`,
    formatBytes(memory),
    formatBytes(disk),
    hits + misses === 0 ? '-' : `${Math.round((100 * hits) / (hits + misses))} %`,
    `${restored_tokens}`
  ])
  return formatTable(['MODEL', '>CONVERSATIONS', '>TOKENS', '>MEMORY', '>DISK', '>FOUND', '>SAVED'], rows)
}
