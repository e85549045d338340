import { createHash } from 'node:crypto'
import type { HubFile } from '../../../../../core/contracts/hubs.ts'

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
    .flatMap(expandShards)
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
    // `{}` repeats the label, for a folder of the same name.
    return [`${before}${label}${after}`.replaceAll('@', label!), parseSize(bytes ?? size ?? '1k')]
  })
}

export function expandShards([path, size]: [string, number]): [string, number][] {
  const count = Number(/\[(\d+)\]/.exec(path)?.[1] ?? 0)
  if (count === 0) return [[path, size]]
  const of = String(count).padStart(5, '0')
  return Array.from({ length: count }, (_, index) => {
    const shard = `-${String(index + 1).padStart(5, '0')}-of-${of}`
    return [path.replace(/\[\d+\]/, shard), Math.round(size / count)]
  })
}

const parseSize = (text: string) => Math.round(Number.parseFloat(text) * (text.endsWith('k') ? 1e3 : 1e9))

export interface Expectation {
  id: string
  files: HubFile[]
  /**
   * The choice for a tag (`''` is none), on a machine with 32 GiB and no GPU: a label and files by path, or an error.
   */
  gives: Record<string, [label: string | undefined, ...paths: string[]] | RegExp>
  weightsInIndex?: string[]
}
