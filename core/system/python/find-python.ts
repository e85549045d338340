import { CorralError, type ErrorCode, errorMessage } from '../../errors.ts'
import { findExecutable, runTool, type ToolLog } from '../child-process.ts'

/** What a Python environment is for, as its errors say it. */
export interface PythonUse {
  /** As in "The Python environment for conversions could not be made". */
  name: string
  /** As in "Converting SafeTensors models needs Python 3.10 to 3.14". */
  work: string
  /** The section of `config.yaml` whose settings `python` and `package_index` count. */
  section: string
  /** Of failures that have no code of their own. */
  code: ErrorCode
}

export interface PythonFacts {
  /** Absolute path of the interpreter itself. */
  executable: string
  version: [major: number, minor: number]
  bits: number
}

/** Versions that the packages exist for which corral lists, the best tried first. */
const MINORS = [12, 13, 11, 10, 14]
const OLDEST = Math.min(...MINORS)
const NEWEST = Math.max(...MINORS)
const PYTHON_RANGE = `3.${OLDEST} to 3.${NEWEST}`
/** The one that uv downloads where there is none. */
export const UV_PYTHON_MINOR = MINORS[0]!
export const UV_PYTHON = `3.${UV_PYTHON_MINOR}`

const QUESTION =
  'import json, struct, sys; print(json.dumps({"executable": sys.executable, "version": list(sys.version_info[:2]), "bits": 8 * struct.calcsize("P")}))'
/** Milliseconds in which a Python must say what it is. */
const ANSWER_LIMIT = 20_000

/** Why a Python cannot have the packages; undefined when it can. Pure. */
export function shortcomingOf({ version: [major, minor], bits }: PythonFacts): string | undefined {
  if (major !== 3 || minor < OLDEST) return `it is ${major}.${minor}, which is too old`
  if (minor > NEWEST) return `it is ${major}.${minor}, which is too new for the packages`
  if (bits < 64) return 'it has 32 bits, and the packages need 64'
  return undefined
}

/** Names under which Pythons are found, in the order they are tried. */
export function pythonNames(platform: NodeJS.Platform): string[] {
  if (platform === 'win32') return ['python', 'python3', 'py']
  return [...MINORS.map(minor => `python3.${minor}`), 'python3', 'python']
}

async function askPython(
  command: string,
  options: { env: NodeJS.ProcessEnv; signal?: AbortSignal; log?: ToolLog }
): Promise<PythonFacts> {
  const { stdout } = await runTool(command, ['-I', '-c', QUESTION], {
    ...options,
    purpose: 'packages',
    timeout: ANSWER_LIMIT
  })
  return JSON.parse(stdout.at(-1) ?? '') as PythonFacts
}

/**
 * A Python of this machine that corral's packages exist for.
 * @throws CorralError saying what was found in its place and what to do
 */
export async function findPython(options: {
  use: PythonUse
  env: NodeJS.ProcessEnv
  signal?: AbortSignal
  log?: ToolLog
}): Promise<PythonFacts> {
  const refused: string[] = []
  for (const name of pythonNames(process.platform)) {
    const path = findExecutable(name, options.env)
    if (path === undefined) continue
    try {
      const facts = await askPython(path, options)
      const shortcoming = shortcomingOf(facts)
      if (shortcoming === undefined) return facts
      refused.push(`${path}: ${shortcoming}`)
    } catch (error) {
      options.signal?.throwIfAborted()
      // Wrappers such as pyenv's are on PATH for versions that are not installed.
      refused.push(`${path}: ${errorMessage(error)}`)
    }
  }
  const found =
    refused.length > 0 ? `What was found is not suitable (${[...new Set(refused)].join('; ')}).` : 'None was found.'
  const { code, work, section } = options.use
  throw new CorralError(
    code,
    `${work} needs Python ${PYTHON_RANGE}. ${found} Install one (Debian and Ubuntu: "apt install python3 ` +
      `python3-venv"), or uv, which brings its own; or name a Python that has the packages as ${section}.python in config.yaml.`
  )
}
