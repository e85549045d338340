import { spawnSync } from 'node:child_process'
import { existsSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'

/** Installs many packages ten times faster than pip. */
const UV = 'uv==0.13.9'
const TOOLS = join(packageRoot, '.cache', 'clients-python', 'tools')

/** Runs a command with its output on the terminal. */
export function run(command: string, args: string[], cwd = packageRoot): void {
  console.log(`$ ${[command, ...args].join(' ')}`)
  const { status, error } = spawnSync(command, args, {
    cwd,
    stdio: 'inherit',
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  })
  if (status !== 0) throw new Error(`${command} failed${error ? `: ${error.message}` : ` with exit code ${status}`}`)
}

/** The path of a command in a virtual environment. */
export const binary = (environment: string, name: string) =>
  process.platform === 'win32' ? join(environment, 'Scripts', `${name}.exe`) : join(environment, 'bin', name)

/** Finds a Python that is new enough and can create environments. */
export function findPython(minor = 11): string {
  const candidates = [process.env.CORRAL_CLIENTS_PYTHON, 'python3', 'python', 'python3.11', 'python3.12', 'python3.13']
  for (const candidate of candidates) {
    if (!candidate) continue
    const code = `import sys, venv, ensurepip; sys.exit(sys.version_info < (3, ${minor}))`
    if (spawnSync(candidate, ['-c', code], { stdio: 'ignore' }).status === 0) return candidate
  }
  throw new Error(
    `No Python 3.${minor} or later has the modules venv and ensurepip (python3-venv on Debian). Install one, or set CORRAL_CLIENTS_PYTHON to its path.`
  )
}

function makeEnvironment(python: string, environment: string): string {
  rmSync(environment, { recursive: true, force: true })
  run(python, ['-m', 'venv', environment])
  return binary(environment, 'python')
}

/** Creates a new virtual environment with packages, which are arguments of `uv pip install`. */
export function installPackages(python: string, environment: string, packages: string[]): void {
  const uv = binary(TOOLS, 'uv')
  if (!existsSync(uv)) run(makeEnvironment(python, TOOLS), ['-m', 'pip', 'install', '--quiet', UV])
  const inside = makeEnvironment(python, environment)
  run(uv, ['pip', 'install', '--quiet', '--python', inside, ...packages])
}
