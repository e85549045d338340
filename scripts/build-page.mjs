import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'
import { noteInputs, root } from './inputs.mjs'
import { languages } from './page-languages.mjs'

export const FOLDER = join(root, 'dist', 'plugins', 'page', 'browser')

/**
 * Builds the browser page into dist: files with hashed names, each compressed in two ways, `files.json` with the names,
 * and `packages.json` with the bundled npm packages.
 */
export async function buildPage(from = join(root, 'plugins', 'page', 'browser'), to = FOLDER) {
  const { build } = await import('esbuild')
  mkdirSync(to, { recursive: true })
  // tsc writes modules of the page that tests import to subfolders, which must stay.
  for (const entry of readdirSync(to, { withFileTypes: true })) if (entry.isFile()) rmSync(join(to, entry.name))
  const options = {
    absWorkingDir: root,
    entryPoints: {
      main: join(from, 'main.tsx'),
      theme: join(from, 'theme.ts'),
      'pdf-worker': 'pdfjs-dist/build/pdf.worker.mjs',
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
  const names = outputFiles.map(({ path }) => basename(path))
  for (const { path, contents } of outputFiles) {
    writeFileSync(`${path}.gz`, gzipSync(contents, { level: 9 }))
    const quality = { [constants.BROTLI_PARAM_QUALITY]: 10, [constants.BROTLI_PARAM_SIZE_HINT]: contents.length }
    writeFileSync(`${path}.br`, brotliCompressSync(contents, { params: quality }))
  }
  const html = readFileSync(join(from, 'index.html'), 'utf8')
  const named = html.replace(/\{files\}(main|theme|style|pdf-worker)\.(js|css)/g, (_, entry, end) => {
    const name = names.find(name => name.startsWith(`${entry}-`) && name.endsWith(`.${end}`))
    return `{files}${name}`
  })
  // Preloads the modules that the page needs to start.
  const main = Object.entries(metafile.outputs).find(([, { entryPoint }]) => entryPoint?.endsWith('main.tsx'))[1]
  const preloads = main.imports
    .filter(({ kind }) => kind === 'import-statement')
    .map(({ path }) => `<link rel="modulepreload" href="{files}${basename(path)}">`)
  writeFileSync(join(to, 'index.html'), named.replace('<!-- preloads -->', preloads.join('')))
  writeFileSync(join(to, 'files.json'), JSON.stringify(names))
  const packages = Object.keys(metafile.inputs).flatMap(
    path => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []
  )
  writeFileSync(join(to, 'packages.json'), JSON.stringify([...new Set(packages)].sort()))
  const others = ['plugins/page/browser/index.html', 'plugins/page/browser/texts', 'scripts/build-page.mjs']
  noteInputs(to, [...Object.keys(metafile.inputs), ...others])
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
