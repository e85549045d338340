import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

function findPackageRoot(): string {
  // This module runs from dist/core/system; the package's own files (assets, package.json) are three folders up.
  return join(dirname(fileURLToPath(import.meta.url)), '..', '..', '..')
}

/** The folder of corral's package.json: shipped files that are not code are found from here. */
export const packageRoot = findPackageRoot()

/** corral's own version, from its package.json. */
export const version: string = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')).version
