import { createHash, randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, lstat, mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { homedir, hostname } from 'node:os'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from 'typebox'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { runTool, ToolError } from '../../../core/system/child-process.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import type { PythonUse } from '../../../core/system/python/find-python.ts'
import { lastLines } from '../../../core/system/python/install-failure.ts'
import { configuredPython, environmentPython, PYTHON_VARIABLES } from '../../../core/system/python/python-packages.ts'

/** Settings for starting a node. Its machine can override them. */
const MemberSchema = Type.Object({
  port: Type.Integer(),
  /** Its data directory on its machine. By default the one of the user who runs Ray there. */
  home: Type.Optional(Type.String()),
  command: Type.Array(Type.String())
})
export type MemberSettings = Static<typeof MemberSchema>

const RecordSchema = Type.Object({
  version: Type.Literal(1),
  /** Address of Ray's head, such as `10.0.0.5:6379`. */
  address: Type.String(),
  /** Whether corral started the head on this machine. If so, the server of this data directory keeps it alive. */
  own: Type.Boolean(),
  member: Type.Optional(Type.String()),
  members: MemberSchema
})
/** The cluster that `corral cluster up` has started or found. */
export type RayRecord = Static<typeof RecordSchema>

export type RayPlaces = ReturnType<typeof rayPlaces>

/** Maximum length of a socket's path (107) without the part that Ray and a driver append. */
const MAX_TEMP_LENGTH = 36

/** Returns where Ray's files are: which cluster it is, the token that corral made, and Ray's own files (`temp`). */
export function rayPlaces(home: string) {
  const folder = join(home, 'cluster')
  const usual = join(folder, 'ray')
  const digest = createHash('sha256').update(home).digest('hex').slice(0, 10)
  const temp = usual.length <= MAX_TEMP_LENGTH ? usual : `/tmp/corral-ray-${process.getuid?.() ?? 0}-${digest}`
  return { folder, record: join(folder, 'ray.json'), token: join(folder, 'token'), temp }
}

/** Creates the folders. @throws Error if another user has created Ray's */
export async function makePlaces({ folder, temp }: RayPlaces): Promise<void> {
  for (const path of [folder, temp]) await mkdir(path, { recursive: true, mode: 0o700 })
  const found = await lstat(temp)
  if (!found.isDirectory() || found.uid !== process.getuid?.()) {
    throw new Error(`${temp} belongs to another user. Remove it, or choose a data directory with a shorter path.`)
  }
  await chmod(temp, 0o700)
}

export async function readRecord({ record }: RayPlaces): Promise<RayRecord | undefined> {
  const read = await readJsonFile(record, RecordSchema)
  if (read?.fault === undefined) return read?.value
  throw new Error(`${record} cannot be used: ${read.fault}. Delete it and run "corral cluster up" again.`)
}

export async function writeRecord({ record }: RayPlaces, value: RayRecord): Promise<void> {
  await writeJsonFile(record, value, { mode: 0o600, pretty: true })
}

export async function removeRecord({ record }: RayPlaces): Promise<void> {
  await rm(record, { force: true })
}

/** Creates the token of a cluster that corral starts, if it does not exist. */
export async function ensureToken({ token }: RayPlaces): Promise<void> {
  const text = `${randomBytes(32).toString('hex')}\n`
  await writeFile(token, text, { mode: 0o600, flag: 'wx' }).catch(error => {
    if (error.code !== 'EEXIST') throw error
  })
}

/**
 * Returns the file with a cluster's token: the configured file, the file that the environment names, that of a cluster
 * started by corral, or the file in the home directory that Ray itself reads. Undefined if there is none, or if the
 * environment contains the token.
 */
export function findToken(places: RayPlaces, named: string, env: NodeJS.ProcessEnv): string | undefined {
  if (named !== '') return named
  if (env.RAY_AUTH_TOKEN || env.RAY_AUTH_TOKEN_PATH) return env.RAY_AUTH_TOKEN ? undefined : env.RAY_AUTH_TOKEN_PATH
  return [places.token, join(homedir(), '.ray', 'auth_token')].find(path => existsSync(path))
}

export const ownCommand = (): string[] => [process.execPath, join(packageRoot, 'scripts', 'corral.mjs')]

/** Variables that a node inherits from the environment in which Ray was started there. */
const INHERITED_VARIABLES = /^(CORRAL_(MODELS|LLAMA_CPP|LOG_LEVEL|CONFIG)|HF_\w+)$/

/** Returns the variable that tells a machine's supervisor how to start corral there. */
export function memberVariable(home: string, env: NodeJS.ProcessEnv): Record<string, string> {
  const environment = Object.fromEntries(Object.entries(env).filter(([name]) => INHERITED_VARIABLES.test(name)))
  return { CORRAL_CLUSTER_MEMBER: JSON.stringify({ home, command: ownCommand(), environment }) }
}

/** Identifies this gateway to the cluster, also after a restart. */
export const gatewayName = (home: string): string =>
  `${hostname()}-${createHash('sha256').update(home).digest('hex').slice(0, 10)}`

/** Options for the program's `head` command, which starts a head or keeps a running one. */
export function headOptions(places: RayPlaces, { address }: RayRecord): object {
  return { address, temp: places.temp, folder: places.folder, name: hostname() }
}

export function upOptions(places: RayPlaces, { address, members }: RayRecord): object {
  return { address, temp: `${places.temp}-driver`, ...members }
}

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
  if (settings.python !== '') return configuredPython(settings.python, USE, env)
  const text = await readFile(RAY_LOCK, 'utf8')
  const wanted = {
    use: USE,
    environment: join(directory, `ray-${createHash('sha256').update(text).digest('hex').slice(0, 12)}`),
    packageIndex: settings.package_index,
    env,
    log,
    packages: () => ({ text, size: INSTALLED_BYTES }),
    prove,
    faultOf: ({ tail }: ToolError) => lastLines(tail) ?? 'They print nothing.'
  }
  return await environmentPython(wanted, waiting)
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
