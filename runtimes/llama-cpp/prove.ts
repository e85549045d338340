import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Build, BuildCandidate, BuildDevice, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { messageOf } from '../../core/errors.ts'
import { runTool, ToolError, type ToolLog } from '../../core/system/child-process.ts'
import { parseDeviceLog, parseDevices, whyUnusable } from '../llama-server/device-list.ts'
import { engineEnvironment } from '../llama-server/engine-process.ts'
import { isForGpus } from './ranking.ts'

/** Milliseconds that each question may take: drivers can be slow to start. */
const ANSWER_LIMIT = 60_000

/** What `llama-server --version` prints, read; undefined when it is something else. */
export function parseVersion(lines: readonly string[]): { version: string; commit?: string } | undefined {
  for (const line of lines) {
    // Its logging thread writes to the same place, so that a line of it may stand around the version.
    const version = /(?:^|\s)version:\s*(\S+(?:\s+\([^()]*\))?|\S.*)/.exec(line.trim())?.[1]
    if (version === undefined) continue
    const commit = /\bcommit ([0-9a-f]{7,40})\b/.exec(version)?.[1] ?? /\(([0-9a-f]{7,40})\)$/.exec(version)?.[1]
    return commit === undefined ? { version } : { version, commit }
  }
  return undefined
}

/** The hardware that devices of these names stand for; none means the processor. */
export function kindOfDevices(ids: readonly string[]): Build['kind'] {
  const prefixes: [RegExp, Build['kind']][] = [
    [/^CUDA/i, 'cuda'],
    [/^(ROCm|HIP)/i, 'rocm'],
    [/^(MTL|Metal)/i, 'metal'],
    [/^Vulkan/i, 'vulkan'],
    [/^SYCL/i, 'sycl']
  ]
  const kinds = prefixes.filter(([prefix]) => ids.some(id => prefix.test(id)))
  if (kinds.length > 0) return kinds[0]![1]
  return ids.every(id => /^(CPU|BLAS|RPC)/i.test(id)) ? 'cpu' : 'unknown'
}

/** SHA-256 of a file, 64 hex digits. */
export async function fileDigest(path: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const piece of createReadStream(path)) hash.update(piece)
  return hash.digest('hex')
}

export interface AskOptions {
  signal?: AbortSignal
  log?: ToolLog
  /** Variables that its kind of build wants on this machine. */
  environment?: Readonly<Record<string, string>>
}

export interface ProveOptions extends Omit<AskOptions, 'environment'> {
  hardware: Hardware
  /** The kind that it is to serve; absent where its devices are to tell. */
  runtime?: RuntimeDescriptor
}

/** Runs a build's llama-server as an engine would be run, and gives what it prints. */
async function ask(server: string, argument: string, { signal, log, environment }: AskOptions): Promise<string[]> {
  const configHome = await mkdtemp(join(tmpdir(), 'corral-proof-'))
  try {
    const env = engineEnvironment(process.env, { configHome, apiKey: '', more: environment })
    const output = await runTool(server, [argument], { env, signal, log, timeout: ANSWER_LIMIT, cwd: configHome })
    return [...output.stdout, ...output.stderr]
  } catch (error) {
    if (!(error instanceof ToolError)) throw error
    const last = error.tail.findLast(line => line.trim() !== '')
    throw new Error(`${argument}: ${error.message}${last === undefined ? '' : ` ${last.trim()}`}`, { cause: error })
  } finally {
    await rm(configHome, { recursive: true, force: true })
  }
}

/** What the build says its version is. @throws Error with the reason when it does not run. */
export async function askVersion(server: string, options: AskOptions): Promise<{ version: string; commit?: string }> {
  const lines = await ask(server, '--version', options)
  const version = parseVersion(lines)
  if (version === undefined) throw new Error(`--version: no version in what it printed: ${lines[0] ?? '(nothing)'}`)
  return version
}

/**
 * The GPUs that a build lists and has code for, as they are now.
 * @throws Error when it lists none at all, or none that its kind is made for: it would work, silently, on the processor
 */
export async function askDevices(server: string, options: ProveOptions): Promise<BuildDevice[]> {
  const { runtime, hardware } = options
  const environment = runtime?.environment?.(hardware)
  const lines = await ask(server, '--list-devices', { ...options, environment })
  const listed = parseDevices(lines)
  if (listed === undefined) throw new Error('--list-devices: no list of devices in what it printed')
  const said = parseDeviceLog(lines)
  const reasons = said.failure ? [said.failure.message] : []
  const devices = listed.filter(device => {
    const reason = whyUnusable(device, said)
    if (reason !== undefined) reasons.push(reason)
    return reason === undefined
  })
  if (runtime && isForGpus(runtime.kind) && !devices.some(device => runtime.usesDevice(device, hardware.gpus))) {
    const list = devices.map(({ id, description }) => `${id} ${description}`).join(', ')
    throw new Error(
      `it lists no device that a build for ${runtime.title} is made for, and would use the processor alone ` +
        `(--list-devices: ${list || 'none'})${reasons.map(reason => `; ${reason}`).join('')}`
    )
  }
  return devices
}

/**
 * Proves that a build starts and lists the devices that its kind is made for.
 * @throws Error with the reason, such as the loader's complaint about a missing library
 */
export async function prove(candidate: BuildCandidate, options: ProveOptions): Promise<Build> {
  const { server } = candidate.executables
  const { runtime } = options
  try {
    const environment = runtime?.environment?.(options.hardware)
    const version = await askVersion(server, { ...options, environment })
    const devices = await askDevices(server, options)
    const kind = candidate.kind === 'unknown' ? kindOfDevices(devices.map(device => device.id)) : candidate.kind
    const { required: _, ...rest } = candidate
    return {
      ...rest,
      ...version,
      kind: runtime?.kind ?? kind,
      ...(runtime && { runtime: runtime.name }),
      devices,
      digest: await fileDigest(server)
    }
  } catch (error) {
    if (options.signal?.aborted) throw options.signal.reason
    throw new Error(`${server} does not work here: ${messageOf(error)}`, { cause: error })
  }
}
