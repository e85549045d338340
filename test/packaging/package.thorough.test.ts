import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import {
  chmodSync,
  chownSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync
} from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { getBlocks } from '../docs/guides.ts'
import { alive, until } from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { newFolder } from '../support/folder.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'

// Follows docs/install.md as far as possible without Docker and a running systemd. Uses a copy of the checkout with the
// files that Docker's build would see, in a folder with a long name, an empty home, and npm's cache of other tests.

const folder = mkdtempSync(join(tmpdir(), 'corral-packäge of tests '))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const checkout = join(folder, 'a checkout')
const home = join(folder, 'home')
const prefix = join(folder, 'prefix')
const OTHER_NODES = { 18: '18.20.8', 24: '24.21.0' } as const

const blocks = getBlocks('docs/install.md').filter(({ language }) => language === 'sh')
/** The commands of the block with these words. */
function commands(words: string): string {
  const found = blocks.filter(({ text, directive }) => text.includes(words) && directive === undefined)
  if (found.length !== 1) throw new Error(`${found.length} blocks contain "${words}"`)
  return found[0]!.text
}

function environment(more: Record<string, string> = {}): Record<string, string> {
  return {
    PATH: `${join(prefix, 'bin')}:${dirname(process.execPath)}:/usr/local/bin:/usr/bin:/bin`,
    HOME: home,
    CORRAL_HOME: join(folder, 'data'),
    CORRAL_LLAMA_CPP: engineBuildFolder(),
    npm_config_cache: process.env.npm_config_cache ?? join(process.env.HOME ?? home, '.npm'),
    npm_config_registry: spawnSync('npm', ['config', 'get', 'registry'], { encoding: 'utf8' }).stdout.trim(),
    npm_config_prefix: prefix,
    ...(process.env.NODE_EXTRA_CA_CERTS && { NODE_EXTRA_CA_CERTS: process.env.NODE_EXTRA_CA_CERTS }),
    ...more
  }
}

function run(text: string, options: { cwd?: string; env?: Record<string, string> } = {}) {
  return spawnSync('bash', ['-e', '-c', text], {
    cwd: options.cwd ?? checkout,
    env: environment(options.env),
    encoding: 'utf8'
  })
}

/** The same, for commands that use a server in this process. */
async function runBeside(
  text: string,
  env: Record<string, string>
): Promise<{ code: number; stdout: string; stderr: string }> {
  const child = spawn('bash', ['-e', '-c', text], {
    cwd: checkout,
    env: environment(env),
    // "corral run" reads standard input to its end.
    stdio: ['ignore', 'pipe', 'pipe']
  })
  const output = { stdout: '', stderr: '' }
  for (const name of ['stdout', 'stderr'] as const)
    child[name].setEncoding('utf8').on('data', piece => (output[name] += piece))
  const [code] = await once(child, 'close')
  return { code, ...output }
}

/** npm warnings that are not about corral. */
const NOT_OURS = /npm (warn deprecated|warn EBADENGINE|notice)|^npm warn (Unknown|config)/i
const complaints = (stderr: string) =>
  stderr.split('\n').filter(line => /warn|deprecat|error/i.test(line) && !NOT_OURS.test(line))

/** Other Node.js releases from npm, by major version. */
function installNode(major: keyof typeof OTHER_NODES): string {
  const place = join(folder, `node-${major}`)
  mkdirSync(place)
  writeFileSync(join(place, 'package.json'), '{}')
  const name = `node-${process.platform === 'win32' ? 'win' : process.platform}-${process.arch}`
  const { status, stderr } = run(`npm install --no-save --silent ${name}@${OTHER_NODES[major]}`, { cwd: place })
  if (status !== 0) throw new Error(stderr)
  return join(place, 'node_modules', name, 'bin')
}

function bytesBelow(path: string): number {
  return readdirSync(path, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile())
    .reduce((sum, entry) => sum + statSync(join(entry.parentPath, entry.name)).size, 0)
}

const tarball = join(
  checkout,
  `corral-${JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')).version}.tgz`
)

