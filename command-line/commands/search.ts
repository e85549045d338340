import type { FoundRepository, SearchReply } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { EXIT } from '../command-failure.ts'
import type { CommandContext, Options } from '../context.ts'
import { formatTable, printable, printJson, printNote, printText, relativeTime, wrapLines } from '../output.ts'
import { showProgress } from '../progress-display.ts'
import { ask } from '../server-connection.ts'

type SearchOptions = Options<'fits' | 'json', 'hub'> & { limit: number }

export async function search(context: CommandContext, words: string[], options: SearchOptions): Promise<void> {
  const query = new URLSearchParams({ q: words.join(' '), limit: String(options.limit) })
  if (options.hub !== undefined) query.set('hub', options.hub)
  const waiting = await showProgress(`searching for ${words.join(' ')}`, { plain: 'nothing' })
  const reply = await ask<SearchReply>(context, 'GET', `/api/search?${query}`).finally(() => waiting.clear())
  const models = options.fits ? reply.models.filter(({ memory }) => memory?.fits) : reply.models
  for (const { hub, error } of reply.errors) printNote(printable(`warning: ${hub} could not be searched: ${error}`))
  if (models.length === 0) process.exitCode = EXIT.failure
  if (options.json) return printJson({ ...reply, models })
  if (models.length > 0) return printText(formatFound(models, process.stdout.columns, new Date()))
  const left = reply.models.length
  if (left === 0) {
    printNote(`No models match "${printable(words.join(' '))}". Try fewer or other words, or more hubs with --hub all.`)
  } else if (left === 1) {
    printNote('The only model found does not fit this machine. Show it by leaving out --fits.')
  } else printNote(`None of the ${left} models found fits this machine. Show them by leaving out --fits.`)
}

/**
 * Formats search results with the command that pulls each: as a table, or as one block per model if the table is wider
 * than the terminal.
 * @param width columns; undefined is unlimited
 */
export function formatFound(models: readonly FoundRepository[], width: number | undefined, now: Date): string {
  const rows = models.map(({ model, size, variant = '', memory, gated, downloads, updated_at, license = '' }) => [
    size === undefined ? '?' : formatBytes(size),
    variant,
    [memory && (memory.fits ? 'yes' : 'no'), gated && 'gated'].filter(Boolean).join(', '),
    downloads === undefined ? '' : countText(downloads),
    updated_at === undefined ? '' : relativeTime(updated_at, now),
    license,
    `corral pull ${model}`
  ])
  const titles = ['>SIZE', 'VARIANT', 'FITS', '>DOWNLOADS', 'UPDATED', 'LICENCE', 'GET IT WITH']
  const table = formatTable(titles, rows, Number.POSITIVE_INFINITY)
  const isWide = width !== undefined && table.split('\n').some(line => line.length > width)
  // The command that pulls a model is the heading of its block.
  const [heads, ...cells] = [titles, ...rows].map(row => [row.at(-1)!, ...row.slice(0, -1)]) as [
    string[],
    ...string[][]
  ]
  const shown = isWide ? formatTable(heads, cells, width) : table
  const unknown = models.filter(({ problem }) => problem !== undefined)
  const notes = unknown.map(({ model, problem }) => `${model}: ${problem}`).join('\n')
  const parts = notes === '' ? [] : [wrapLines(printable(notes), width ?? Number.POSITIVE_INFINITY)]
  return [shown, ...parts].join('\n\n')
}

/** Formats a count: `1.2M`, `90k`. */
const countText = (count: number) =>
  new Intl.NumberFormat('en', { notation: 'compact' }).format(count).replace('K', 'k')
