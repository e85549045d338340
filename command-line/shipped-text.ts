import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'

/** Returns a text of the folder `texts`, which is beside this module in a bundle. */
export function shippedText(name: string): string {
  const bundled = new URL(`./texts/${name}`, import.meta.url)
  return readFileSync(existsSync(bundled) ? bundled : join(packageRoot, 'command-line', 'texts', name), 'utf8')
}
