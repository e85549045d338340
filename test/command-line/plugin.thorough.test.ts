import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { KINDS, type PluginKind } from '../../command-line/commands/plugins.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { startCorral } from '../support/corral.ts'
import { checkCommands, corral, newHome } from './command.ts'

/** Adds the compiler and everything that `npm install` puts beside a plugin. */
function install(folder: string): void {
  mkdirSync(join(folder, 'node_modules', '@types'), { recursive: true })
  for (const [name, target] of [
    ['corral', packageRoot],
    ['typescript', join(packageRoot, 'node_modules', 'typescript')],
    ['@types/node', join(packageRoot, 'node_modules', '@types', 'node')]
  ] as const) {
    symlinkSync(target, join(folder, 'node_modules', name), 'dir')
  }
}

function run(folder: string, args: string[]) {
  // Without the test runner's loaders, which conflict with the compiler.
  const { status, stdout, stderr } = spawnSync('env', ['-u', 'NODE_OPTIONS', process.execPath, ...args], {
    cwd: folder,
    encoding: 'utf8',
    env: { PATH: process.env.PATH ?? '', HOME: folder }
  })
  return { status, output: stdout + stderr }
}

const TSC = join(packageRoot, 'node_modules', 'typescript', 'bin', 'tsc')

const OFFERED: Record<PluginKind, RegExp> = {
  engine: /^engines +my-engine\nmodels +my-engine\/parrot$/m,
  filter: /^hooks +request, event$/m,
  hub: /^hubs +my-hub \(corral pull my-hub:…\)$/m,
  surface:
    /^routes +GET \/my-surface\/page, POST \/my-surface\/describe, POST \/my-surface\/ask\npage +What can models do\? \(\/my-surface\/page\)$/m
}

t.test('corral plugin new creates plugins whose tests pass', async t => {
  const home = newHome(t)
  for (const kind of KINDS) {
    const made = await corral(['plugin', 'new', kind, `my-${kind}`], { home })
    t.equal(made.code, 0, made.stderr)
    t.match(made.stdout, `Created the ${kind} "my-${kind}"`)
    install(join(home, `my-${kind}`))
  }
  // The checkout has no declarations, so their sources are checked instead.
  const sources = {
    extends: './my-engine/tsconfig.json',
    compilerOptions: {
      noEmit: true,
      exactOptionalPropertyTypes: true,
      allowImportingTsExtensions: true,
      rootDir: '/',
      typeRoots: ['./my-engine/node_modules/@types'],
      paths: {
        'corral/plugin': [join(packageRoot, 'core/plugins/public-api.ts')],
        'corral/testing': [join(packageRoot, 'testing/index.ts')]
      }
    },
    files: [...KINDS.map(kind => `my-${kind}/src/index.ts`), join(packageRoot, 'core/contracts/built-in-services.ts')],
    include: []
  }
  writeFileSync(join(home, 'tsconfig.json'), JSON.stringify(sources))
  const checked = run(home, [TSC, '-p', '.'])
  // corral itself is written without exactOptionalPropertyTypes, but plugins may use it.
  const mistakes = checked.output.split('\n').filter(line => /^[^\s.]/.test(line))
  t.same(mistakes, [], 'all have correct types under strict and exactOptionalPropertyTypes')
  for (const kind of KINDS) {
    const folder = join(home, `my-${kind}`)
    run(folder, [TSC, '--noCheck'])
    const tested = run(folder, ['--test', 'dist/index.test.js'])
    t.equal(tested.status, 0, `npm test passes for ${kind}: ${tested.output.slice(-3000)}`)
    const { code, stdout, stderr } = await corral(['plugin', 'check', `my-${kind}`], { home })
    t.equal(code, 0, stderr)
    t.match(stdout, /it starts together with the built-in plugins/)
    t.match(stdout, OFFERED[kind], 'it reports what the plugin offers')
  }
  await checkCommands(t, 'wrong plugins', words => corral(['plugin', ...words], { home }))
})

