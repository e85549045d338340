import { readFileSync, rmSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { pathToFileURL } from 'node:url'
import { ALIASES, importedLater } from './bundle.mjs'
import { root } from './inputs.mjs'

const TESTS = join(root, 'dist', 'test')
/** A folder of each run, because two runs in one checkout must not replace each other's files. */
const FOLDER = join(root, 'dist', 'bundled-tests', `${process.pid}`)

/**
 * Bundles compiled test files with everything that they import, and returns the paths of the bundles. Loading hundreds
 * of small modules takes longer than most tests.
 */
export async function bundleTests(files) {
  const { build, stop } = await import('esbuild')
  process.once('exit', () => rmSync(FOLDER, { recursive: true, force: true }))
  await build({
    entryPoints: files,
    outbase: TESTS,
    outdir: FOLDER,
    bundle: true,
    splitting: true,
    keepNames: true,
    format: 'esm',
    platform: 'node',
    target: 'node20.19',
    sourcemap: 'linked',
    sourcesContent: false,
    banner: {
      js: "import { createRequire as bundledRequire } from 'node:module'; const require = bundledRequire(import.meta.url)"
    },
    external: ['corral/*', 'esbuild', 'ioredis', 'playwright-core', '@opentelemetry/*'],
    alias: ALIASES,
    plugins: [importedLater, usedPlugins, ownPlaces],
    logLevel: 'error'
  })
  // Its process would keep a gigabyte of memory during the tests.
  await stop()
  return files.map(file => join(FOLDER, relative(TESTS, file)))
}

/** Leaves out the plugins of tap that no test uses. Each process of tests would load them, and each test create them. */
const usedPlugins = {
  name: 'used-plugins',
  setup({ onLoad }) {
    const filter = /@tapjs[/\\](chdir|intercept|mock|node-serialize|snapshot|spawn|stdin|worker)[/\\].*[/\\]index\.js$/
    onLoad({ filter }, () => ({ contents: 'export const plugin = () => ({})' }))
  }
}

/** Lets bundled modules find the files beside them, as if they were not bundled. */
const ownPlaces = {
  name: 'own-places',
  setup({ onLoad }) {
    onLoad({ filter: /\.[cm]?js$/ }, ({ path }) => {
      const text = readFileSync(path, 'utf8')
      const isCommonJs = /\b__(dir|file)name\b/.test(text) && !/^(import|export)\b/m.test(text)
      if (!isCommonJs && !text.includes('import.meta')) return undefined
      const [url, file, folder] = [pathToFileURL(path).href, path, dirname(path)].map(place => JSON.stringify(place))
      if (isCommonJs) return { contents: `var __filename = ${file}, __dirname = ${folder};${text}` }
      const contents = text
        .replace(/\bimport\.meta\.url\b/g, url)
        .replace(/\bimport\.meta\.filename\b/g, file)
        .replace(/\bimport\.meta\.dirname\b/g, folder)
      return { contents }
    })
  }
}
