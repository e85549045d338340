// `npm start`: compiles corral, then serves, all in one process, so that a signal to npm reaches the server. (npm runs
// no "prestart" here, since .npmrc switches scripts of packages off.)
import { spawnSync } from 'node:child_process'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const typescript = dirname(createRequire(import.meta.url).resolve('typescript/package.json'))
const { status } = spawnSync(process.execPath, [join(typescript, 'bin', 'tsc'), '-p', root], { stdio: 'inherit' })
if (status !== 0) process.exit(status ?? 1)

process.argv.splice(2, 0, 'serve')
await import('../dist/core/command-line/main.js')
