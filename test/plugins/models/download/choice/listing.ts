import { createHash } from 'node:crypto'
import type { HubFile } from '../../../../../core/contracts/hubs.ts'
import { readFixture } from '../../../../support/fixture.ts'

/**
 * Builds a listing from lines `path size`. Sizes are in GB (k: kB). `{Q4_K_M:2.5,Q8_0:4}` stands for one file each, and
 * `[3]` for three shards that share the size.
 */
export function listing(lines: string): HubFile[] {
  return lines
    .split('\n')
    .map(line => line.trim())
    .filter(line => line !== '')
    .flatMap(expandLabels)
    .flatMap(([path, size]) =>
      expandShards(path).map((shard, _, all) => [shard, Math.round(size / all.length)] as const)
    )
    .map(([path, size]) => ({ path, size, sha256: createHash('sha256').update(path).digest('hex') }))
}

function expandLabels(line: string): [path: string, size: number][] {
  const [, before, alternatives, after, size] = /^([^{]*)\{([^}]*)\}(.*?)(?: ([\d.]+k?))?$/.exec(line) ?? []
  if (alternatives === undefined) {
    const [path, bytes] = line.split(/ (?=[\d.]+k?$)/)
    return [[path!, parseSize(bytes ?? '1k')]]
  }
  return alternatives.split(',').map(alternative => {
    const [label, bytes] = alternative.split(':')
    // `@` repeats the label, for a folder of the same name.
    return [`${before}${label}${after}`.replaceAll('@', label!), parseSize(bytes ?? size ?? '1k')]
  })
}

function expandShards(path: string): string[] {
  const count = Number(/\[(\d+)\]/.exec(path)?.[1] ?? 0)
  if (count === 0) return [path]
  const digits = (number: number) => String(number).padStart(5, '0')
  return Array.from({ length: count }, (_, index) =>
    path.replace(/\[\d+\]/, `-${digits(index + 1)}-of-${digits(count)}`)
  )
}

const parseSize = (text: string) => Math.round(Number.parseFloat(text) * (text.endsWith('k') ? 1e3 : 1e9))

interface Repository {
  id: string
  files: string
  /** A shard that is missing. */
  lacks?: string
  weightsInIndex?: string[]
  /** A pattern of the error, or a label (null if it has none) and files. */
  gives: Record<string, string | [label: string | null, ...files: string[]]>
}

/** Real repositories, with the outcome for each tag. The file explains its fields. */
export const REPOSITORIES = readFixture<Repository[]>('repositories.yaml').map(
  ({ id, files, lacks, weightsInIndex, gives }) => ({
    id,
    files: listing(files).filter(({ path }) => !lacks || !path.includes(lacks)),
    weightsInIndex: weightsInIndex?.flatMap(expandShards),
    gives: Object.entries(gives).map(([tag, given]) => {
      const [label, ...paths] = typeof given === 'string' ? [null] : given
      const refused = typeof given === 'string' ? new RegExp(given) : undefined
      return { tag, refused, label: label ?? undefined, paths: paths.flatMap(expandShards) }
    })
  })
)
