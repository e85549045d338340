// Prepares the checkout for `npm pack`: compiles the content of the package, with type declarations for authors of
// plugins.
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { compile, installedFolder } from './compile.mjs'
import { root } from './inputs.mjs'

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
  for (const entry of ['core/plugins/public-api.d.ts', 'testing/index.d.ts']) publish(declarations, entry, new Set())
  rmSync(declarations, { recursive: true })
}

function tsc(...words) {
  const compiler = join(installedFolder('typescript'), 'bin', 'tsc')
  const { status } = spawnSync(process.execPath, [compiler, ...words], { stdio: ['inherit', 2, 'inherit'] })
  if (status !== 0) process.exit(status ?? 1)
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

await prepare()
