import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { BuildDevice } from '../../core/contracts/builds.ts'
import type { MemoryUse } from '../../core/contracts/engines.ts'
import { runTool, ToolError, type ToolLog } from '../../core/system/child-process.ts'
import { parseDeviceLog, parseDevices, whyUnusable } from './device-list.ts'
import { engineEnvironment } from './engine-process.ts'

/*
 * What a build's llama-server reports about itself without a model, and about where it put one.
 */

/** Milliseconds for each query: drivers can be slow to start. */
const QUERY_LIMIT = 60_000

export interface QueryOptions {
  signal?: AbortSignal
  log?: ToolLog
  /** Variables that the build's kind needs on this machine. */
  environment?: Readonly<Record<string, string>>
}

/** Runs llama-server in an engine's environment and returns the lines that it prints. */
async function query(server: string, flag: string, { signal, log, environment }: QueryOptions): Promise<string[]> {
  const configHome = await mkdtemp(join(tmpdir(), 'corral-proof-'))
  try {
    const env = engineEnvironment(process.env, { configHome, apiKey: '', more: environment })
    const output = await runTool(server, [flag], { env, signal, log, timeout: QUERY_LIMIT, cwd: configHome })
    return [...output.stdout, ...output.stderr]
  } catch (error) {
    if (!(error instanceof ToolError)) throw error
    const last = error.tail.findLast(line => line.trim() !== '')
    throw new Error(`${flag}: ${error.message}${last === undefined ? '' : ` ${last.trim()}`}`, { cause: error })
  } finally {
    await rm(configHome, { recursive: true, force: true })
  }
}

/** The version among the lines that `llama-server --version` prints; undefined without one. */
export function parseVersion(lines: readonly string[]): { version: string; commit?: string } | undefined {
  for (const line of lines) {
    // Its logging thread writes to the same place, so one of its lines may stand around the version.
    const version = /(?:^|\s)version:\s*(\S+(?:\s+\([^()]*\))?|\S.*)/.exec(line.trim())?.[1]
    if (version === undefined) continue
    const commit = /\bcommit ([0-9a-f]{7,40})\b/.exec(version)?.[1] ?? /\(([0-9a-f]{7,40})\)$/.exec(version)?.[1]
    return commit === undefined ? { version } : { version, commit }
  }
  return undefined
}

/** The version of a build. @throws Error with the reason if it does not run */
export async function queryVersion(
  server: string,
  options: QueryOptions
): Promise<{ version: string; commit?: string }> {
  const lines = await query(server, '--version', options)
  const version = parseVersion(lines)
  if (version === undefined) throw new Error(`--version: no version in what it printed: ${lines[0] ?? '(nothing)'}`)
  return version
}

/**
 * The GPUs that a build lists and has code for, and in sentences why others are missing.
 * @throws Error with the reason if it does not run
 */
export async function queryDevices(
  server: string,
  options: QueryOptions
): Promise<{ devices: BuildDevice[]; problems: string[] }> {
  const lines = await query(server, '--list-devices', options)
  const listed = parseDevices(lines)
  if (listed === undefined) throw new Error('--list-devices: no list of devices in what it printed')
  const log = parseDeviceLog(lines)
  const problems = log.failure ? [log.failure.message] : []
  const devices = listed.filter(device => {
    const reason = whyUnusable(device, log)
    if (reason !== undefined) problems.push(reason)
    return reason === undefined
  })
  return { devices, problems }
}

/** Makes the log say how many layers are on the GPU, for builds that do not report their memory; see `idleGpu`. */
export const LOG_LAYERS = ['--verbosity', '4']

/**
 * Why an engine of a build for GPUs uses none, by the memory that it reports, else by its log; undefined if it uses one,
 * or does not say. Pure.
 */
export function idleGpu(memory: MemoryUse | undefined, log: readonly string[]): string | undefined {
  if (memory && Object.keys(memory).length > 0) {
    const onDevices = Object.entries(memory).some(([pool, bytes]) => pool !== 'host' && bytes > 0)
    return onDevices ? undefined : 'all of the model is in the memory of the machine, none on a GPU'
  }
  const counted = log.map(line => /\boffloaded (\d+)\/(\d+) layers to GPU/.exec(line)).findLast(match => match !== null)
  return counted?.[1] === '0' ? `0 of ${counted[2]} layers of the model are on a GPU` : undefined
}
