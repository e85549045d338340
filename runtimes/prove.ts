import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runTool, ToolError, type ToolLog } from '../core/child-process.ts'
import { messageOf } from '../core/errors.ts'
import type { Build, BuildCandidate } from '../core/runtimes.ts'
import { parseDevices } from './llama-server/device-list.ts'
import { engineEnvironment } from './llama-server/environment.ts'

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
    [/^Vulkan/i, 'vulkan']
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

export interface ProveOptions {
  signal?: AbortSignal
  log?: ToolLog
}

/** Runs a build's llama-server as an engine would be run, and gives what it prints. */
async function ask(server: string, argument: string, { signal, log }: ProveOptions): Promise<string[]> {
  const configHome = await mkdtemp(join(tmpdir(), 'corral-proof-'))
  try {
    const env = engineEnvironment(process.env, { configHome, apiKey: '' })
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
export async function askVersion(server: string, options: ProveOptions): Promise<{ version: string; commit?: string }> {
  const lines = await ask(server, '--version', options)
  const version = parseVersion(lines)
  if (version === undefined) throw new Error(`--version: no version in what it printed: ${lines[0] ?? '(nothing)'}`)
  return version
}

/**
 * Proves that a build starts and lists its devices.
 * @throws Error with the reason, such as the loader's complaint about a missing library
 */
export async function prove(candidate: BuildCandidate, options: ProveOptions = {}): Promise<Build> {
  const { server } = candidate.executables
  try {
    const version = await askVersion(server, options)
    const devices = parseDevices(await ask(server, '--list-devices', options))
    if (devices === undefined) throw new Error('--list-devices: no list of devices in what it printed')
    const kind = candidate.kind === 'unknown' ? kindOfDevices(devices.map(device => device.id)) : candidate.kind
    const { required: _, ...rest } = candidate
    return { ...rest, ...version, kind, devices, digest: await fileDigest(server) }
  } catch (error) {
    if (options.signal?.aborted) throw options.signal.reason
    throw new Error(`${server} does not work here: ${messageOf(error)}`, { cause: error })
  }
}
