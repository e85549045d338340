import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from 'typebox'
import { Program } from '../../../core/config/core-schema.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, type ErrorCode, errorMessage } from '../../../core/errors.ts'
import { abortAfter } from '../../../core/system/abort-signals.ts'
import { runTool, ToolError } from '../../../core/system/child-process.ts'
import { openConnections } from '../../../core/system/connections.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import type { PythonUse } from '../../../core/system/python/find-python.ts'
import { DISK_FULL, type FailureRule, lastLines, toSentence } from '../../../core/system/python/install-failure.ts'
import {
  configuredPython,
  environmentPython,
  isComplete,
  PYTHON_VARIABLES
} from '../../../core/system/python/python-packages.ts'
import FAILURES from './failures.json' with { type: 'json' }

export const PythonOptions = Type.Object(
  {
    python: Program({
      default: '',
      description: "Python that has the converter's packages; if empty, corral makes its own environment"
    }),
    package_index: Type.String({
      default: '',
      pattern: '^(https?://\\S+)?$',
      title: 'an address such as https://pypi.org/simple',
      description: 'Package index to install from; if empty, the settings of pip and uv apply'
    }),
    torch_index: Type.String({
      default: 'https://download.pytorch.org/whl/cpu',
      pattern: '^(https?://\\S+)?$',
      title: 'an address such as https://pypi.org/simple',
      description: 'Index with CPU builds of torch, used if it can be reached; empty means none'
    })
  },
  { additionalProperties: false, restart: true, needsTrust: true }
)

export interface EnvironmentOptions {
  settings: Static<typeof PythonOptions>
  directory: string
  converter: string
  env: NodeJS.ProcessEnv
  log: FastifyBaseLogger
  /** Folder of the locked packages. By default corral's own. */
  locks?: string
  /** Configured Pythons that passed the check, so that it is not repeated for each conversion. */
  checkedPythons: Set<string>
}

export interface ConverterPython {
  executable: string
  environment?: string
}

const USE: PythonUse = {
  name: 'conversions',
  work: 'Converting SafeTensors models',
  section: 'conversion',
  code: 'conversion_failed'
}
/** Disk size of a new environment: with CPU-only torch, or with torch's CUDA libraries. */
const SIZE = { cpu: 2.5e9, cuda: 9e9 }

const IMPORT_CHECK = `
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + '/gguf-py']
import torch, numpy, transformers, sentencepiece, google.protobuf, yaml, tqdm, requests, gguf, conversion
names = {'torch': torch, 'numpy': numpy, 'transformers': transformers, 'sentencepiece': sentencepiece}
print(json.dumps({'python': sys.version.split()[0], **{name: str(module.__version__) for name, module in names.items()}}))
`

async function checkPython(executable: string, { converter, env, log }: EnvironmentOptions, signal?: AbortSignal) {
  const variables = { ...PYTHON_VARIABLES, PYTHONDONTWRITEBYTECODE: '1', HF_HUB_OFFLINE: '1' }
  const { stdout } = await runTool(executable, ['-c', IMPORT_CHECK, converter], { env, variables, signal, log })
  return JSON.parse(stdout.at(-1) ?? '') as Record<string, string>
}

/**
 * Returns the Python for a converter: the configured one, otherwise corral's own environment with the locked packages,
 * created if necessary.
 * @throws CorralError `conversion_failed` or `insufficient_storage` naming the obstacle and what to do
 */
export async function preparePython(options: EnvironmentOptions, waiting: Waiting): Promise<ConverterPython> {
  const named = options.settings.python
  if (named !== '') return await namedPython(named, options, waiting)
  const { settings, env, log, locks = LOCK_FOLDER } = options
  const environment = join(options.directory, await environmentName(locks))
  const wanted = {
    use: USE,
    environment,
    packageIndex: settings.package_index,
    env,
    log,
    async packages(minor: number) {
      const { torch_index: torchIndex } = settings
      const isListed = await hasCpuTorch(locks, minor)
      const hasTorch = isListed && torchIndex !== '' && (await indexHas(torchIndex, 'torch', waiting.signal))
      const cuda = !hasTorch && process.platform === 'linux'
      if (cuda) {
        const why = isListed
          ? `${torchIndex || 'An index with CPU builds of torch'} cannot be reached`
          : `No CPU build of torch is listed for Python 3.${minor}`
        log.warn(
          `${why}: torch comes from the package index, with about 3 GB of CUDA libraries that conversions do not need`
        )
      }
      const text = await readLock(locks, hasTorch)
      return { text, size: cuda ? SIZE.cuda : SIZE.cpu, moreIndexes: hasTorch ? [torchIndex] : [] }
    },
    prove: (executable: string, signal?: AbortSignal) => checkPython(executable, options, signal),
    faultOf: (error: ToolError) => classifyFailure(error).sentence
  }
  return { executable: await environmentPython(wanted, waiting), environment }
}

/** Returns roughly how many bytes of Python packages must be installed first, or undefined if none. */
export async function missingPackages({
  settings,
  directory,
  locks = LOCK_FOLDER
}: Pick<EnvironmentOptions, 'settings' | 'directory' | 'locks'>): Promise<number | undefined> {
  if (settings.python !== '' || isComplete(join(directory, await environmentName(locks)))) return undefined
  return process.platform === 'linux' && settings.torch_index === '' ? SIZE.cuda : SIZE.cpu
}

