import { existsSync } from 'node:fs'
import { mkdir, readdir, rm, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { Progress, Waiting } from '../../contracts/progress.ts'
import { CorralError, errorMessage } from '../../errors.ts'
import { findExecutable, runTool, ToolError } from '../child-process.ts'
import { freeSpace, requireSpace } from '../disk-space.ts'
import { writeJsonFile } from '../json-file.ts'
import { findPython, type PythonUse, UV_PYTHON, UV_PYTHON_MINOR } from './find-python.ts'
import { installFailure } from './install-failure.ts'

/** Written when an environment has been verified. An environment without it is created again. */
const MARK = 'complete.json'
const MEASURE_INTERVAL_MS = 1000

/** Variables for Python tools: ignore the user's own packages, and never ask questions. */
export const PYTHON_VARIABLES = {
  NO_COLOR: '1',
  PIP_NO_COLOR: '1',
  PIP_NO_INPUT: '1',
  PYTHONNOUSERSITE: '1',
  PYTHONUTF8: '1',
  PYTHONUNBUFFERED: '1'
}

interface PythonPackages {
  /** A requirements file with the hashes of all wheels. */
  text: string
  /** Bytes on disk while it is made. */
  size: number
  /** Indexes in addition to the usual one. */
  moreIndexes?: readonly string[]
}

interface NewPythonEnvironment {
  use: PythonUse
  /** Its folder, which is emptied first. Its name ends in `-` and a digest of its contents. */
  environment: string
  /** Empty to use the settings of pip and uv. */
  packageIndex: string
  env: NodeJS.ProcessEnv
  log: FastifyBaseLogger
  /** Its contents for Python 3.`minor`. */
  packages(minor: number): PythonPackages | Promise<PythonPackages>
  /** Verifies the environment and returns its packages' versions. @throws ToolError if one is unusable */
  prove(executable: string, signal?: AbortSignal): Promise<Record<string, string>>
  /** Why it cannot be used, as a sentence. */
  faultOf(error: ToolError): string
}

function executableIn(environment: string): string {
  return process.platform === 'win32' ? join(environment, 'Scripts', 'python.exe') : join(environment, 'bin', 'python')
}

/** Whether an environment was completed and has not been found broken since. */
export function isComplete(environment: string): boolean {
  return existsSync(join(environment, MARK)) && existsSync(executableIn(environment))
}

/** Marks an environment as unusable: it is made again at its next use. */
export async function distrust(environment: string): Promise<void> {
  await rm(join(environment, MARK), { force: true })
}

/**
 * Returns the Python of an environment of packages with known hashes, which is created if necessary, with uv if it is
 * installed. Replaces the environments of other versions.
 * @throws CorralError
 */
export async function environmentPython(wanted: NewPythonEnvironment, waiting: Waiting): Promise<string> {
  const { environment, log } = wanted
  if (!isComplete(environment)) {
    await makePythonEnvironment(wanted, waiting)
    await removeOtherEnvironments(environment, log)
  }
  return executableIn(environment)
}

/** Returns the program that a setting `python` names. @throws CorralError */
export function configuredPython(named: string, { section, code }: PythonUse, env: NodeJS.ProcessEnv): string {
  const executable = findExecutable(named, env)
  if (executable !== undefined) return executable
  throw new CorralError(
    code,
    `${section}.python names ${named}, which is not an executable program. Correct it in config.yaml, or leave it ` +
      'empty and corral makes its own Python environment.'
  )
}

async function makePythonEnvironment(wanted: NewPythonEnvironment, { signal, onProgress }: Waiting): Promise<void> {
  const { use, environment, packageIndex, env, log } = wanted
  const directory = dirname(environment)
  const begun = performance.now()
  const shown: Progress = { phase: 'installing', subject: 'Python packages' }
  const show = (more: Partial<Progress>) => onProgress?.({ ...Object.assign(shown, more) })
  show({})
  const uv = findExecutable('uv', env)
  // uv downloads a Python if this machine has no suitable one.
  const python = await findPython({ use, env, signal, log }).catch(error => {
    if (signal?.aborted || !uv) throw error
    return undefined
  })
  const { text, size, moreIndexes = [] } = await wanted.packages(python?.version[1] ?? UV_PYTHON_MINOR)
  await mkdir(directory, { recursive: true })
  await rm(environment, { recursive: true, force: true })
  await requireSpace(directory, size, `The Python environment for ${use.name} needs about`, 'home')
  log.info({ environment, python: python?.executable, uv }, `making the Python environment for ${use.name}`)

  // Neither pip nor uv reports its progress, so it is estimated from the free disk space.
  const free = await freeSpace(directory)
  const measuring = setInterval(async () => {
    const used = free - (await freeSpace(directory).catch(() => free))
    show({ fraction: Math.max(shown.fraction ?? 0, Math.min(0.99, used / size)) })
  }, MEASURE_INTERVAL_MS)
  const temporary = join(environment, 'tmp')
  const run = async (command: string, args: string[]) => {
    try {
      await runTool(command, args, {
        env,
        purpose: 'packages',
        // Packages must be unpacked on the disk whose free space was checked.
        variables: { ...PYTHON_VARIABLES, TMPDIR: temporary, TEMP: temporary, TMP: temporary },
        signal,
        log,
        onLine(line) {
          const isLast = /^Installing collected packages|^Prepared \d+ packages/.test(line)
          const subject = downloadedPackage(line) ?? (isLast ? 'Python packages' : undefined)
          if (subject !== undefined) show({ subject })
        }
      })
    } catch (error) {
      if (!(error instanceof ToolError)) throw error
      const { code, sentence } = installFailure(error.tail, use)
      const what = `The Python environment for ${use.name} could not be made in ${environment}`
      throw new CorralError(code, `${what}: ${errorMessage(error)} ${sentence}`, { cause: error })
    }
  }
  try {
    await mkdir(temporary, { recursive: true })
    const list = join(environment, 'requirements.txt')
    await writeFile(list, text)
    const indexes = [
      ...(packageIndex === '' ? [] : ['--index-url', packageIndex]),
      ...moreIndexes.flatMap(index => ['--extra-index-url', index])
    ]
    const executable = executableIn(environment)
    // Building from source runs code, and uses tools without known hashes.
    const packages = ['-r', list, ...indexes, '--require-hashes']
    if (uv) {
      await run(uv, ['venv', '--allow-existing', '--python', python?.executable ?? UV_PYTHON, environment])
      // Takes the best version of all indexes, as pip does. Otherwise the second index would have priority.
      const strategy = ['--index-strategy', 'unsafe-best-match', '--no-build']
      await run(uv, ['pip', 'install', '--python', executable, ...packages, ...strategy])
    } else {
      await run(python!.executable, ['-I', '-m', 'venv', environment])
      const pip = ['-m', 'pip', 'install', '--no-cache-dir', '--progress-bar', 'off']
      await run(executable, [...pip, ...packages, '--only-binary', ':all:'])
    }
    await rm(temporary, { recursive: true, force: true })
    clearInterval(measuring)
    onProgress?.({ phase: 'proving', subject: 'Python packages' })
    const versions = await wanted.prove(executable, signal).catch(error => {
      if (!(error instanceof ToolError)) throw error
      const message = `The Python packages for ${use.name} were installed but do not work: ${wanted.faultOf(error)}`
      throw new CorralError(use.code, message, { cause: error })
    })
    const seconds = Math.round((performance.now() - begun) / 1000)
    await writeJsonFile(join(environment, MARK), { ...versions, seconds }, { pretty: true })
    log.info({ environment, ...versions, seconds }, `the Python environment for ${use.name} is ready`)
  } catch (error) {
    await rm(environment, { recursive: true, force: true, maxRetries: 3 })
    throw error
  } finally {
    clearInterval(measuring)
  }
}

/** `Downloading torch-2.11.0-cp311-….whl (530.7 MB)` of pip, `Downloading torch (506.1MiB)` of uv. */
export function downloadedPackage(line: string): string | undefined {
  const match = /^\s*Downloading ([A-Za-z0-9_.]+?)(?:-(\d[^-]*)-\S*)? \(([\d.]+ ?[kKMG]i?B)\)/.exec(line)
  return match ? `${match[1]}${match[2] ? ` ${match[2]}` : ''} (${match[3]})` : undefined
}

/** Removes environments of other versions for the same use, which are large. */
async function removeOtherEnvironments(environment: string, log: FastifyBaseLogger): Promise<void> {
  const [directory, name] = [dirname(environment), basename(environment)]
  const prefix = name.slice(0, name.lastIndexOf('-') + 1)
  for (const other of await readdir(directory)) {
    if (other === name || !other.startsWith(prefix) || !/^[0-9a-f]{12}$/.test(other.slice(prefix.length))) continue
    log.info(`removing ${join(directory, other)}, which is no longer needed`)
    await rm(join(directory, other), { recursive: true, force: true, maxRetries: 3 })
  }
}
