/**
 * Installs the Python packages of the thorough tests in `.cache`, unless they are already there.
 *
 * - `conversion-python`: a Python that can run llama.cpp's converter, with its path in `path.json`. On Debian and
 *   Ubuntu, root uses the system's own torch, which is small and has no CUDA. Otherwise, and with `--full`, corral
 *   creates the same environment as for its users.
 * - `ray-python`: Ray, in the same environment as for users, with its path in `path.json` (Linux).
 * - `clients-python`: vendors' clients, the fuzzer, vLLM's router and the requirements of llama.cpp's own tests. Each
 *   set of locked versions has its own environment. `--only SET` installs only that set.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Progress, progressText } from '../core/contracts/progress.ts'
import { errorMessage } from '../core/errors.ts'
import { formatDuration } from '../core/system/duration.ts'
import { packageRoot } from '../core/system/package-info.ts'
import { prepareRay } from '../plugins/machines/ray/ray-cluster.ts'
import { preparePython } from '../plugins/models/conversion/python-environment.ts'
import { cachedRuntimes, log } from './cached-engine.ts'
import { readRequirements } from './converter-requirements.ts'
import { findPython, installPackages, run } from './python-environments.ts'

const conversion = join(packageRoot, '.cache', 'conversion-python')
const pathFile = join(conversion, 'path.json')
const clients = join(packageRoot, '.cache', 'clients-python')
const requirements = join(packageRoot, 'test', 'clients', 'python', 'requirements')
/** Required by thorough tests. `frameworks` and `llama-server` belong to the long trials. */
const SETS = ['vendors', 'litellm', 'mcp', 'schemathesis', ...(process.platform === 'linux' ? ['vllm-router'] : [])]
const SYSTEM_PYTHON = '/usr/bin/python3'

/**
 * Tensor type names that the converter mentions but only a newer torch has. Few models use them. This module exists
 * only in this environment: corral's users get the real torch.
 */
const TORCH_NAMES = `import importlib.abc
import importlib.machinery
import sys

NAMES = ('float8_e4m3fn', 'float8_e5m2', 'uint16', 'uint32', 'uint64')


class Loader(importlib.abc.Loader):
    def __init__(self, real):
        self.real = real

    def create_module(self, spec):
        return self.real.create_module(spec)

    def exec_module(self, module):
        self.real.exec_module(module)
        for name in NAMES:
            if not hasattr(module, name):
                setattr(module, name, name)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != 'torch':
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
`

const canImport = (python: string, module: string) =>
  spawnSync(python, ['-c', `import ${module}`], { stdio: 'ignore' }).status === 0

const runtimes = cachedRuntimes()
const controller = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => controller.abort(new Error(signal)))
const waiting = { signal: controller.signal, onProgress: (progress: Progress) => log.info(progressText(progress)) }

/** Creates a virtual environment with the system's torch and numpy. Returns its Python. */
async function cheapPython(converter: string): Promise<string> {
  if (!existsSync(SYSTEM_PYTHON) || !existsSync('/usr/bin/apt-get')) throw new Error('this is not Debian or Ubuntu')
  if (!canImport(SYSTEM_PYTHON, 'torch') || !canImport(SYSTEM_PYTHON, 'ensurepip')) {
    if (process.getuid?.() !== 0) throw new Error('only root can install packages')
    run('apt-get', ['update', '-qq'])
    run('apt-get', ['install', '-y', '-qq', '--no-install-recommends', 'python3-torch', 'python3-venv'])
  }
  const environment = join(conversion, 'system-torch')
  rmSync(environment, { recursive: true, force: true })
  run(SYSTEM_PYTHON, ['-m', 'venv', '--system-site-packages', environment])
  const python = join(environment, 'bin', 'python')
  // torch and its numpy come from the system, and gguf from the converter.
  const packages = (await readRequirements(converter)).filter(name => !/^(torch|numpy|gguf)\b/.test(name))
  run(python, ['-m', 'pip', 'install', '--quiet', ...packages, 'tqdm', 'pyyaml', 'requests'])
  const lib = join(environment, 'lib')
  const site = join(lib, readdirSync(lib).find(name => name.startsWith('python3'))!, 'site-packages')
  writeFileSync(join(site, 'corral_torch_names.py'), TORCH_NAMES)
  writeFileSync(join(site, 'corral-torch-names.pth'), 'import corral_torch_names\n')
  return python
}

/** Makes sure that there is a Python for the converter. */
async function setUpConversion(): Promise<void> {
  mkdirSync(conversion, { recursive: true })
  const begun = performance.now()
  const { directory: converter, version } = await runtimes.conversionTools(waiting)
  /** Verifies that a Python can run the converter. An empty path creates an environment. */
  const prepare = async (python: string) => {
    const settings = { python, package_index: '', torch_index: 'https://download.pytorch.org/whl/cpu' }
    const options = {
      settings,
      directory: conversion,
      converter,
      env: process.env,
      log,
      checkedPythons: new Set<string>()
    }
    return (await preparePython(options, waiting)).executable
  }
  const earlier = () => prepare((JSON.parse(readFileSync(pathFile, 'utf8')) as { python: string }).python)
  const cheap = async () => await prepare(await cheapPython(converter))
  const full = () => prepare('')
  const ways = process.argv.includes('--full') ? [full] : [...(existsSync(pathFile) ? [earlier] : []), cheap, full]
  for (const [index, way] of ways.entries()) {
    try {
      const python = await way()
      writeFileSync(pathFile, `${JSON.stringify({ python, converter: version }, null, 2)}\n`)
      console.log(`Python for conversions: ${python} (${formatDuration(performance.now() - begun)})`)
      return
    } catch (error) {
      controller.signal.throwIfAborted()
      if (index === ways.length - 1) throw error
      console.log(`${errorMessage(error)} Trying another way.`)
    }
  }
}

async function setUpRay(): Promise<void> {
  if (process.platform !== 'linux') return console.log('Ray: not for this system')
  const directory = join(packageRoot, '.cache', 'ray-python')
  mkdirSync(directory, { recursive: true })
  const begun = performance.now()
  const settings = { python: '', package_index: '' }
  const python = await prepareRay({ settings, directory, env: process.env, log }, waiting)
  writeFileSync(join(directory, 'path.json'), `${JSON.stringify({ python }, null, 2)}\n`)
  console.log(`Ray: ${python} (${formatDuration(performance.now() - begun)})`)
}

/** Creates the environment of a set of clients, unless it is up to date. */
function install(python: string, name: string): void {
  const environment = join(clients, name)
  const file = join(requirements, `${name}.txt`)
  const done = join(environment, 'requirements.txt')
  const wanted = readFileSync(file, 'utf8')
  if (existsSync(done) && readFileSync(done, 'utf8') === wanted) return
  installPackages(python, environment, ['-r', file])
  writeFileSync(done, wanted)
}

function setUpClients(sets: readonly string[]): void {
  mkdirSync(clients, { recursive: true })
  const begun = performance.now()
  const python = findPython()
  for (const name of sets) install(python, name)
  console.log(`Clients in Python: ${clients} (${formatDuration(performance.now() - begun)})`)
}

const onlyAt = process.argv.indexOf('--only')
try {
  const only = onlyAt === -1 ? undefined : process.argv[onlyAt + 1]!
  if (only === undefined) await setUpConversion()
  if (only === undefined || only === 'ray') await setUpRay()
  if (only !== 'ray') setUpClients(only === undefined ? SETS : [only])
} catch (error) {
  console.error(errorMessage(error))
  process.exitCode = 1
} finally {
  await runtimes.stop()
}
