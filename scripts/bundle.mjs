import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, join, relative } from 'node:path'
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

/** Files of packages that the bundle reads (core/system/package-info.ts), with their place in node_modules. */
const COPIED = [
  '@embedpdf/pdfium/dist/pdfium.wasm',
  '@evan/opus/wasm/opus.wasm',
  '@evan/opus/wasm/simd.wasm',
  '@fastify/swagger-ui/static/swagger-ui-bundle.js',
  '@fastify/swagger-ui/static/swagger-ui.css',
  '@jsquash/webp/codec/dec/webp_dec.wasm',
  // Contains LAME, which users may replace, as the LGPL says.
  'wasm-media-encoders/wasm/mp3.wasm'
]

/** Packages outside the bundle: tracing is optional, and the serializers are replaced by JSON.stringify. */
const SEPARATE = ['@opentelemetry/*', '@fastify/fast-json-stringify-compiler']

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
    plugins: [importedLater, corrections],
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
  for (const path of COPIED) {
    writeFileSync(join(FOLDER, basename(path)), readFileSync(join(root, 'node_modules', path)))
  }
  // Source maps also name packages that are built into others.
  const sources = outputFiles.flatMap(({ path, text }) => (path.endsWith('.map') ? JSON.parse(text).sources : []))
  const packages = [...sources, ...COPIED.map(path => `node_modules/${path}`)].flatMap(
    path => /node_modules\/(?:.*\/node_modules\/)?(?:@[^/]+\/)?[^/]+/.exec(path)?.[0] ?? []
  )
  writeFileSync(join(FOLDER, 'packages.json'), JSON.stringify([...new Set(packages)].sort()))
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

/** Replaces a text in each of these files of packages, which must contain it. */
const CORRECTIONS = [
  // Loads the list of media types lazily. It takes a thirtieth of a start, and only `request.is` uses it, which corral
  // never calls.
  [/@fastify\/sensible\/index\.js$/, "typeis = require('type-is')", "typeis = (...all) => require('type-is')(...all)"],
  // Only exemplars need it, which corral does not write.
  [/prom-client\/lib\/metrics\/processCpuTotal\.js$/, "require('@opentelemetry/api')", 'undefined'],
  // Both packages contain copies of ajv and ajv-formats. The bundle needs them once.
  [
    /@modelcontextprotocol\/(?:client|server)\/dist\/ajvProvider-\w+\.mjs$/,
    /\/\/#region \S+\/ajv@.*(?=var import_ajv = )/s,
    `const require_ajv = () => require('ajv'), require__2019 = () => require('ajv/dist/2019.js')
const require__2020 = () => require('ajv/dist/2020.js'), require_dist = () => require('ajv-formats')\n`
  ]
]

const corrections = {
  name: 'corrections',
  setup({ onLoad }) {
    for (const [filter, before, after] of CORRECTIONS) {
      onLoad({ filter: new RegExp(filter.source.replaceAll('\\/', '[/\\\\]')) }, ({ path }) => {
        const text = readFileSync(path, 'utf8')
        const contents = text.replace(before, after)
        if (contents === text) throw new Error(`${path} has changed. Update scripts/bundle.mjs.`)
        return { contents, loader: 'js' }
      })
    }
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await buildBundle()
