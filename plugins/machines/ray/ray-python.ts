import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { findExecutable, runTool, ToolError } from '../../../core/system/child-process.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import type { PythonUse } from '../../../core/system/python/find-python.ts'
import { lastLines } from '../../../core/system/python/install-failure.ts'
import {
  executableIn,
  isComplete,
  makePythonEnvironment,
  PYTHON_VARIABLES,
  removeOtherEnvironments
} from '../../../core/system/python/python-packages.ts'

export const RAY_SCRIPT = join(packageRoot, 'plugins', 'machines', 'ray', 'corral_ray.py')
/** Ray and its dependencies with the hashes of all wheels, written by `npm run lock:packages`. */
export const RAY_LOCK = join(packageRoot, 'plugins', 'machines', 'ray', 'packages', 'ray.lock')
const USE: PythonUse = { name: 'Ray', work: 'A cluster on Ray', section: 'cluster-ray', code: 'runtime_missing' }
/** Bytes that the environment needs on disk during its installation. */
const INSTALLED_BYTES = 6e8
const CHECK_SCRIPT =
  'import json, sys, ray; print(json.dumps({"python": sys.version.split()[0], "ray": ray.__version__}))'
/** Prefix of the program's own output, since Ray writes to the same stream. */
const OUTPUT_PREFIX = 'corral-ray: '

export interface RayPythonOptions {
  settings: { python: string; package_index: string }
  directory: string
  env: NodeJS.ProcessEnv
  log: FastifyBaseLogger
}

/** Returns the path of a Python that has Ray: the configured one, or one of corral's own. @throws CorralError */
export async function prepareRay(options: RayPythonOptions, waiting: Waiting): Promise<string> {
  const { settings, directory, env, log } = options
  if (process.platform !== 'linux') {
    throw new CorralError(
      'not_implemented',
      'Clusters on Ray need Linux, because only there Ray runs on several machines.'
    )
  }
  const prove = async (executable: string, signal?: AbortSignal) => {
    const variables = { ...PYTHON_VARIABLES, ...rayVariables({}, undefined) }
    const { stdout } = await runTool(executable, ['-c', CHECK_SCRIPT], { cwd: directory, env, variables, signal, log })
    return JSON.parse(stdout.at(-1) ?? '') as Record<string, string>
  }
  if (settings.python !== '') {
    const executable = findExecutable(settings.python, env)
    if (executable !== undefined) return executable
    throw new CorralError(
      USE.code,
      `cluster-ray.python names ${settings.python}, which is not an executable program. Correct it in config.yaml, or ` +
        'leave it empty, and corral creates its own Python environment.'
    )
  }
  const text = await readFile(RAY_LOCK, 'utf8')
  const environment = join(directory, `ray-${createHash('sha256').update(text).digest('hex').slice(0, 12)}`)
  if (!isComplete(environment)) {
    await makePythonEnvironment(
      {
        use: USE,
        environment,
        packageIndex: settings.package_index,
        env,
        log,
        packages: () => ({ text, size: INSTALLED_BYTES }),
        prove,
        faultOf: ({ tail }) => lastLines(tail) ?? 'They print nothing.'
      },
      waiting
    )
    await removeOtherEnvironments(environment, log)
  }
  return executableIn(environment)
}

/**
 * Returns the variables for Ray's processes and its clients, in addition to those of every program.
 * @param env from which Ray's own settings are taken, such as encryption
 * @param tokenFile file with the cluster's token, if it has one
 */
export function rayVariables(env: NodeJS.ProcessEnv, tokenFile: string | undefined): Record<string, string> {
  const given = Object.entries(env).filter(([name, value]) => name.startsWith('RAY_') && value !== undefined)
  const known = given.filter(([name]) => tokenFile === undefined || !name.startsWith('RAY_AUTH_'))
  return {
    // A Ray node that loses its head ends after a minute, and corral with it. Wait for a day instead.
    RAY_gcs_rpc_server_reconnect_timeout_s: '86400',
    // A Ray node that is believed dead ends too. Gateways notice unreachable nodes by themselves.
    RAY_health_check_period_ms: '1000',
    RAY_health_check_timeout_ms: '5000',
    RAY_health_check_failure_threshold: '4',
    // Ray would end processes that use much memory, and give its processes low priority.
    RAY_memory_monitor_refresh_ms: '0',
    RAY_worker_niceness: '0',
    ...(Object.fromEntries(known) as Record<string, string>),
    RAY_USAGE_STATS_ENABLED: '0',
    RAY_enable_metrics_collection: '0',
    ...(tokenFile === undefined ? {} : { RAY_AUTH_MODE: 'token', RAY_AUTH_TOKEN_PATH: tokenFile })
  }
}

/** Why the program failed. `code` is the program's own, such as `no_head`. */
export class RayFailure extends Error {
  override readonly name = 'RayFailure'
  readonly code: string

  constructor(code: string, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause })
    this.code = code
  }
}

export interface RayCall {
  python: string
  variables: Readonly<Record<string, string>>
  /** An existing folder to run in. */
  cwd: string
  env: NodeJS.ProcessEnv
  log?: FastifyBaseLogger
  signal?: AbortSignal
  /** Milliseconds. */
  timeout?: number
}

/** Runs the program and returns its last report. @throws RayFailure with the reason from the program */
export async function askRay<Reply>(
  command: string,
  options: object,
  { python, variables, ...more }: RayCall,
  onReport?: (report: object) => void
): Promise<Reply> {
  let last: { error?: string; code?: string } | undefined
  try {
    await runTool(python, ['-I', RAY_SCRIPT, command, JSON.stringify(options)], {
      ...more,
      purpose: 'packages',
      variables: { ...PYTHON_VARIABLES, PYTHONDONTWRITEBYTECODE: '1', ...variables },
      onLine(line, stream) {
        if (stream !== 'stdout' || !line.startsWith(OUTPUT_PREFIX)) return
        last = JSON.parse(line.slice(OUTPUT_PREFIX.length))
        onReport?.(last!)
      }
    })
  } catch (error) {
    if (!(error instanceof ToolError)) throw error
    if (last?.error !== undefined) throw new RayFailure(last.code ?? 'failed', last.error, error)
    throw new RayFailure('failed', `${errorMessage(error)} ${lastLines(error.tail) ?? ''}`.trim(), error)
  }
  if (last === undefined) throw new RayFailure('failed', 'Ray reported no result.')
  return last as Reply
}
