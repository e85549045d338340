import { existsSync, readFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
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

/** Returns the path of an npm package's file: in node_modules, or beside corral's bundle (scripts/bundle.mjs). */
export function packagedFile(path: string): string {
  const copy = fileURLToPath(new URL(basename(path), import.meta.url))
  return existsSync(copy) ? copy : join(packageRoot, 'node_modules', path)
}
