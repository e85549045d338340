import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'

const TSC = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin', 'tsc')

const CONSUMER = `import { definePlugin, openReplyStream } from './core/plugins/public-api.ts'
import { startTestCorral } from './testing/index.ts'
export default definePlugin({ name: 'a', api: 1, setup: () => ({}) })
export { openReplyStream, startTestCorral }`

t.test('types of the package compile for users who check libraries', async t => {
  const folder = t.testdir({ 'consumer.ts': CONSUMER })
  const compile = (...args: string[]) =>
    spawnSync(process.execPath, [TSC, ...args], { cwd: packageRoot, encoding: 'utf8' })
  compile('-p', join(packageRoot, 'tsconfig.package.json'), '--outDir', folder)
  const options = '--ignoreConfig --noEmit --strict --skipLibCheck false --target es2023 --module nodenext --types node'
  const checked = compile(join(folder, 'consumer.ts'), '--allowImportingTsExtensions', ...options.split(' '))
  t.equal(checked.status, 0, checked.stdout)
})

t.test('types of corral/plugin can be published, and stay small', async t => {
  const folder = t.testdir({})
  const args = [TSC, '-p', join(packageRoot, 'tsconfig.package.json'), '--outDir', folder]
  const { status, stdout } = spawnSync(process.execPath, args, { cwd: packageRoot, encoding: 'utf8' })
  t.equal(status, 0, stdout)
  const lines = new Map<string, number>()
  const reach = (path: string) => {
    if (lines.has(path)) return
    const text = readFileSync(join(folder, path), 'utf8')
    lines.set(path, text.split('\n').filter(line => !/^\s*(\/\*|\*|$)/.test(line)).length)
    for (const [, other] of text.matchAll(/(?:from|import)\(? ?['"](\.{1,2}\/[^'"]+)\.ts['"]/g)) {
      reach(join(dirname(path), `${other}.d.ts`))
    }
  }
  reach('core/plugins/public-api.d.ts')
  const total = [...lines.values()].reduce((sum, count) => sum + count, 0)
  t.ok(total <= 1500, `${total} lines without comments: ${JSON.stringify([...lines])}`)
  for (const path of ['contracts/builds', 'contracts/native-records', 'config/core-schema']) {
    t.notOk(lines.has(`core/${path}.d.ts`), `authors of plugins do not get core/${path}`)
  }
})