t.before(() => {
  mkdirSync(home)
  // The files of Docker's build: all files of the repository except those in .dockerignore.
  const ignored = readFileSync(join(packageRoot, '.dockerignore'), 'utf8')
    .split('\n')
    .filter(line => /^[^#!]/.test(line))
  for (const name of readdirSync(packageRoot)) {
    if (name.startsWith('.') && name !== '.npmrc') continue
    if (name.endsWith('.tgz') || name.endsWith('.log') || ignored.includes(name)) continue
    cpSync(join(packageRoot, name), join(checkout, name), { recursive: true })
  }
})

// The package and its dependencies are installed several times.
t.setTimeout(900_000)

t.test('a checkout reports what is missing and then starts', async t => {
  const early = run('npm pack')
  t.not(early.status, 0)
  t.match(early.stderr, /The npm packages of this checkout are not installed\. In its folder, run: npm ci/)
  t.notMatch(early.stderr, /at .*\.mjs:/, 'without a stack trace')
  const [install, start] = commands('npm start').trim().split('\n')
  const installed = run(install!)
  t.equal(installed.status, 0, installed.stderr)
  t.same(complaints(installed.stderr), [])
  const server = spawn('bash', ['-c', `umask 077; exec ${start}`], {
    cwd: checkout,
    env: environment({ CORRAL_PORT: '0' }),
    stdio: ['ignore', 'pipe', 'pipe']
  })
  t.teardown(() => server.kill('SIGKILL'))
  let log = ''
  for (const stream of [server.stdout, server.stderr]) stream.setEncoding('utf8').on('data', text => (log += text))
  const address = await until('it listens', () => /listens on (http:[^"\s]+)/.exec(log)?.[1])
  t.equal((await fetch(`${address}/livez`)).status, 200)
  const owner = () => JSON.parse(readFileSync(join(folder, 'data', 'owner.json'), 'utf8')).pid as number
  const pid = owner()
  server.kill('SIGTERM')
  await once(server, 'close')
  await until('npm start ends its server', () => !alive(pid))
})

t.test('the packed file is small and installs a command on the PATH', async t => {
  const { status, stdout, stderr } = run(commands('corral version'))
  t.equal(status, 0, stderr)
  t.same(complaints(stderr), [])
  t.match(stdout, /^corral +0\.1\.0$/m, 'corral version')
  const own = join(prefix, 'lib', 'node_modules', 'corral')
  t.same(readdirSync(join(prefix, 'lib', 'node_modules')), ['corral'], 'no other packages are installed')
  t.notOk(existsSync(join(own, 'node_modules')))
  const built = readdirSync(join(own, 'dist'), { recursive: true, encoding: 'utf8' })
  t.same(
    built.filter(name => name.endsWith('.map')),
    []
  )
  t.same(readdirSync(join(own, 'dist')).sort(), ['bundle', 'plugins', 'types'])
  t.ok(existsSync(join(own, 'docs', 'corral.1')), 'a page of the manual')
  // The file contains everything that is installed, so this is also the size of the download.
  t.ok(statSync(tarball).size < 11_000_000, `${statSync(tarball).size} bytes are packed`)
  t.ok(bytesBelow(own) < 25_000_000, `${bytesBelow(own)} bytes are installed`)
})

t.test('another checkout makes the same file', async t => {
  const other = join(folder, 'another checkout, in a folder with a longer name')
  // In another order, and with other times and permissions.
  const copied = run(
    `mkdir '${other}'
    ls -A | grep -v -x -E 'node_modules|dist|.*[.]tgz' | sort -r | while read -r name; do cp -R "$name" '${other}'; done
    chmod -R go= '${other}'
    find '${other}' -exec touch -h -d 2001-02-03 {} +
    cp -al node_modules '${other}'`
  )
  t.equal(copied.status, 0, copied.stderr)
  writeFileSync(
    join(folder, 'later.mjs'),
    `const Now = Date
    const year = 365 * 24 * 60 * 60 * 1000
    globalThis.Date = class extends Now {
      constructor(...words) {
        super(...(words.length > 0 ? words : [Now.now() + year]))
      }
      static now = () => Now.now() + year
    }`
  )
  const env = {
    NODE_OPTIONS: `--import=${pathToFileURL(join(folder, 'later.mjs'))}`,
    TZ: 'Pacific/Kiritimati',
    LC_ALL: 'tr_TR.UTF-8',
    HOME: join(folder, 'another home')
  }
  const packed = run('umask 077; npm pack', { cwd: other, env })
  t.equal(packed.status, 0, packed.stderr)
  const digest = (path: string) => createHash('sha256').update(readFileSync(path)).digest('hex')
  const [first, second] = [tarball, join(other, basename(tarball))].map(digest)
  t.equal(second, first)
  t.match(packed.stderr, `${first}  ${basename(tarball)}`, 'npm pack prints the digest')
  if (first === second) return
  const list = (path: string) => run(`tar --list --verbose --gzip --file '${path}'`).stdout.split('\n')
  t.same(list(join(other, basename(tarball))), list(tarball), 'the files')
  t.equal(run(`diff -r '${checkout}/SHA256SUMS' '${other}/SHA256SUMS'`).stdout, '', 'their contents')
})

t.test('corral verify finds the files as they were packed', async t => {
  const { status, stdout, stderr } = run(commands('corral verify'))
  t.equal(status, 0, stdout + stderr)
  t.match(stdout, /^corral 0\.1\.0: \d+ files as packed/)
  const file = join(prefix, 'lib', 'node_modules', 'corral', 'dist', 'bundle', 'main.js')
  const before = readFileSync(file)
  writeFileSync(file, `${before}\n`)
  const changed = run('corral verify')
  writeFileSync(file, before)
  t.equal(changed.status, 1)
  t.match(changed.stdout, '! dist/bundle/main.js has the SHA-256')
})

t.test('a bundle contains a corral that installs without a network', async t => {
  const place = mkdtempSync(join(folder, 'bundle '))
  const env = { npm_config_cache: join(place, 'cache'), npm_config_registry: 'http://127.0.0.1:9', CORRAL_HOME: place }
  // test/command-line/bundle.thorough.test.ts includes a build.
  const create = commands('corral bundle create').replace('team.tar', '--runtime none team.tar')
  const early = run(create, { cwd: place, env })
  t.match(early.stderr, /The model corral\/tiny-chat is not stored here/)
  const made = run(`corral list && ${create}`, { cwd: place, env })
  t.equal(made.status, 0, made.stderr)
  const prefix = join(place, 'prefix')
  const elsewhere = { npm_config_prefix: prefix, CORRAL_HOME: join(place, 'data'), npm_config_offline: 'true' }
  const PATH = `${join(prefix, 'bin')}:${environment().PATH}`
  const installed = run(`${commands('corral bundle install')}\ncorral verify\ncorral list`, {
    cwd: place,
    env: { ...env, ...elsewhere, PATH }
  })
  t.equal(installed.status, 0, installed.stderr)
  t.match(installed.stdout, /^corral 0\.1\.0: \d+ files as packed/m)
  t.ok(existsSync(join(prefix, 'bin', 'corral')))
  t.match(run('tar -xOf team.tar LICENSES.md', { cwd: place }).stdout, '## corral/tiny-chat:F16')
})

t.test('the types of the package are complete without other packages', async t => {
  const place = mkdtempSync(join(folder, 'types '))
  mkdirSync(join(place, 'node_modules', '@types'), { recursive: true })
  symlinkSync(join(packageRoot, 'node_modules', '@types', 'node'), join(place, 'node_modules', '@types', 'node'))
  cpSync(join(prefix, 'lib', 'node_modules', 'corral'), join(place, 'node_modules', 'corral'), { recursive: true })
  const compile = (route: string) => {
    writeFileSync(
      join(place, 'mine.ts'),
      `import { definePlugin } from 'corral/plugin'
      import { startTestCorral } from 'corral/testing'
      export default definePlugin({
        name: 'mine',
        api: 1,
        setup: () => ({ routes: async app => void app.get('/mine', async (request, reply) => ${route}) })
      })
      export const started = startTestCorral({})`
    )
    const options =
      '--ignoreConfig --noEmit --strict --skipLibCheck false --target es2023 --module nodenext --types node'
    const compiler = join(packageRoot, 'node_modules', 'typescript', 'bin', 'tsc')
    return run(`node '${compiler}' mine.ts ${options}`, { cwd: place })
  }
  const good = compile(`reply.code(200).send(request.caller.role)`)
  t.equal(good.status, 0, good.stdout)
  t.match(compile('request.colour.length').stdout, /mine\.ts.*'colour'/, 'and not "any"')
})

t.test('tracing without OpenTelemetry explains how to install it', async t => {
  const place = mkdtempSync(join(folder, 'tracing '))
  const config = join(place, 'config.yaml')
  writeFileSync(config, 'tracing: { endpoint: "http://127.0.0.1:9" }\n')
  const env = { CORRAL_HOME: join(place, 'data'), CORRAL_CONFIG: config, CORRAL_PORT: '0' }
  const refused = run('corral serve', { env })
  t.not(refused.status, 0)
  const command = /npm install --global --prefix .*/.exec(refused.stdout + refused.stderr)?.[0]
  t.match(command, /@opentelemetry\/sdk-trace@/, refused.stderr)
  t.equal(run(command!).status, 0)
  const server = spawn(join(prefix, 'bin', 'corral'), ['serve'], {
    env: environment(env),
    stdio: ['ignore', 'pipe', 'inherit']
  })
  t.teardown(() => server.kill('SIGKILL'))
  let log = ''
  server.stdout.setEncoding('utf8').on('data', text => (log += text))
  await until('it listens', () => /listens on (http:[^"\s]+)/.exec(log)?.[1])
})

t.test('an installed package pulls, answers and loads plugins', async t => {
  const demo = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
  const hub = await startHubEmulator(t, {
    repositories: { 'some/tiny': { files: { 'tiny-f16.gguf': { from: demo } } } }
  })
  const place = mkdtempSync(join(folder, 'plugins '))
  writeFileSync(
    join(place, 'mine.mjs'),
    `import { CorralError, definePlugin } from 'corral/plugin'
    const routes = async app => {
      app.get('/mine', async () => {
        throw new CorralError('model_not_found', 'Not mine.')
      })
      app.get('/stack', async () => ({ stack: new CorralError('internal', 'x').stack }))
    }
    export default definePlugin({ name: 'mine', api: 1, setup: () => ({ routes }) })`
  )
  // Tests of plugins use the same classes as the plugins.
  writeFileSync(
    join(place, 'mine.test.mjs'),
    `import { startTestCorral } from 'corral/testing'
    import mine from './mine.mjs'
    const corral = await startTestCorral({ plugins: [mine] })
    const { status, body } = await corral.json('/mine')
    console.log(status, body.code)
    await corral.close()`
  )
  mkdirSync(join(place, 'node_modules'))
  symlinkSync(join(prefix, 'lib', 'node_modules', 'corral'), join(place, 'node_modules', 'corral'))
  const tested = run(`node '${join(place, 'mine.test.mjs')}'`)
  t.equal(tested.stdout, '404 model_not_found\n', tested.stderr)

  const config = join(place, 'config.yaml')
  writeFileSync(config, 'plugins: [./mine.mjs]\n')
  const data = join(place, 'data')
  const env = { CORRAL_HOME: data, CORRAL_CONFIG: config, CORRAL_PORT: '0', HF_ENDPOINT: hub.url }
  const server = spawn(join(prefix, 'bin', 'corral'), ['serve'], {
    env: environment(env),
    stdio: ['ignore', 'pipe', 'pipe']
  })
  t.teardown(() => server.kill('SIGKILL'))
  let log = ''
  for (const stream of [server.stdout, server.stderr]) stream.setEncoding('utf8').on('data', text => (log += text))
  const address = await until('it listens', () => /listens on (http:[^"\s]+)/.exec(log)?.[1])
  const refused = await fetch(`${address}/mine`)
  t.equal(refused.status, 404)
  t.match(await refused.json(), { code: 'model_not_found', error: 'Not mine.' })
  const { stack } = (await (await fetch(`${address}/stack`)).json()) as { stack: string }
  t.match(stack, /mine\.mjs/)
  // Uses the threads that transfer and verify.
  const pulled = await runBeside('corral pull hf:some/tiny --as me/tiny', env)
  t.equal(pulled.code, 0, pulled.stderr)
  const answered = await runBeside('corral run me/tiny "What is the capital of France?"', env)
  t.match(answered.stdout, /Paris/, answered.stderr)
  t.match((await runBeside('corral ps', env)).stdout, /me\/tiny/)
  for (const path of ['/', '/docs', '/docs/swagger-ui-bundle.js', '/openapi.json', '/metrics']) {
    t.equal((await fetch(address + path, { headers: { accept: 'text/html' } })).status, 200, path)
  }
  t.ok(JSON.parse((await runBeside('corral doctor --json', env)).stdout), 'the report of the doctor')
  server.kill('SIGTERM')
  const [code] = await once(server, 'close')
  t.equal(code, 0, log.slice(-2000))
  // Files that corral passes to other programs.
  const own = join(prefix, 'lib', 'node_modules', 'corral', 'plugins')
  for (const path of [
    'machines/ray/corral_ray.py',
    'machines/ray/ray_supervisor.py',
    'machines/ray/packages/ray.lock',
    'models/conversion/packages/packages.lock'
  ]) {
    t.ok(existsSync(join(own, path)), path)
  }
})

t.test('npx runs the packed file on each Node.js version', async t => {
  const line = commands('npx --yes').replace(/\.\/corral-[\d.]+tgz/, './corral-*.tgz')
  for (const bin of [undefined, installNode(24)]) {
    const empty = mkdtempSync(join(folder, 'empty '))
    cpSync(tarball, join(empty, tarball.slice(checkout.length + 1)))
    const env = {
      CORRAL_HOME: join(empty, 'data'),
      HOME: empty,
      PATH: `${bin === undefined ? '' : `${bin}:`}${dirname(process.execPath)}:/usr/bin:/bin`
    }
    const { status, stdout, stderr } = run(line, { cwd: empty, env })
    t.equal(status, 0, stderr)
    t.match(stdout, /^Hi\b/)
    t.same(complaints(stderr), [], bin ?? process.version)
    const service = run(line.replace(/ run .*/, ' service install --user --dry-run'), { cwd: empty, env })
    t.equal(service.status, 1)
    t.match(service.stderr, /cannot run from npx's cache/)
  }
})

t.test('an outdated Node.js gets a clear message', async t => {
  const bin = installNode(18)
  for (const script of ['corral', 'start']) {
    const { status, stderr } = run(`'${bin}/node' scripts/${script}.mjs list`)
    t.equal(status, 1)
    t.match(stderr, /needs Node\.js 20\.19 or later, but this is v18\.20\.8/)
    t.notMatch(stderr, /at .*\.mjs:/, 'without a stack trace')
  }
})

t.test('the service is installed, shown and removed, followed by the package', async t => {
  const programs = mkdtempSync(join(folder, 'programs '))
  writeFileSync(
    join(programs, 'systemctl'),
    '#!/bin/sh\ncase "$*" in *UnitFileState*) printf "ActiveState=active\\nSubState=running\\n";; esac\n'
  )
  chmodSync(join(programs, 'systemctl'), 0o755)
  const env = {
    PATH: `${programs}:${environment().PATH}`,
    XDG_CONFIG_HOME: join(folder, 'config'),
    DBUS_SESSION_BUS_ADDRESS: ''
  }
  // As a user, because root's service would be that of the machine.
  const asUser = (text: string) => text.replaceAll(/^corral service \w+/gm, '$& --user')
  const installed = run(asUser(commands('corral service install\n')), { env })
  t.equal(installed.status, 0, installed.stderr)
  const unit = readFileSync(join(folder, 'config', 'systemd', 'user', 'corral.service'), 'utf8')
  t.match(unit, `"${prefix}`, 'it starts what was installed')
  const removed = run(asUser(commands('corral service uninstall')), { env })
  t.equal(removed.status, 0, removed.stderr)
  t.same(readdirSync(join(folder, 'config', 'systemd', 'user')), [])
  t.notOk(existsSync(join(prefix, 'bin', 'corral')))
  t.ok(existsSync(join(folder, 'data', 'models')), 'models stay')
})

t.test('a release gets its address and digest', async t => {
  const { status, stderr } = run(commands('npm run package:metadata'))
  t.equal(status, 0, stderr)
  const manifest = JSON.parse(readFileSync(join(checkout, 'package.json'), 'utf8'))
  t.equal(manifest.bugs.url, 'https://git.example.org/owner/corral/issues')
  const [digest] = spawnSync('sha256sum', [tarball], { encoding: 'utf8' }).stdout.split(' ')
  const formula = readFileSync(join(checkout, 'packaging', 'homebrew', 'corral.rb'), 'utf8')
  t.match(formula, `sha256 "${digest}"`)
  t.match(formula, 'url "https://git.example.org/owner/corral/releases/download/v')
})

t.test('the image runs as process 1 without root and reaps all processes', async t => {
  const isThere = (program: string, ...args: string[]) => spawnSync(program, args).status === 0
  if (
    process.getuid!() !== 0 ||
    !isThere('unshare', '--pid', '--fork', '--mount-proc', 'true') ||
    !isThere('tini', '--version')
  )
    return t.comment('skipped: this needs root, unshare and tini')
  const dockerfile = readFileSync(join(packageRoot, 'Dockerfile'), 'utf8')
  const words = (name: string): string[] => JSON.parse(new RegExp(`^${name} (\\[.*\\])$`, 'm').exec(dockerfile)![1]!)
  const [uid, gid] = /^USER (\d+):(\d+)$/m.exec(dockerfile)!.slice(1).map(Number) as [number, number]
  // Instead of the image's folders: files that another user may read.
  const image = newFolder(t)
  chmodSync(image, 0o755)
  const packed = run(`umask 022; npm install --global --prefix '${image}/opt/corral' '${tarball}'`)
  t.equal(packed.status, 0, packed.stderr)
  cpSync(join(packageRoot, 'packaging', 'docker', 'healthcheck.mjs'), join(image, 'opt/corral/healthcheck.mjs'))
  cpSync(engineBuildFolder(), join(image, 'llama.cpp'), { recursive: true, dereference: true })
  const data = join(image, 'data')
  mkdirSync(data)
  chownSync(data, uid, gid)
  mkdirSync(join(image, 'bin'))
  symlinkSync(process.execPath, join(image, 'bin', 'node'))
  const env = [
    `PATH=${image}/bin:${image}/opt/corral/bin:/usr/bin:/bin`,
    `CORRAL_HOME=${data}`,
    `HOME=${data}`,
    `CORRAL_LLAMA_CPP=${image}/llama.cpp`,
    'CORRAL_PORT=0'
  ]
  const asUser = ['setpriv', `--reuid=${uid}`, `--regid=${gid}`, '--clear-groups', 'env', '-i', ...env]
  const inside = (command: string[]) => command.map(word => word.replace('/opt/corral', `${image}/opt/corral`))
  const container = spawn(
    'unshare',
    ['--pid', '--fork', '--kill-child', '--mount-proc', ...asUser, ...words('ENTRYPOINT'), ...words('CMD')],
    { cwd: data, stdio: ['ignore', 'pipe', 'pipe'] }
  )
  t.teardown(() => container.kill('SIGKILL'))
  let log = ''
  for (const stream of [container.stdout, container.stderr])
    stream.setEncoding('utf8').on('data', text => (log += text))
  const address = await until('it listens', () => /listens on (http:[^"\s]+)/.exec(log)?.[1]).catch(error => {
    throw new Error(`${error.message}\n${log}`)
  })
  const check = () =>
    spawnSync(asUser[0]!, [...asUser.slice(1), ...inside(words('HEALTHCHECK .* CMD'))], { encoding: 'utf8' })
  const healthy = await until('the health check passes', () => check().status === 0)
  t.ok(healthy)
  const answer = await fetch(`${address}/api/chat`, {
    method: 'POST',
    body: JSON.stringify({
      model: 'corral/tiny-chat',
      messages: [{ role: 'user', content: 'What is the capital of France?' }],
      stream: false
    })
  })
  t.match(await answer.json(), { message: { content: /Paris/ } })
  // Process 1, seen from the host, is the child of unshare.
  const below = (pid: number) =>
    readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean).map(Number)
  const [init] = below(container.pid!)
  const states = [init!, ...below(init!)].map(pid => readFileSync(`/proc/${pid}/stat`, 'utf8'))
  t.match(states[0], /\(tini\)/)
  t.notOk(
    states.some(state => / Z /.test(state)),
    'no zombie remains'
  )
  process.kill(init!, 'SIGTERM')
  const [code] = await once(container, 'close')
  t.equal(code, 0, log.slice(-2000))
  t.not(check().status, 0, 'the health check notices that it has gone')
})
