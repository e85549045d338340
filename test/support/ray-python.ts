import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'

function find(): string | undefined {
  try {
    const { python } = JSON.parse(readFileSync(join(packageRoot, '.cache', 'ray-python', 'path.json'), 'utf8'))
    return existsSync(python) ? python : undefined
  } catch {
    return undefined
  }
}

const found = find()
/** A Python with Ray, created by `npm run setup:python`. */
export const rayPython = found ?? ''

/**
 * For tests with real Ray, which are skipped without it.
 * @throws in CI, where nothing may be skipped
 */
export function realRay(): { skip: string | false } {
  if (process.platform !== 'linux') return { skip: 'clusters on Ray are for Linux' }
  if (found !== undefined) return { skip: false }
  const skip = 'Clusters on Ray are not tested: there is no Ray. Run "npm run setup:python -- --only ray" first.'
  if (process.env.CI) throw new Error(skip)
  return { skip }
}
