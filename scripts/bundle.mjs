import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { noteInputs, root } from './inputs.mjs'

export const FOLDER = join(root, 'dist', 'bundle')
/** Texts that the command line reads. */
const TEXTS = 'command-line/texts'

/** Files that are started or imported by name. Shared code is in separate chunks. */
const ENTRIES = {
  main: 'command-line/main.ts',
  plugin: 'core/plugins/public-api.ts',
  testing: 'testing/index.ts',
  'digest-worker': 'plugins/models/download/transfer/digest-worker.ts',
  'transfer-worker': 'plugins/models/download/transfer/transfer-worker.ts',
  'pdf-worker': 'core/answers/pdf-worker.ts',
  'webp-worker': 'core/answers/webp-worker.ts',
  'sound-worker': 'core/answers/sound-worker.ts'
}

/**
 * Packages outside the bundle: few users need them, and only with certain settings. The serializers are replaced by
 * JSON.stringify.
 */
const SEPARATE = [
  'ioredis',
  '@embedpdf/pdfium',
  '@evan/opus',
  // Contains LAME, which users may replace, as the LGPL says.
  'wasm-media-encoders',
  '@jsquash/webp',
  '@opentelemetry/*',
  '@fastify/fast-json-stringify-compiler'
]

/** Packages whose main file esbuild cannot follow, with their ECMAScript modules. */
export const ALIASES = { 'jsonc-parser': 'jsonc-parser/lib/esm/main.js' }

/** CommonJS globals that ECMAScript modules lack. */
const BANNER = `import { createRequire as bundledRequire } from 'node:module'
const require = bundledRequire(import.meta.url), { filename: __filename, dirname: __dirname } = import.meta`

/**
 * Bundles corral and its packages into a few files in dist/bundle. Opening and linking one file per module takes half
 * of the start time.
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
    // Blanks and comments take time to parse. Names are kept for stack traces.
    minifyWhitespace: true,
    minifySyntax: true,
    lineLimit: 200,
    sourcemap: 'linked',
    sourcesContent: false,
    legalComments: 'none',
    banner: { js: BANNER },
    external: SEPARATE,
    alias: ALIASES,
    plugins: [importedLater, requiredLater],
    logLevel: 'error'
  })
  mkdirSync(FOLDER, { recursive: true })
  for (const { path, text } of outputFiles) {
    // Any non-Latin-1 character doubles the memory that V8 needs for a file. esbuild leaves them in regular
    // expressions.
    const escaped = text.replace(/[^\0-\x7f]/g, one => `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`)
    writeFileSync(path, escaped, { mode: path === join(FOLDER, 'main.js') ? 0o755 : 0o644 })
  }
  cpSync(join(root, TEXTS), join(FOLDER, 'texts'), { recursive: true })
  const texts = readdirSync(join(root, TEXTS), { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile())
    .map(({ name, parentPath }) => relative(root, join(parentPath, name)))
  noteInputs(FOLDER, [...Object.keys(metafile.inputs), ...texts, 'scripts/bundle.mjs'])
}

/**
 * Makes `import()` of a CommonJS package return its named exports, as in Node.js. esbuild returns only a default
 * export.
 */
export const importedLater = {
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
 * Loads the list of media types lazily. It takes a thirtieth of a start, and only `request.is` of @fastify/sensible
 * uses it, which corral never calls.
 */
const requiredLater = {
  name: 'required-later',
  setup({ onLoad }) {
    onLoad({ filter: /@fastify[/\\]sensible[/\\]index\.js$/ }, ({ path }) => {
      const [atOnce, later] = ["typeis = require('type-is')", "typeis = (...values) => require('type-is')(...values)"]
      const text = readFileSync(path, 'utf8')
      if (!text.includes(atOnce))
        throw new Error(`${path} no longer requires type-is in the expected way. Update scripts/bundle.mjs.`)
      return { contents: text.replace(atOnce, later), loader: 'js' }
    })
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await buildBundle()
