import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { appendFileSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import type { Progress } from '../../../../core/contracts/progress.ts'
import { distrust } from '../../../../core/system/python/python-packages.ts'
import { SharedWork } from '../../../../core/system/shared-work.ts'
import {
  type EnvironmentOptions,
  LOCKS,
  lockedFor,
  preparePython
} from '../../../../plugins/models/conversion/python-environment.ts'
import { until } from '../../../support/corral.ts'
import { temporaryFolder } from './support.ts'

// Uses the real venv and pip with a test index. Its only package has all modules that the converter imports. test/long
// uses the real packages.

const MODULES = ['torch', 'numpy', 'transformers', 'sentencepiece', 'google/protobuf', 'yaml', 'tqdm', 'requests']
const PACKAGE = 'corral_test_packages'

const NOWHERE = { url: 'http://127.0.0.1:1/simple', sha256: '0'.repeat(64) }

const python = ['/usr/bin/python3', 'python3'].find(
  name => spawnSync(name, ['-c', 'import venv, ensurepip'], { stdio: 'ignore' }).status === 0
)
const realVenv = { skip: python === undefined ? 'no Python that can make virtual environments is here' : false }

/** Writes a wheel whose modules only have a version. */
function writeWheel(folder: string, modules: string[]): void {
  const info = `${PACKAGE}-1.0.dist-info`
  const files: Record<string, string> = {
    ...Object.fromEntries(modules.map(name => [`${name}/__init__.py`, "__version__ = '1.0'\n"])),
    [`${info}/METADATA`]: `Metadata-Version: 2.1\nName: ${PACKAGE}\nVersion: 1.0\n`,
    [`${info}/WHEEL`]: 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    [`${info}/RECORD`]: ''
  }
  const script =
    'import json, sys, zipfile\nwith zipfile.ZipFile(sys.argv[1], "w") as z:\n  [z.writestr(n, d) for n, d in json.load(sys.stdin).items()]'
  execFileSync(python!, ['-c', script, join(folder, `${PACKAGE}-1.0-py3-none-any.whl`)], {
    input: JSON.stringify(files)
  })
}

interface Index {
  url: string
  /** Serves a package index like PyPI, with a second index under /torch. */
  sha256: string
  torch: string
  paths: string[]
  hang: boolean
}

/** A package index as PyPI's is. Under /torch it has a second one. */
async function serveIndex(t: Test, modules = MODULES): Promise<Index> {
  const folder = temporaryFolder(t)
  writeWheel(folder, modules)
  const wheel = `${PACKAGE}-1.0-py3-none-any.whl`
  const sha256 = createHash('sha256')
    .update(readFileSync(join(folder, wheel)))
    .digest('hex')
  const server = createServer((request, response) => {
    index.paths.push(request.url!)
    if (index.hang) return
    if (request.url!.endsWith('.whl')) response.end(readFileSync(join(folder, wheel)))
    else response.setHeader('content-type', 'text/html')
    if (response.writableEnded) return
    if (request.url!.startsWith('/simple/corral-test-packages/')) response.end(`<a href="/${wheel}">${wheel}</a>`)
    else if (request.url!.startsWith('/whl/torch/')) response.end('<html></html>')
    else response.writeHead(404).end()
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const index: Index = { url: `${url}/simple`, torch: `${url}/whl`, sha256, paths: [], hang: false }
  return index
}

function writeConverter(folder: string, requirements = `${PACKAGE}==1.0\n`): string {
  for (const inner of ['conversion', 'gguf-py/gguf', 'requirements'])
    mkdirSync(join(folder, inner), { recursive: true })
  writeFileSync(join(folder, 'conversion', '__init__.py'), '')
  writeFileSync(join(folder, 'gguf-py', 'gguf', '__init__.py'), '')
  writeFileSync(join(folder, 'requirements', 'requirements-convert_hf_to_gguf.txt'), requirements)
  return folder
}

/** Writes a list of packages to install instead of corral's own. */
function writeLocks(folder: string, packages: string): string {
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, LOCKS.packages), `# for ${PACKAGE}==1.0\n${packages}\n`)
  writeFileSync(join(folder, LOCKS.torch), '')
  const machine = process.arch === 'x64' ? 'x86_64' : 'aarch64'
  const all = [10, 11, 12, 13, 14].map(minor => `# ${lockedFor(machine, minor)}\n`)
  writeFileSync(join(folder, LOCKS.torchCpu), all.join(''))
  return folder
}

function optionsFor(
  t: Test,
  packageIndex: Pick<Index, 'url' | 'sha256'>,
  more: Partial<EnvironmentOptions> = {}
): EnvironmentOptions & { lines: string[] } {
  const lines: string[] = []
  const home = temporaryFolder(t)
  return {
    lines,
    settings: { python: '', package_index: packageIndex.url, torch_index: '' },
    directory: join(home, 'python'),
    converter: writeConverter(join(home, 'converter')),
    locks: writeLocks(join(home, 'locks'), `${PACKAGE}==1.0 --hash=sha256:${packageIndex.sha256}`),
    // Ignore this machine's pip.conf, and fail quickly if a server is missing.
    env: { ...process.env, PIP_CONFIG_FILE: '/dev/null', PIP_FIND_LINKS: '', PIP_RETRIES: '1', PIP_NO_INDEX: '' },
    log: pino({ level: 'debug' }, { write: line => void lines.push(line) }),
    checkedPythons: new Set(),
    ...more
  }
}

/** Writes an executable shell script. */
function script(folder: string, name: string, text: string): string {
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, name), `#!/bin/sh\n${text}\n`, { mode: 0o755 })
  return folder
}

