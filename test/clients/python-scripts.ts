import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { judgeAll, runProgram } from './programs.ts'
import { openPlace } from './running.ts'
import type { Language, Outcome } from './trials.ts'

export const PYTHON_SCRIPTS = join(packageRoot, 'test', 'clients', 'python')

const ENVIRONMENTS = join(packageRoot, '.cache', 'clients-python')

/** Compiled modules go to the environments instead of the scripts' folder. */
export const PYTHON_VARIABLES = { PYTHONPYCACHEPREFIX: join(ENVIRONMENTS, 'compiled') }

/** The Python of an environment that `npm run setup:python` creates. */
export const pythonIn = (environment: string) =>
  process.platform === 'win32'
    ? join(ENVIRONMENTS, environment, 'Scripts', 'python.exe')
    : join(ENVIRONMENTS, environment, 'bin', 'python')

/** Scripts whose packages need older versions than the vendors' newest, and their environments. */
const ENVIRONMENT_OF: Record<string, string> = {
  'agents_client.py': 'frameworks',
  'cohere_client.py': 'frameworks',
  'instructor_client.py': 'frameworks',
  'litellm_client.py': 'litellm',
  'llama_index_client.py': 'frameworks'
}

/** The Python with the packages that a script imports. */
export const clientsPython = (script: string) => pythonIn(ENVIRONMENT_OF[script] ?? 'vendors')

/** Whether that environment has the committed versions: the setup leaves a copy of their list in it. */
function isInstalled(environment: string): boolean {
  const installed = join(ENVIRONMENTS, environment, 'requirements.txt')
  const wanted = join(PYTHON_SCRIPTS, 'requirements', `${environment}.txt`)
  return existsSync(installed) && readFileSync(installed, 'utf8') === readFileSync(wanted, 'utf8')
}

/** Scripts of clients: those of vendors and for everyday tests, or those of larger frameworks. */
export function clientScripts(areFrameworks: boolean): string[] {
  return readdirSync(PYTHON_SCRIPTS)
    .filter(name => name.endsWith('_client.py') && (ENVIRONMENT_OF[name] === 'frameworks') === areFrameworks)
    .sort()
}

/** Runs scripts of clients and compares their reports with a section of the committed table. */
export async function tryScripts(t: Test, section: Language, scripts: readonly string[]): Promise<void> {
  const place = await openPlace(t)
  const waiting = [...scripts]
  const results = new Map<string, Outcome[]>()
  // Two at a time: a script spends most of its time importing.
  const runOne = async () => {
    for (let script = waiting.shift(); script !== undefined; script = waiting.shift()) {
      const command = [clientsPython(script), join(PYTHON_SCRIPTS, script)]
      results.set(script, await runProgram(command, place, PYTHON_VARIABLES))
    }
  }
  await Promise.all([runOne(), runOne()])
  judgeAll(
    t,
    section,
    scripts.flatMap(script => results.get(script)!)
  )
}

const missing = ['vendors', 'litellm', 'mcp', 'schemathesis'].filter(name => !isInstalled(name))

/**
 * The program of vLLM's router.
 * @throws in CI if it is not installed
 */
export function vllmRouter(): { program: string; skip: string | false } {
  const program = join(ENVIRONMENTS, 'vllm-router', 'bin', 'vllm-router')
  if (isInstalled('vllm-router')) return { program, skip: false }
  const skip = 'vLLM\'s router is not tested: run "npm run setup:python" first, on Linux.'
  if (process.env.CI && process.platform === 'linux') throw new Error(skip)
  return { program, skip }
}

/** For tests of frameworks, which are skipped if their current versions are not installed. */
export function pythonFrameworks(): { skip: string | false } {
  const setUp = 'node dist/scripts/setup-python.js --only frameworks'
  return { skip: !isInstalled('frameworks') && `FRAMEWORKS IN PYTHON ARE NOT TESTED: run "${setUp}" first.` }
}

/**
 * For tests of Python clients, which are skipped if their current versions are not installed.
 * @throws in CI, where nothing may be skipped
 */
export function realPython(): { skip: string | false } {
  if (missing.length === 0) return { skip: false }
  const skip = `Clients in Python are not tested: ${missing.join(', ')} not installed. Run "npm run setup:python" first.`
  if (process.env.CI) throw new Error(skip)
  return { skip }
}
