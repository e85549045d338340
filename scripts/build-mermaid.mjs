import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { brotliCompressSync, constants } from 'node:zlib'
import { root } from './inputs.mjs'

/** Large parts for rare diagrams: another layout, and formulas in labels. */
const LEFT_OUT = /^(elkjs|katex)\b/

/**
 * Bundles Mermaid into one script for the sandboxed previews of the page. That takes some seconds, so the result is
 * cached per version.
 * @returns the name of the script, its content compressed with Brotli, and the bundled npm packages
 */
export async function buildMermaid() {
  const { version } = JSON.parse(readFileSync(join(root, 'node_modules', 'mermaid', 'package.json'), 'utf8'))
  const key = createHash('sha256')
    .update(version)
    .update(readFileSync(fileURLToPath(import.meta.url)))
  const name = `mermaid-${key.digest('hex').slice(0, 8).toUpperCase()}.js`
  const folder = join(root, '.cache', 'mermaid')
  const script = join(folder, `${name}.br`)
  const list = join(folder, `${name}.json`)
  if (!existsSync(script)) {
    const { build } = await import('esbuild')
    const leaveOut = {
      name: 'leave-out',
      setup({ onResolve, onLoad }) {
        onResolve({ filter: LEFT_OUT }, ({ path }) => ({ path, namespace: 'none' }))
        onLoad({ filter: /./, namespace: 'none' }, () => ({ contents: 'export default {}' }))
      }
    }
    const { metafile, outputFiles } = await build({
      absWorkingDir: root,
      stdin: { contents: "import mermaid from 'mermaid'; globalThis.mermaid = mermaid", resolveDir: root },
      bundle: true,
      minify: true,
      write: false,
      metafile: true,
      format: 'iife',
      target: 'es2022',
      plugins: [leaveOut],
      logLevel: 'error'
    })
    mkdirSync(folder, { recursive: true })
    writeFileSync(list, JSON.stringify(Object.keys(metafile.inputs)))
    const { contents } = outputFiles[0]
    const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: contents.length }
    const part = `${script}.${process.pid}`
    writeFileSync(part, brotliCompressSync(contents, { params }))
    renameSync(part, script)
  }
  return { name, packed: readFileSync(script), inputs: JSON.parse(readFileSync(list, 'utf8')) }
}