t.test('an environment is made once, and again only if it no longer works', realVenv, async t => {
  const index = await serveIndex(t)
  const options = optionsFor(t, index)
  const steps: Progress[] = []
  const work = new SharedWork<{ executable: string; environment?: string }>()
  const all = await Promise.all(
    [1, 2, 3].map(() =>
      work.run('', { onProgress: step => steps.push(step) }, waiting => preparePython(options, waiting))
    )
  )
  const { executable, environment } = all[0]!
  t.same(all[1], all[0])
  t.equal(index.paths.filter(path => path.endsWith('.whl')).length, 1, 'one installation for all callers')
  t.ok(steps.some(({ phase }) => phase === 'installing') && steps.some(({ phase }) => phase === 'proving'))
  t.match(JSON.parse(readFileSync(join(environment!, 'complete.json'), 'utf8')), { torch: '1.0', python: /^3\./ })
  t.notOk(existsSync(join(environment!, 'tmp')))
  t.equal(execFileSync(executable, ['-c', 'import torch; print(torch.__version__)'], { encoding: 'utf8' }), '1.0\n')

  const made = statSync(join(environment!, 'complete.json')).mtimeMs
  t.same(await preparePython(options, {}), { executable, environment })
  t.equal(statSync(join(environment!, 'complete.json')).mtimeMs, made, 'used unchanged')

  // Another version of corral lists other packages, so the old environment is useless.
  appendFileSync(join(options.locks!, LOCKS.packages), '# another list\n')
  const next = await preparePython(options, {})
  t.not(next.environment, environment)
  t.same(readdirSync(options.directory), [next.environment!.split('/').at(-1)])

  // The environment was killed during its creation, so it has no marker, whatever else exists.
  await distrust(next.environment!)
  writeFileSync(join(next.environment!, 'debris'), '')
  await preparePython(options, {})
  t.notOk(existsSync(join(next.environment!, 'debris')))
})

/** Creates a stand-in for uv that is as quick: it makes a venv without pip and uses this machine's pip. */
function scriptedUv(t: Test): { PATH: string; log: () => string[] } {
  const bin = script(
    join(temporaryFolder(t), 'bin'),
    'uv',
    `echo "$*" >> "$(dirname "$0")/uv.log"
case "$1" in
  venv) for last in "$@"; do :; done; exec '${python}' -m venv --without-pip "$last" ;;
esac
for argument in "$@"; do
  shift
  case "$argument" in --index-strategy|unsafe-best-match|--no-build|pip|install) ;; *) set -- "$@" "$argument" ;; esac
done
exec '${python}' -m pip "$1" "$2" install --progress-bar off "$3" "$4" "$5" "$6" $7 $8 $9`
  )
  return {
    PATH: `${bin}:${process.env.PATH}`,
    log: () => readFileSync(join(bin, 'uv.log'), 'utf8').trim().split('\n')
  }
}

t.test('uv is used if it is installed, and torch comes from its own index if reachable', realVenv, async t => {
  const index = await serveIndex(t)
  const uv = scriptedUv(t)
  const options = optionsFor(t, index)
  options.env = { ...options.env, PATH: uv.PATH }
  options.settings.torch_index = index.torch
  const { executable } = await preparePython(options, {})
  t.ok(existsSync(executable))
  t.match(uv.log(), [
    /^venv --allow-existing --python \S+ \S+$/,
    /^pip install --python \S+ -r \S+ --index-url http\S+ --extra-index-url \S+\/whl --require-hashes/
  ])
  t.ok(index.paths.includes('/whl/torch/'), 'asked first')
  t.ok(index.paths.includes('/whl/corral-test-packages/'), 'then used')

  const without = optionsFor(t, index)
  without.env = options.env
  without.settings.torch_index = 'http://127.0.0.1:1/whl'
  await preparePython(without, {})
  t.notMatch(uv.log().at(-1), /extra-index-url/)
  if (process.platform === 'linux' && process.arch === 'x64') {
    t.match(without.lines.join(''), /http:\/\/127\.0\.0\.1:1\/whl cannot be reached.*3 GB of CUDA/)
  }
})

