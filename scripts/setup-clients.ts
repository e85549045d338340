/**
 * Installs the clients in Python, and the fuzzer, that the tests point at corral: each set of versions as it is
 * committed, in an environment of its own below `.cache/clients-python`. What is there already stays.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { messageOf } from '../core/errors.ts'
import { formatDuration } from '../core/system/duration.ts'
import { packageRoot } from '../core/system/package-info.ts'

const folder = join(packageRoot, '.cache', 'clients-python')
const requirements = join(packageRoot, 'test', 'clients', 'python', 'requirements')
const SETS = ['vendors', 'litellm', 'schemathesis']
/** Installs many packages in a tenth of pip's time; pip takes its place where it cannot. */
const INSTALLER = 'uv==0.13.9'
const OLDEST = [3, 11]

const binary = (environment: string, name: string) =>
  process.platform === 'win32' ? join(environment, 'Scripts', `${name}.exe`) : join(environment, 'bin', name)

function run(command: string, args: string[]): void {
  console.log(`$ ${[command, ...args].join(' ')}`)
  const { status, error } = spawnSync(command, args, { stdio: 'inherit' })
  if (status !== 0) throw new Error(`${command} failed${error ? `: ${error.message}` : ` with exit code ${status}`}`)
}

/** A Python that is new enough for the versions and can make environments. */
function findPython(): string {
  const candidates = [process.env.CORRAL_CLIENTS_PYTHON, 'python3', 'python', 'python3.11', 'python3.12', 'python3.13']
  for (const candidate of candidates) {
    if (!candidate) continue
    const code = `import sys, venv, ensurepip; sys.exit(sys.version_info < (${OLDEST.join()}))`
    if (spawnSync(candidate, ['-c', code], { stdio: 'ignore' }).status === 0) return candidate
  }
  throw new Error(
    `There is no Python ${OLDEST.join('.')} or later with the modules venv and ensurepip (python3-venv on Debian). Install one, or name it by CORRAL_CLIENTS_PYTHON.`
  )
}

function makeEnvironment(python: string, environment: string): void {
  rmSync(environment, { recursive: true, force: true })
  run(python, ['-m', 'venv', environment])
}

/** Where uv is, or nothing where it cannot be installed. */
function installer(python: string): string | undefined {
  const tools = join(folder, 'tools')
  const uv = binary(tools, 'uv')
  if (existsSync(uv)) return uv
  try {
    makeEnvironment(python, tools)
    run(binary(tools, 'python'), ['-m', 'pip', 'install', '--quiet', INSTALLER])
    return uv
  } catch (error) {
    console.log(`uv cannot be installed: ${messageOf(error)}. pip takes longer.`)
    return undefined
  }
}

function install(python: string, name: string): void {
  const environment = join(folder, name)
  const file = join(requirements, `${name}.txt`)
  const done = join(environment, 'requirements.txt')
  const wanted = readFileSync(file, 'utf8')
  if (existsSync(done) && readFileSync(done, 'utf8') === wanted) return
  makeEnvironment(python, environment)
  const inside = binary(environment, 'python')
  const uv = installer(python)
  try {
    if (!uv) throw new Error('there is no uv')
    run(uv, ['pip', 'install', '--quiet', '--python', inside, '-r', file])
  } catch (error) {
    console.log(`${messageOf(error)}; trying pip.`)
    run(inside, ['-m', 'pip', 'install', '--quiet', '-r', file])
  }
  writeFileSync(done, wanted)
}

const begun = performance.now()
try {
  mkdirSync(folder, { recursive: true })
  const python = findPython()
  for (const name of SETS) install(python, name)
  console.log(`Clients in Python: ${folder} (${formatDuration(performance.now() - begun)})`)
} catch (error) {
  console.error(messageOf(error))
  process.exitCode = 1
}
