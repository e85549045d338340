import { createRequire } from 'node:module'
import { dirname } from 'node:path'

/**
 * Builds corral's bundle and page in this checkout without type checks, if their sources have changed. Exits with an
 * error if packages are missing.
 */
export async function compile() {
  installedFolder('esbuild')
  const [{ isUpToDate }, bundle, page] = await Promise.all([
    import('./inputs.mjs'),
    import('./bundle.mjs'),
    import('./build-page.mjs')
  ])
  const builds = [
    [bundle.FOLDER, bundle.buildBundle],
    [page.FOLDER, page.buildPage]
  ]
  const stale = builds.filter(([folder]) => !isUpToDate(folder))
  for (const [, build] of stale) await build()
  // Otherwise its process would run as long as the server.
  if (stale.length > 0) await (await import('esbuild')).stop()
}

/** Folder of a package. Exits with an error if it is not installed. */
export function installedFolder(name) {
  try {
    return dirname(createRequire(import.meta.url).resolve(`${name}/package.json`))
  } catch (error) {
    if (error.code !== 'MODULE_NOT_FOUND') throw error
    process.stderr.write('error: The npm packages of this checkout are not installed. In its folder, run: npm ci\n')
    process.exit(1)
  }
}