t.test('a package with an unlisted hash is never installed', realVenv, async t => {
  const index = await serveIndex(t)
  const refused = { code: 'conversion_failed', message: /another SHA-256.*conversion\.package_index/ }
  const wrong = { ...index, sha256: 'a'.repeat(64) }
  const options = optionsFor(t, wrong)
  await t.rejects(preparePython(options, {}), refused)
  t.same(readdirSync(options.directory), [], 'nothing remains')
  const byUv = optionsFor(t, wrong)
  byUv.env = { ...byUv.env, PATH: scriptedUv(t).PATH }
  await t.rejects(preparePython(byUv, {}), refused)
  const unlisted = optionsFor(t, index)
  writeLocks(unlisted.locks!, `${PACKAGE}==1.0`)
  await t.rejects(preparePython(unlisted, {}), { code: 'conversion_failed', message: /hash/i })
})

t.test('index failures are reported', realVenv, async t => {
  const index = await serveIndex(
    t,
    MODULES.filter(name => name !== 'transformers')
  )
  const uv = scriptedUv(t)
  const fails = async (options: EnvironmentOptions, message: RegExp) => {
    options.env = { ...options.env, PATH: uv.PATH }
    await t.rejects(preparePython(options, {}), { code: 'conversion_failed', message })
    t.same(existsSync(options.directory) ? readdirSync(options.directory) : [], [], 'nothing remains')
  }
  await fails(optionsFor(t, index), /installed but do not work.*\(transformers\)/)
  await fails(optionsFor(t, NOWHERE), /index cannot be reached.*conversion\.package_index/)
  const unknown = optionsFor(t, index)
  writeLocks(unknown.locks!, `no-such-package==3.0 --hash=sha256:${index.sha256}`)
  await fails(unknown, /did not return no-such-package==3\.0/)

  index.hang = true
  const controller = new AbortController()
  const options = optionsFor(t, index)
  options.env = { ...options.env, PATH: uv.PATH }
  const asked = index.paths.length
  const waiting = preparePython(options, { signal: controller.signal })
  await until('pip asks the index', () => index.paths.length > asked)
  controller.abort(new Error('called off'))
  await t.rejects(waiting, { message: 'called off' })
  t.same(readdirSync(options.directory), [])
  const pips = () => execFileSync('ps', ['-eo', 'args'], { encoding: 'utf8' }).includes(index.url)
  await until('pip has ended', () => !pips())
})

t.test('unsuitable Pythons are refused with the reason', async t => {
  const bin = join(temporaryFolder(t), 'bin')
  const answer = (version: string) => `echo '{"executable": "${bin}/python3", "version": ${version}, "bits": 64}'`
  const options = () => optionsFor(t, NOWHERE, { env: { PATH: `${bin}:/nowhere` } })
  const fails = (message: RegExp) => t.rejects(preparePython(options(), {}), { code: 'conversion_failed', message })

  await fails(/needs Python 3\.10 to 3\.14\. None was found\. .*apt install python3 python3-venv.*conversion\.python/)
  script(bin, 'python3', answer('[3, 9]'))
  await fails(/python3: it is 3\.9, which is too old/)
  script(bin, 'python3', 'echo "pyenv: python3: command not found" >&2; exit 127')
  await fails(/python3: python3 failed with exit code 127/)

  script(
    bin,
    'python3',
    `case "$*" in
  *venv*) printf '%s\\n' 'The virtual environment was not created successfully because ensurepip is not' 'available.  On Debian/Ubuntu systems, you need to install the python3-venv' '' '    apt install python3.11-venv' ''; exit 1 ;;
  *) ${answer('[3, 11]')} ;;
esac`
  )
  await fails(/could not be made.*Install what it lacks with "apt install python3\.11-venv"/)
  script(
    bin,
    'python3',
    `case "$*" in *venv*) echo "$0: No module named venv" >&2; exit 1 ;; *) ${answer('[3, 11]')} ;; esac`
  )
  await fails(/"apt install python3-venv"/)
})
