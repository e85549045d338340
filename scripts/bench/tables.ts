import { formatTable } from '../../command-line/output.ts'
import { type Estimate, short, sum } from './measuring.ts'
import type { Figures } from './rounds.ts'

const ratio = (value: number) => (value >= 10 ? value.toFixed(0) : value.toFixed(2))
export const formatEstimate = ({ median, low, high }: Estimate) => `${ratio(median)} (${ratio(low)}–${ratio(high)})`
const signed = (value: number) => `${value < 0 ? '' : '+'}${value.toFixed(2)}`
const milliseconds = (value: number) => `${short(value)} ms`

interface Column {
  title: string
  cell(figures: Figures): string | undefined
}

const COLUMNS: Column[] = [
  { title: '>requests/s', cell: ({ requestsPerSecond }) => short(requestsPerSecond) },
  { title: '>speed/direct', cell: ({ speedRatio }) => speedRatio && formatEstimate(speedRatio) },
  { title: '>first p50', cell: ({ first }) => milliseconds(first.p50) },
  { title: '>p99', cell: ({ first }) => short(first.p99) },
  { title: '>added', cell: ({ added }) => (added === undefined ? undefined : signed(added)) },
  { title: '>between p50', cell: ({ between }) => between && milliseconds(between.p50) },
  { title: '>p99', cell: ({ between }) => between && short(between.p99) },
  { title: '>µs/request', cell: ({ perRequest }) => (perRequest === undefined ? undefined : short(perRequest)) },
  { title: '>µs/chunk', cell: ({ perChunk }) => (perChunk === undefined ? undefined : short(perChunk)) },
  { title: '>processor/pipe', cell: ({ processorRatio }) => processorRatio && formatEstimate(processorRatio) },
  { title: '>MiB', cell: ({ memory }) => (memory === undefined ? undefined : short(memory)) },
  { title: '>busy', cell: ({ busy }) => `${short(busy * 100)}%` },
  { title: '>errors', cell: ({ errors }) => String(sum(Object.values(errors)) || '') }
]

/** Formats a table with a row per way. Columns without values are left out. */
export function formatFigures(title: string, figures: readonly Figures[]): string {
  const filled = COLUMNS.filter(({ cell }) => figures.some(each => cell(each)))
  const rows = figures.map(each => [each.way, ...filled.map(({ cell }) => cell(each) ?? '')])
  const notes = figures.flatMap(({ way, errors }) =>
    Object.entries(errors).map(([what, count]) => `${way}: ${count} times ${what}`)
  )
  return [title, formatTable(['', ...filled.map(({ title }) => title)], rows, Number.POSITIVE_INFINITY), ...notes].join(
    '\n'
  )
}
