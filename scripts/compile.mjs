import { spawnSync } from 'node:child_process'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { buildPage } from './build-page.mjs'

/** Compiles the TypeScript of this checkout into dist without checking types, and builds the page; ends the process when that fails. */
export async function compile() {
  const root = join(dirname(fileURLToPath(import.meta.url)), '..')
  const typescript = typescriptFolder()
  const { status } = spawnSync(process.execPath, [join(typescript, 'bin', 'tsc'), '-p', root, '--noCheck'], {
    stdio: ['inherit', 2, 'inherit']
  })
  if (status !== 0) process.exit(status ?? 1)
  await buildPage()
}

/** The compiler's folder; ends the process where it is not installed. */
export function typescriptFolder() {
  try {
    return dirname(createRequire(import.meta.url).resolve('typescript/package.json'))
  } catch (error) {
    if (error.code !== 'MODULE_NOT_FOUND') throw error
    process.stderr.write('error: This checkout is not ready. In its folder, run: npm ci\n')
    process.exit(1)
  }
}
