// Makes the checkout ready for `npm pack`: compiles what the package holds, with declarations for those who write plugins.
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { compile, installedFolder } from './compile.mjs'
import { root } from './inputs.mjs'

/** Compiles the package's files anew. */
async function prepare() {
  // Nothing that an earlier state of the source left behind may get into the package.
  for (const folder of ['bundle', 'types', join('plugins', 'page', 'browser')]) {
    rmSync(join(root, 'dist', folder), { recursive: true, force: true })
  }
  await compile()
  tsc('-p', root, '--noCheck')
  // Of the packages as they are locked now.
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

/** Puts a file of declarations, and those that it imports, where the package has them. */
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