async function namedPython(named: string, options: EnvironmentOptions, { signal }: Waiting): Promise<ConverterPython> {
  const executable = configuredPython(named, USE, options.env)
  const proof = `${executable} ${options.converter}`
  if (options.checkedPythons.has(proof)) return { executable }
  try {
    const versions = await checkPython(executable, options, signal)
    options.checkedPythons.add(proof)
    options.log.debug({ executable, ...versions }, 'the Python for conversions')
    return { executable }
  } catch (error) {
    if (!(error instanceof ToolError)) throw error
    const { cause, sentence } = classifyFailure(error)
    const why = cause === 'unknown' ? `${errorMessage(error)} ${sentence}` : sentence
    throw new CorralError(
      'conversion_failed',
      `conversion.python names ${executable}, which cannot run llama.cpp's converter. ${why} Install ` +
        `${join(options.converter, REQUIREMENTS)} there, ` +
        'or leave conversion.python empty and corral makes its own environment.',
      { cause: error }
    )
  }
}

const INDEX_TIMEOUT_MS = 5000

/** Returns whether a package index (PyPI's simple layout) is reachable and has a package. */
async function indexHas(index: string, name: string, signal?: AbortSignal): Promise<boolean> {
  const { request } = await import('undici')
  const url = new URL(`${index.replace(/\/+$/, '')}/${name}/`)
  const timeout = INDEX_TIMEOUT_MS
  const connections = await openConnections(undefined, {
    connect: { timeout },
    headersTimeout: timeout,
    bodyTimeout: timeout
  })
  const limit = abortAfter(INDEX_TIMEOUT_MS)
  try {
    const { statusCode, body } = await request(url, {
      dispatcher: connections.to(url),
      method: 'HEAD',
      signal: signal ? AbortSignal.any([limit, signal]) : limit
    })
    await body.dump()
    return statusCode < 400
  } catch {
    // Any failure means the packages come from the usual index.
    signal?.throwIfAborted()
    return false
  } finally {
    await connections.close()
  }
}

/** A converter's own list of packages, with the versions tested with this llama.cpp. */
export const REQUIREMENTS = join('requirements', 'requirements-convert_hf_to_gguf.txt')

/** The list of packages with the SHA-256 of each wheel. `scripts/lock-packages.ts` writes it. */
export const LOCK_FOLDER = join(packageRoot, 'plugins', 'models', 'conversion', 'packages')

export const LOCKS = {
  packages: 'packages.lock',
  /** With CUDA's libraries on Linux, CPU-only elsewhere. */
  torch: 'torch.lock',
  torchCpu: 'torch-cpu.lock'
}

/** The environment marker of a CPU-only torch wheel. */
export const lockedFor = (machine: string, pythonMinor: number): string =>
  `sys_platform == 'linux' and platform_machine == '${machine}' and python_version == '3.${pythonMinor}'`

/** @param cpuOnly prefer torch without CUDA's libraries */
async function readLock(folder: string, cpuOnly: boolean): Promise<string> {
  const names = [LOCKS.packages, cpuOnly ? LOCKS.torchCpu : LOCKS.torch]
  return (await Promise.all(names.map(name => readFile(join(folder, name), 'utf8')))).join('\n')
}

/** Returns whether there is a CPU-only torch for this machine's Python. Only Linux has two kinds of torch. */
async function hasCpuTorch(folder: string, pythonMinor: number): Promise<boolean> {
  if (process.platform !== 'linux') return false
  const machine = process.arch === 'x64' ? 'x86_64' : 'aarch64'
  return (await readFile(join(folder, LOCKS.torchCpu), 'utf8')).includes(lockedFor(machine, pythonMinor))
}

/** Returns the environment's name, which changes with the locked packages. */
export async function environmentName(folder: string): Promise<string> {
  const digest = createHash('sha256')
  for (const name of Object.values(LOCKS)) digest.update(await readFile(join(folder, name)))
  return `converter-${digest.digest('hex').slice(0, 12)}`
}

export interface FailureCause {
  /** Such as `unsupported-architecture`: one in failures.json, or `disk-full`, `out-of-memory`, `unknown`. */
  cause: string
  code: ErrorCode
  sentence: string
}

interface Rule extends FailureRule {
  cause: string
  /** Match the code lines of a Python traceback, if the message itself is not specific enough. */
  inCode?: true
}

const STOP_OTHERS = 'Stop loaded models or other programs, or import a GGUF that was made elsewhere.'

/** Failures of the converter and of llama-quantize. The first match wins, so specific rules come first. */
const CONVERSION_RULES: Rule[] = [
  {
    cause: 'disk-full',
    code: 'insufficient_storage',
    pattern: `${DISK_FULL}|\\d+ requested and \\d+ written|iostream error`,
    sentence: 'The disk is full. Remove models that are not needed, then try again.'
  },
  ...(FAILURES as Rule[])
]

export function classifyFailure({ tail: lines, exitSignal }: Pick<ToolError, 'tail' | 'exitSignal'>): FailureCause {
  // The converter prints warnings that do not matter before the actual failure.
  const start = lines.findIndex(line => line.startsWith('Traceback'))
  const relevant = start === -1 ? lines.filter(line => !line.startsWith('WARNING:')) : lines.slice(start)
  for (const rule of CONVERSION_RULES) {
    const { cause, code = 'conversion_failed', inCode = false } = rule
    for (const line of relevant.filter(line => line.startsWith('  ') === inCode)) {
      const sentence = toSentence(rule, line)
      if (sentence !== undefined) return { cause, code, sentence }
    }
  }
  const code = 'conversion_failed'
  if (exitSignal === 'SIGKILL') {
    const sentence = `It was killed, most likely because this machine does not have enough memory. ${STOP_OTHERS}`
    return { cause: 'out-of-memory', code, sentence }
  }
  const output = lines.filter(line => !/^\s*(Writing|File ")|^[\s^~]+$/.test(line))
  return { cause: 'unknown', code, sentence: lastLines(output) ?? 'It printed nothing.' }
}
