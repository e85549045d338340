// Prepares the checkout for `npm pack`: compiles the content of the package, with type declarations for authors of
// plugins, and lists the digests of all files. With the option `--packed`, prints the digest of the packed file. Every
// checkout of a commit makes the same file with the same versions of Node.js and npm.
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { compile, installedFolder } from './compile.mjs'
import { root } from './inputs.mjs'

const DIGESTS = 'SHA256SUMS'
const ENTRIES = ['core/plugins/public-api.d.ts', 'testing/index.d.ts']

/** Compiles all files of the package from scratch. */
async function prepare() {
  for (const folder of ['bundle', 'types', join('plugins', 'page', 'browser')]) {
    rmSync(join(root, 'dist', folder), { recursive: true, force: true })
  }
  await compile()
  tsc('-p', root, '--noCheck')
  const written = spawnSync(process.execPath, [join(root, 'dist', 'scripts', 'write-supply-chain.js')], {
    stdio: ['inherit', 2, 'inherit']
  })
  if (written.status !== 0) process.exit(written.status ?? 1)
  const declarations = join(root, 'dist', 'declarations')
  tsc('-p', join(root, 'tsconfig.package.json'), '--outDir', declarations)
  for (const entry of ENTRIES) publish(declarations, entry, new Set())
  rmSync(declarations, { recursive: true })
  publishPackages()
  listDigests()
}

function tsc(...words) {
  const compiler = join(installedFolder('typescript'), 'bin', 'tsc')
  const { status, stdout } = spawnSync(process.execPath, [compiler, ...words], {
    stdio: ['inherit', 'pipe', 'inherit']
  })
  if (status === 0) return String(stdout)
  process.stderr.write(stdout)
  process.exit(status ?? 1)
}

/** Copies a declaration file and its imports into the package. */
function publish(from, path, done) {
  if (done.has(path)) return
  done.add(path)
  const text = readFileSync(join(from, path), 'utf8')
  const to = join(root, 'dist', 'types', path)
  mkdirSync(dirname(to), { recursive: true })
  writeFileSync(to, text)
  for (const [, other] of text.matchAll(/(?:from|import)\(? ?['"](\.{1,2}\/[^'"]+)\.ts['"]/g)) {
    publish(from, join(dirname(path), `${other}.d.ts`), done)
  }
}

/** Copies the declarations of packages that the published ones import, since the package is installed without them. */
function publishPackages() {
  const types = join(root, 'dist', 'types')
  const config = join(types, 'tsconfig.json')
  const compilerOptions = {
    target: 'es2023',
    module: 'nodenext',
    types: ['node'],
    typeRoots: ['../../node_modules/@types']
  }
  writeFileSync(config, JSON.stringify({ compilerOptions, files: ENTRIES }))
  const files = tsc('-p', config, '--noEmit', '--listFiles').split('\n')
  rmSync(config)
  const listed = new Set(
    JSON.parse(readFileSync(join(root, 'sbom.cdx.json'), 'utf8')).components.map(({ name }) => name)
  )
  for (const file of files) {
    const [path, name] = /node_modules\/((?:@[^/]+\/)?[^/]+)\/.*$/.exec(file) ?? []
    // The authors' own compiler and @types/node are newer.
    if (path === undefined || /^(?:@types|@?typescript|undici-types)(?:\/|$)/.test(name)) continue
    if (!listed.has(name)) throw new Error(`The types for plugins import ${name}, which sbom.cdx.json does not list.`)
    for (const one of [path, join('node_modules', name, 'package.json')]) {
      const to = join(types, one)
      mkdirSync(dirname(to), { recursive: true })
      writeFileSync(to, readFileSync(join(root, one)))
    }
  }
}

/** Writes what `corral verify` and `sha256sum --check` read, and gives all files the modes that git gives them. */
function listDigests() {
  const words = [process.env.npm_execpath, 'pack', '--dry-run', '--json', '--ignore-scripts']
  const { status, stdout } = spawnSync(process.execPath, words, { cwd: root, stdio: ['ignore', 'pipe', 'inherit'] })
  if (status !== 0) process.exit(status ?? 1)
  const paths = JSON.parse(stdout)[0].files.map(({ path }) => path)
  const lines = paths.filter(path => path !== DIGESTS).map(path => `${sha256(join(root, path))}  ${path}\n`)
  writeFileSync(join(root, DIGESTS), lines.sort().join(''))
  for (const path of [DIGESTS, ...paths]) {
    chmodSync(join(root, path), statSync(join(root, path)).mode & 0o100 ? 0o755 : 0o644)
  }
}

const sha256 = path => createHash('sha256').update(readFileSync(path)).digest('hex')

/** Prints what `sha256sum` prints. npm itself prints a SHA-512. */
function printDigest() {
  const {
    npm_package_name: name,
    npm_package_version: version,
    npm_config_pack_destination: folder = '.'
  } = process.env
  const file = `${name}-${version}.tgz`
  const path = resolve(process.env.INIT_CWD ?? root, folder, file)
  if (process.env.npm_config_dry_run !== 'true' && existsSync(path)) process.stderr.write(`${sha256(path)}  ${file}\n`)
}

await (process.argv.includes('--packed') ? printDigest() : prepare())
