import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { noteInputs, root } from './inputs.mjs'

export const FOLDER = join(root, 'dist', 'bundle')

/** What is started by its file's name, or imported from outside. All that they share is in files of its own, once. */
const ENTRIES = {
  main: 'command-line/main.ts',
  plugin: 'core/plugins/public-api.ts',
  testing: 'testing/index.ts',
  'digest-worker': 'plugins/models/download/transfer/digest-worker.ts',
  'transfer-worker': 'plugins/models/download/transfer/transfer-worker.ts'
}

/** Packages that stay apart: what few need, and only where their settings say so; and serializers, which JSON.stringify replaces. */
const SEPARATE = ['ioredis', '@opentelemetry/*', '@fastify/fast-json-stringify-compiler']

/** What modules of CommonJS find in theirs, and modules of ECMAScript have not. */
const BANNER = `import { createRequire as bundledRequire } from 'node:module'
const require = bundledRequire(import.meta.url), { filename: __filename, dirname: __dirname } = import.meta`

/**
 * Joins corral and the packages that it needs into a few files in dist/bundle: to open and link one file for each module
 * takes half of a start.
 */
export async function buildBundle() {
  const { build } = await import('esbuild')
  rmSync(FOLDER, { recursive: true, force: true })
  const { metafile, outputFiles } = await build({
    absWorkingDir: root,
    entryPoints: ENTRIES,
    outdir: FOLDER,
    bundle: true,
    splitting: true,
    metafile: true,
    write: false,
    format: 'esm',
    platform: 'node',
    target: 'node20.19',
    // Blanks and comments take time to read; names stay, for the stacks of errors.
    minifyWhitespace: true,
    minifySyntax: true,
    lineLimit: 200,
    sourcemap: 'linked',
    sourcesContent: false,
    legalComments: 'none',
    banner: { js: BANNER },
    external: SEPARATE,
    plugins: [importedLater, requiredLater],
    logLevel: 'error'
  })
  mkdirSync(FOLDER, { recursive: true })
  for (const { path, text } of outputFiles) {
    // V8 keeps a file that has any other character in twice the memory. esbuild leaves them in regular expressions.
    const escaped = text.replace(/[^\0-\x7f]/g, one => `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`)
    writeFileSync(path, escaped, { mode: path === join(FOLDER, 'main.js') ? 0o755 : 0o644 })
  }
  noteInputs(FOLDER, [...Object.keys(metafile.inputs), 'scripts/bundle.mjs'])
}

/** `import()` of a package of CommonJS gives its names, as it does in Node.js; esbuild alone gives a default export only. */
const importedLater = {
  name: 'imported-later',
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /^[^./]/ }, ({ kind, path, resolveDir }) => {
      if (kind !== 'dynamic-import' || path.startsWith('node:')) return undefined
      return { path, namespace: 'imported-later', pluginData: { resolveDir } }
    })
    onLoad({ filter: /.*/, namespace: 'imported-later' }, async ({ path, pluginData: { resolveDir } }) => {
      const names = Object.keys(await import(path)).filter(name => name !== 'module.exports')
      const from = JSON.stringify(path)
      return { contents: `export { ${names.join(', ')} } from ${from}`, resolveDir, loader: 'js' }
    })
  }
}

/**
 * The list of all media types takes a thirtieth of a start to read and sort, for `request.is` of @fastify/sensible alone,
 * which nothing of corral calls.
 */
const requiredLater = {
  name: 'required-later',
  setup({ onLoad }) {
    onLoad({ filter: /@fastify[/\\]sensible[/\\]index\.js$/ }, ({ path }) => {
      const [atOnce, later] = ["typeis = require('type-is')", "typeis = (...values) => require('type-is')(...values)"]
      const text = readFileSync(path, 'utf8')
      if (!text.includes(atOnce)) throw new Error(`${path} requires type-is in another way than before`)
      return { contents: text.replace(atOnce, later), loader: 'js' }
    })
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await buildBundle()
