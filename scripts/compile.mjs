import { createRequire } from 'node:module'
import { dirname } from 'node:path'

/**
 * Makes what corral is started from of this checkout, without checking types: its bundle and its page, as far as their
 * sources have changed. Ends the process where the packages for it are not installed.
 */
export async function compile() {
  installedFolder('esbuild')
  const [{ isUpToDate }, bundle, page] = await Promise.all([
    import('./inputs.mjs'),
    import('./bundle.mjs'),
    import('./build-page.mjs')
  ])
  if (!isUpToDate(bundle.FOLDER)) await bundle.buildBundle()
  if (!isUpToDate(page.FOLDER)) await page.buildPage()
}

/** Where a package is; ends the process where it is not installed. */
export function installedFolder(name) {
  try {
    return dirname(createRequire(import.meta.url).resolve(`${name}/package.json`))
  } catch (error) {
    if (error.code !== 'MODULE_NOT_FOUND') throw error
    process.stderr.write('error: This checkout is not ready. In its folder, run: npm ci\n')
    process.exit(1)
  }
}
