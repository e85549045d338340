import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** Finds the nearest package.json above this module, which may have been bundled with others into one file. */
function findPackageRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(folder, 'package.json'))) folder = dirname(folder)
  return folder
}

/** The folder of corral's package.json. Paths of shipped files that are not code start here. */
export const packageRoot = findPackageRoot()

export const version: string = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')).version
