// Makes the checkout ready for `npm pack`, and tidies up behind it: compiles what the package holds, with declarations for
// those who write plugins, and pins all dependencies by a shrinkwrap. Without that, npm would install newer versions of
// what Fastify depends on, which want a newer Node.js than corral does.
import { spawnSync } from 'node:child_process'
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { compile } from './compile.mjs'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const shrinkwrap = join(root, 'npm-shrinkwrap.json')

function prepare() {
  // Nothing that an earlier state of the source left behind may get into the package.
  for (const folder of ['command-line', 'core', 'plugins', 'runtimes', 'testing']) {
    rmSync(join(root, 'dist', folder), { recursive: true, force: true })
  }
  compile()
  const typescript = dirname(createRequire(import.meta.url).resolve('typescript/package.json'))
  const tsc = [join(typescript, 'bin', 'tsc'), '-p', join(root, 'tsconfig.package.json')]
  const { status } = spawnSync(process.execPath, tsc, { stdio: ['inherit', 2, 'inherit'] })
  if (status !== 0) process.exit(status ?? 1)
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'))
  const packages = Object.entries(lock.packages).filter(([, entry]) => !entry.dev)
  const [, { devDependencies, ...own }] = packages.shift()
  writeFileSync(
    shrinkwrap,
    JSON.stringify({ ...lock, packages: { '': own, ...Object.fromEntries(packages) } }, null, 2)
  )
}

if (process.argv[2] === 'prepare') prepare()
else rmSync(shrinkwrap, { force: true })
