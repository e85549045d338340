import { createHash } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { brotliCompressSync, constants } from 'node:zlib'
import { drawIcon } from './build-icons.mjs'
import { buildMermaid } from './build-mermaid.mjs'
import { noteInputs, root } from './inputs.mjs'
import { languages } from './page-languages.mjs'

export const FOLDER = join(root, 'dist', 'plugins', 'page', 'browser')

/** Icons of the installed page: purpose, width, and the share of the width that the lines take. */
const ICONS = [
  ['any', 192, 0.8],
  ['any', 512, 0.8],
  ['maskable', 512, 0.6]
]
/** Larger files are not kept for the time without the server, in bytes: they read PDFs and draw diagrams. */
const MAX_KEPT_BYTES = 90_000

const QUALITY = constants.BROTLI_PARAM_QUALITY
const hash = contents => createHash('sha256').update(contents).digest('hex').slice(0, 8).toUpperCase()

/**
 * Builds the browser page into dist: files with hashed names, compressed with Brotli, `files.json` with the names, and
 * `packages.json` with the bundled npm packages.
 */
export async function buildPage(from = join(root, 'plugins', 'page', 'browser'), to = FOLDER) {
  const { build } = await import('esbuild')
  mkdirSync(to, { recursive: true })
  // tsc writes modules of the page that tests import to subfolders, which must stay.
  for (const entry of readdirSync(to, { withFileTypes: true })) if (entry.isFile()) rmSync(join(to, entry.name))
  const mermaid = await buildMermaid()
  const frame = readFileSync(join(from, 'chat', 'preview.html'))
  const frameName = `preview-${hash(frame)}.html`
  const options = {
    absWorkingDir: root,
    entryPoints: {
      main: join(from, 'main.tsx'),
      theme: join(from, 'theme.ts'),
      'pdf-worker': 'pdfjs-dist/build/pdf.worker.mjs',
      'image-worker': join(from, 'chat', 'image-worker.ts'),
      style: join(from, 'style.css')
    },
    outdir: to,
    bundle: true,
    splitting: true,
    minify: true,
    write: false,
    metafile: true,
    format: 'esm',
    target: 'es2022',
    define: { MERMAID: JSON.stringify(mermaid.name), PREVIEW: JSON.stringify(frameName) },
    entryNames: '[name]-[hash]',
    chunkNames: '[name]-[hash]',
    tsconfig: join(from, 'tsconfig.json'),
    plugins: [languages(join(from, 'texts'))],
    logLevel: 'error'
  }
  const { inputs } = (await build(options)).metafile
  const { metafile, outputFiles } = await build({
    ...options,
    plugins: [...options.plugins, wholeStart(inputs, join(from, 'app.tsx'))]
  })
  const icons = ICONS.map(([name, size, share]) => {
    const contents = drawIcon(size, share)
    return [`${name}-${size}-${hash(contents)}.png`, contents]
  })
  const files = [...outputFiles.map(({ path, contents }) => [basename(path), contents]), [frameName, frame], ...icons]
  const store = (name, contents) => {
    const params = { [QUALITY]: 10, [constants.BROTLI_PARAM_SIZE_HINT]: contents.length }
    const packed = brotliCompressSync(contents, { params })
    writeFileSync(join(to, `${name}.br`), packed)
    return packed.length
  }
  const sizes = files.map(([name, contents]) => [name, store(name, contents)])
  writeFileSync(join(to, `${mermaid.name}.br`), mermaid.packed)
  const names = [...files.map(([name]) => name), mermaid.name]
  const html = readFileSync(join(from, 'index.html'), 'utf8')
  const named = html.replace(/\{files\}(main|theme|style|pdf-worker|image-worker)\.(js|css)/g, (_, entry, end) => {
    const name = names.find(name => name.startsWith(`${entry}-`) && name.endsWith(`.${end}`))
    return `{files}${name}`
  })
  // Preloads the modules that the page needs to start.
  const main = Object.entries(metafile.outputs).find(([, { entryPoint }]) => entryPoint?.endsWith('main.tsx'))[1]
  const preloads = main.imports
    .filter(({ kind }) => kind === 'import-statement')
    .map(({ path }) => `<link rel="modulepreload" href="{files}${basename(path)}">`)
  const page = named.replace('<!-- preloads -->', preloads.join(''))
  writeFileSync(join(to, 'index.html'), page)
  const kept = sizes.flatMap(([name, size]) => (/\.(js|css)$/.test(name) && size < MAX_KEPT_BYTES ? [name] : []))
  const worker = await build({
    ...options,
    entryPoints: [join(from, 'service-worker.ts')],
    splitting: false,
    format: 'iife',
    define: {
      FILES: JSON.stringify(kept),
      START: JSON.stringify(kept.filter(name => page.includes(name))),
      VERSION: JSON.stringify(hash(page + kept.join()))
    }
  })
  store('service-worker.js', worker.outputFiles[0].contents)
  writeFileSync(join(to, 'files.json'), JSON.stringify(names))
  const packages = [...Object.keys(metafile.inputs), ...mermaid.inputs].flatMap(
    path => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []
  )
  writeFileSync(join(to, 'packages.json'), JSON.stringify([...new Set(packages)].sort()))
  const others = ['index.html', 'texts', 'service-worker.ts', 'chat/preview.html'].map(
    path => `plugins/page/browser/${path}`
  )
  const scripts = ['page', 'mermaid', 'icons'].map(name => `scripts/build-${name}.mjs`)
  noteInputs(to, [...Object.keys(metafile.inputs), ...others, ...scripts])
}

/**
 * Makes all modules that are loaded later import the start of the page. Otherwise esbuild splits the start by their needs
 * into many small files, which compress worse.
 */
function wholeStart(inputs, start) {
  const imports = Object.values(inputs).flatMap(({ imports }) => imports)
  const later = imports.flatMap(({ kind, path }) => (kind === 'dynamic-import' ? join(root, path) : []))
  return {
    name: 'whole-start',
    setup: ({ onLoad }) =>
      onLoad({ filter: /\.tsx?$/ }, ({ path }) => {
        if (!later.includes(path)) return undefined
        const contents = `${readFileSync(path, 'utf8')}\nimport ${JSON.stringify(start)}`
        return { contents, loader: path.endsWith('x') ? 'tsx' : 'ts' }
      })
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await buildPage()
