import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Build, BuildDevice } from '../../core/contracts/builds.ts'
import type { MemoryUse } from '../../core/contracts/engines.ts'
import { runTool, ToolError, type ToolOptions } from '../../core/system/child-process.ts'
import { getOrAdd } from '../../core/system/collections.ts'
import { engineEnvironment } from './engine-process.ts'

/* Reads facts that a build's llama-server reports about itself without a model, and the placement of a model. */

/** Milliseconds for each query. Drivers can be slow to start. */
const QUERY_LIMIT = 60_000
/** Milliseconds for a help text. */
const HELP_LIMIT = 10_000

export interface QueryOptions extends Pick<ToolOptions, 'signal' | 'log' | 'timeout' | 'maxMemory'> {
  /** Variables that the build's kind needs on this machine. */
  environment?: Readonly<Record<string, string>>
}

/** Runs a program of a build in an engine's environment and returns the lines that it prints. */
export async function runForLines(
  program: string,
  args: readonly string[],
  { environment, timeout = QUERY_LIMIT, ...options }: QueryOptions
): Promise<string[]> {
  const configHome = await mkdtemp(join(tmpdir(), 'corral-query-'))
  const lines: Record<'stdout' | 'stderr', string[]> = { stdout: [], stderr: [] }
  try {
    const variables = engineEnvironment(process.env, { configHome, apiKey: '', more: environment })
    // A help text is longer than the output that `runTool` returns.
    const onLine = (line: string, from: 'stdout' | 'stderr') => lines[from].push(line)
    await runTool(program, args, { ...options, variables, timeout, cwd: configHome, onLine })
    return [...lines.stdout, ...lines.stderr]
  } catch (error) {
    if (!(error instanceof ToolError)) throw error
    const last = error.tail.findLast(line => line.trim() !== '')
    throw new Error(`${args[0]}: ${error.message}${last === undefined ? '' : ` ${last.trim()}`}`, { cause: error })
  } finally {
    await rm(configHome, { recursive: true, force: true })
  }
}

export function flagsInHelp(help: readonly string[]): Set<string> {
  const flags = new Set(help.join('\n').match(/(?<![\w-])--[a-z0-9][a-z0-9-]*/g))
  for (const line of help) {
    // Short flags only from before the description, which names flags of other programs: `-c, --ctx-size N size of …`.
    for (const name of /^(?:-{1,2}[\w-]+,?\s+)+/.exec(line)?.[0].match(/-{1,2}[\w-]+/g) ?? []) flags.add(name)
  }
  return flags
}

/** By digest of the build and path of the program. */
const getFlags = new Map<string, Promise<ReadonlySet<string> | undefined>>()

/** Returns the flags in the `--help` of a build's program, read once. Undefined if it does not list them. */
export async function knownFlags({ digest }: Build, program: string, options: QueryOptions) {
  const key = `${digest} ${program}`
  const found = await getOrAdd(getFlags, key, () =>
    runForLines(program, ['--help'], { ...options, timeout: HELP_LIMIT }).then(
      help => {
        const flags = flagsInHelp(help)
        // All builds have this flag. If it is missing, the text is not a help text.
        return flags.has('--model') ? flags : undefined
      },
      // The start that follows fails too, with the reason.
      () => undefined
    )
  )
  if (found === undefined) getFlags.delete(key)
  return found
}

export function parseVersion(lines: readonly string[]): { version: string; commit?: string } | undefined {
  for (const line of lines) {
    // Its logging thread writes to the same stream, so parts of a log line may surround the version.
    const version = /(?:^|\s)version:\s*(\S+(?:\s+\([^()]*\))?|\S.*)/.exec(line.trim())?.[1]
    if (version === undefined) continue
    const commit = /\bcommit ([0-9a-f]{7,40})\b/.exec(version)?.[1] ?? /\(([0-9a-f]{7,40})\)$/.exec(version)?.[1]
    return commit === undefined ? { version } : { version, commit }
  }
  return undefined
}

/** Returns the version of a build. @throws Error with the reason if it does not run */
export async function queryVersion(server: string, options: QueryOptions) {
  const lines = await runForLines(server, ['--version'], options)
  const version = parseVersion(lines)
  if (version === undefined) throw new Error(`--version: no version in its output: ${lines[0] ?? '(nothing)'}`)
  return version
}

/** Returns the GPUs that a build lists, and why others are missing. @throws Error if it does not run */
export async function queryDevices(server: string, options: QueryOptions) {
  const lines = await runForLines(server, ['--list-devices'], options)
  const listed = parseDevices(lines)
  if (listed === undefined) throw new Error('--list-devices: no list of devices in its output')
  const problems = lines.flatMap(line => /\bfailed to initialize \w+: (.+?)\s*$/.exec(line)?.[1] ?? [])
  return { devices: listed, problems }
}

/** Makes the log report how many layers are on the GPU, for builds that do not report their memory, see `idleGpu`. */
export const LOG_LAYERS = ['--verbosity', '4']

/** Returns why an engine does not use a GPU, by its memory or its log. Undefined if it does, or if unknown. Pure. */
export function idleGpu(memory: MemoryUse | undefined, log: readonly string[]): string | undefined {
  if (memory && Object.keys(memory).length > 0) {
    const onDevices = Object.entries(memory).some(([pool, bytes]) => pool !== 'host' && bytes > 0)
    return onDevices ? undefined : "all of the model is in the machine's memory, none on a GPU"
  }
  const counted = log.map(line => /\boffloaded (\d+)\/(\d+) layers to GPU/.exec(line)).findLast(match => match !== null)
  return counted?.[1] === '0' ? `0 of ${counted[2]} layers of the model are on a GPU` : undefined
}

/* Parses `llama-server --list-devices`: the list on standard output, the backends' messages on standard error. */

const MIB = 1024 * 1024
/** Listed beside GPUs, although the processor does their work. */
const NO_GPU_ID = /^(CPU|BLAS)/i
const SOFTWARE_RENDERER = /llvmpipe|lavapipe|softpipe|swiftshader|microsoft basic render/i

/** Converts MiB to bytes. Undefined if it is not a number, or 0, which means unknown. */
function mebibytes(text: string): number | undefined {
  return /^\d{1,9}$/.test(text) && Number(text) > 0 ? Number(text) * MIB : undefined
}

/** Parses a line of a list of devices: their names and sizes. Undefined for other lines. */
export function parseDevice(line: string): BuildDevice | undefined {
  // Names may contain colons and brackets. An id has no blanks, and the last brackets contain the sizes.
  const match = /^\s+(\S+?): (.*) \((\S+) MiB, (\S+) MiB free\)\s*$/.exec(line)
  if (!match) return undefined
  const [, id, description, total, free] = match as unknown as [string, string, string, string, string]
  const totalMemory = mebibytes(total)
  const freeMemory = free === '0' && totalMemory !== undefined ? 0 : mebibytes(free)
  return {
    id,
    description,
    ...(totalMemory !== undefined && { totalMemory }),
    ...(freeMemory !== undefined && { freeMemory })
  }
}

/** Returns the listed GPUs without software renderers, or undefined without a list. They may be unusable. */
export function parseDevices(lines: readonly string[]): BuildDevice[] | undefined {
  const start = lines.findIndex(line => line.trim() === 'Available devices:')
  if (start < 0) return undefined
  return lines.slice(start + 1).flatMap((line): BuildDevice | [] => {
    const device = parseDevice(line)
    return device && !NO_GPU_ID.test(device.id) && !SOFTWARE_RENDERER.test(device.description) ? device : []
  })
}