t.test('corral plugin check reports what is wrong', async t => {
  const home = newHome(t)
  const write = (name: string, more: string) =>
    writeFileSync(join(home, `${name}.mjs`), `export default { name: '${name}', api: 1, optional: true, ${more} }`)
  write('old', 'api: 7, setup: () => ({})')
  write('unlucky', `setup() { throw new Error('out of sorts') }`)
  write('storage', 'setup: () => ({})')
  write('misspelled', 'need: [], setup: () => ({})')
  write('mistyped', 'setup: () => ({ route: async () => {}, on: { reqest() {} } })')
  mkdirSync(join(home, 'raw.mjs'))
  writeFileSync(join(home, 'raw.mjs', 'package.json'), '{ "type": "module", "exports": "./dist/index.js" }')
  write('thief', `setup: () => ({ routes: async app => void app.get('/api/tags', async () => 1) })`)
  for (const [path, message] of [
    ['absent.mjs', /there is no .*absent\.mjs|neither a path|not installed/],
    ['old.mjs', /version 7 of the plugin contract/],
    ['unlucky.mjs', /could not be set up: out of sorts/],
    ['storage.mjs', /Two plugins are called "storage"/],
    ['thief.mjs', /its route GET \/api\/tags belongs to the plugin "api-native"/],
    ['misspelled.mjs', /"need" in the definition is unknown \(did you mean "needs"\?\)/],
    ['mistyped.mjs', /"route" in what "setup" returned .*did you mean "routes".*"reqest" in "on"/],
    ['raw.mjs', /run "npm run build"/]
  ] as const) {
    const { code, stderr } = await corral(['plugin', 'check', `./${path}`], { home })
    t.equal(code, 1, path)
    t.match(stderr, message)
  }
})

t.test('a packed plugin contains its build and works when installed by name', async t => {
  const home = newHome(t)
  t.equal((await corral(['plugin', 'new', 'engine', 'mine'], { home })).code, 0)
  const folder = join(home, 'mine')
  install(folder)
  run(folder, [TSC, '--noCheck'])
  const packed = spawnSync('npm', ['pack', '--json', '--ignore-scripts'], { cwd: folder, encoding: 'utf8' })
  const [{ filename, files }] = JSON.parse(packed.stdout)
  t.same(files.map(({ path }: { path: string }) => path).sort(), ['README.md', 'dist/index.js', 'package.json'])
  // As `npm install` unpacks it, without corral beside it.
  const installed = join(home, 'node_modules', 'corral-plugin-mine')
  mkdirSync(installed, { recursive: true })
  spawnSync('tar', ['-xzf', join(folder, filename), '-C', installed, '--strip-components=1'])
  const checked = await corral(['plugin', 'check', 'corral-plugin-mine'], { home })
  t.equal(checked.code, 0, checked.stderr)
  const server = await startCorral(t, { home, config: 'plugins: [corral-plugin-mine]' })
  const messages = [{ role: 'user', content: 'Hello there' }]
  const answer = await server.json('/v1/chat/completions', { model: 'mine/parrot', messages })
  t.equal(answer.body.choices[0].message.content, 'Hello there')
})

t.test('the plugin guide leads from a new engine to an answer on /v1', async t => {
  const guide = readFileSync(join(packageRoot, 'docs', 'plugins.md'), 'utf8')
  const [first, second] = [...guide.matchAll(/```sh\n(.*?)```/gs)].map(([, text]) => text!.trim().split('\n'))
  t.same(first, ['corral plugin new engine mine', 'cd mine', 'npm install', 'npm test', 'corral plugin check .'])
  const home = newHome(t)
  t.equal((await corral(first![0]!.split(' ').slice(1), { home })).code, 0)
  install(join(home, 'mine'))
  run(join(home, 'mine'), [TSC, '--noCheck'])
  const server = await startCorral(t, { home, config: /```yaml\n(.*?)```/s.exec(guide)![1]! })
  const [, body] = /-d '(.*)'$/.exec(second![1]!)!
  const answer = await server.json('/v1/chat/completions', JSON.parse(body!))
  t.equal(answer.body.choices[0].message.content, 'Hello there')
  const listed = await corral(['plugin', 'list'], { home })
  t.match(listed.stdout, /^mine +active +.*mine\/.*index\.js/m)
})
