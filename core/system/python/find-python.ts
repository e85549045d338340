import { CorralError, type ErrorCode, errorMessage } from '../../errors.ts'
import { findExecutable, runTool, type ToolOptions } from '../child-process.ts'

/** The use of a Python environment, for its errors. */
export interface PythonUse {
  /** As in "The Python environment for conversions could not be made". */
  name: string
  /** As in "Converting SafeTensors models needs Python 3.10 to 3.14". */
  work: string
  /** The section of `config.yaml` with the settings `python` and `package_index`. */
  section: string
  /** For failures without their own code. */
  code: ErrorCode
}

export interface PythonFacts {
  /** Absolute path of the interpreter. */
  executable: string
  version: [major: number, minor: number]
  bits: number
}

/** Python versions for which the packages in corral's lists exist, best first. */
const MINORS = [12, 13, 11, 10, 14]
const OLDEST = Math.min(...MINORS)
const NEWEST = Math.max(...MINORS)
const PYTHON_RANGE = `3.${OLDEST} to 3.${NEWEST}`
/** The version that uv downloads if there is none. */
export const UV_PYTHON_MINOR = MINORS[0]!
export const UV_PYTHON = `3.${UV_PYTHON_MINOR}`

const QUESTION =
  'import json, struct, sys; print(json.dumps({"executable": sys.executable, "version": list(sys.version_info[:2]), "bits": 8 * struct.calcsize("P")}))'
/** Milliseconds in which a Python must report its version. */
const ANSWER_LIMIT = 20_000

/** Explains why the packages cannot be installed for a Python. Undefined if they can. */
export function explainUnsuitablePython({ version: [major, minor], bits }: PythonFacts): string | undefined {
  if (major !== 3 || minor < OLDEST) return `it is ${major}.${minor}, which is too old`
  if (minor > NEWEST) return `it is ${major}.${minor}, which is too new for the packages`
  if (bits < 64) return 'it has 32 bits, and the packages need 64'
  return undefined
}

/** Names of Python programs, the first to try first. */
export function pythonNames(platform: NodeJS.Platform): string[] {
  if (platform === 'win32') return ['python', 'python3', 'py']
  return [...MINORS.map(minor => `python3.${minor}`), 'python3', 'python']
}

/** Finds a Python on this machine for which corral's packages exist. @throws CorralError with what to do */
export async function findPython({
  use,
  ...options
}: { use: PythonUse } & Pick<ToolOptions, 'env' | 'signal' | 'log'>): Promise<PythonFacts> {
  const refused: string[] = []
  for (const name of pythonNames(process.platform)) {
    const path = findExecutable(name, options.env)
    if (path === undefined) continue
    try {
      const asked = { ...options, purpose: 'packages', timeout: ANSWER_LIMIT } as const
      const { stdout } = await runTool(path, ['-I', '-c', QUESTION], asked)
      const facts: PythonFacts = JSON.parse(stdout.at(-1) ?? '')
      const shortcoming = explainUnsuitablePython(facts)
      if (shortcoming === undefined) return facts
      refused.push(`${path}: ${shortcoming}`)
    } catch (error) {
      options.signal?.throwIfAborted()
      // Wrappers such as pyenv's are on PATH for versions that are not installed.
      refused.push(`${path}: ${errorMessage(error)}`)
    }
  }
  const found =
    refused.length > 0
      ? `The installed versions are not suitable (${[...new Set(refused)].join('; ')}).`
      : 'None was found.'
  const { code, work, section } = use
  throw new CorralError(
    code,
    `${work} needs Python ${PYTHON_RANGE}. ${found} Install one (Debian and Ubuntu: "apt install python3 ` +
      `python3-venv"), or uv, which brings its own; or set ${section}.python in config.yaml to a Python that has the packages.`
  )
}
