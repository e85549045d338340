import { join } from 'node:path'
import type { Build, BuildCandidate, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import type { Delta, Engine } from '../../core/contracts/engines.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../core/models/load-options.ts'
import { abortAfter } from '../../core/system/abort-signals.ts'
import type { ToolLog } from '../../core/system/child-process.ts'
import { fileDigest } from '../../core/system/file-digests.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import type { LaunchSpec } from '../llama-server/launch-spec.ts'
import { idleGpu, LOG_LAYERS, queryDevices, queryVersion } from '../llama-server/server-facts.ts'
import { isForGpus } from './ranking.ts'

export interface VerifyOptions {
  hardware: Hardware
  /** The kind that the build must work as. Any kind if absent. */
  runtime?: RuntimeDescriptor
  /** Whether corral compiled or downloaded the build. Such a build must also answer. */
  own?: boolean
  signal?: AbortSignal
  log?: ToolLog
}

export type VerifyBuild = (candidate: BuildCandidate, options: VerifyOptions) => Promise<Build>

/** Starts an engine with the variables that its kind of build needs on this machine. */
export type StartEngine = (
  build: Build,
  spec: LaunchSpec,
  waiting: Waiting,
  environment?: Readonly<Record<string, string>>
) => Promise<Pick<Engine, 'chat' | 'memory' | 'logTail' | 'stop'>>

/** Returns the GPUs that a build has code for. @throws Error if it would silently use the processor */
export async function usableDevices(server: string, { hardware, runtime, signal, log }: VerifyOptions) {
  const environment = runtime?.environment?.(hardware)
  const { devices, problems } = await queryDevices(server, { signal, log, environment })
  if (runtime && isForGpus(runtime.kind) && !devices.some(device => runtime.usesDevice(device, hardware.gpus))) {
    const list = devices.map(({ id, description }) => `${id} ${description}`).join(', ')
    throw new Error(
      `it lists no device that a build for ${runtime.title} is made for, and would use the processor alone ` +
        `(devices: ${list || 'none'})${problems.map(problem => `; ${problem}`).join('')}`
    )
  }
  return devices
}

/** Verifies that a build starts and lists the devices that its kind is made for. @throws Error with the reason */
export async function verifyBuild(candidate: BuildCandidate, options: VerifyOptions): Promise<Build> {
  const { server } = candidate.executables
  const { runtime, hardware, signal, log } = options
  try {
    const version = await queryVersion(server, { signal, log, environment: runtime?.environment?.(hardware) })
    const devices = await usableDevices(server, options)
    const { required: _, ...rest } = candidate
    const kind = runtime && { kind: runtime.kind, runtime: runtime.name }
    return { ...rest, ...version, ...kind, devices, digest: await fileDigest(server) }
  } catch (error) {
    if (signal?.aborted) throw signal.reason
    throw new Error(`${server} does not work here: ${errorMessage(error)}`, { cause: error })
  }
}

/** Verifies, once for each candidate, that builds start and list devices, and that corral's own builds answer. */
export function createBuildVerifier(startEngine: StartEngine, log: ToolLog): VerifyBuild {
  const verified = new WeakMap<BuildCandidate, Build>()
  return async (candidate, options) => {
    const known = verified.get(candidate)
    if (known) return known
    const build = await verifyBuild(candidate, { ...options, log })
    const warnings = options.own ? await verifyByAnswer(build, startEngine, options) : []
    const result = warnings.length > 0 ? { ...build, warnings } : build
    verified.set(candidate, result)
    return result
  }
}

const DEMO_MODEL = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const ANSWER_LIMIT_MS = 60_000

/** Describes the launch of the demo model in the package, whether or not it is in storage. */
function demoSpec(forGpus: boolean): LaunchSpec {
  const variant: StoredVariant = {
    model: { owner: 'corral', name: 'tiny-chat' } as StoredVariant['model'],
    label: 'F16',
    isDefault: true,
    publicName: 'corral/tiny-chat',
    key: 'corral/tiny-chat:f16',
    revision: 'packaged',
    format: 'gguf',
    directory: join(DEMO_MODEL, '..'),
    files: [],
    size: 0,
    digest: '',
    modifiedAt: new Date(0).toISOString(),
    origin: { kind: 'bundled', from: DEMO_MODEL },
    metadata: { capabilities: ['completion'], info: {} }
  }
  return {
    alias: 'corral/tiny-chat',
    mode: 'chat',
    variant,
    modelPath: DEMO_MODEL,
    // All layers are on the GPU. The room that it has for larger models does not matter here.
    options: { ...DEFAULT_LOAD_OPTIONS, num_ctx: 256, num_parallel: 1, ...(forGpus && { n_gpu_layers: 999 }) },
    settings: { arguments: forGpus ? LOG_LAYERS : [], environment: {}, speculation: { ngram: false }, loras: [] }
  }
}

/** Verifies that a build answers, a GPU build from its GPU. Returns warnings. @throws Error with the reason */
export async function verifyByAnswer(
  build: Build,
  startEngine: StartEngine,
  { runtime, hardware, signal }: VerifyOptions
): Promise<string[]> {
  const forGpus = runtime !== undefined && isForGpus(runtime.kind)
  try {
    const engine = await startEngine(build, demoSpec(forGpus), { signal }, runtime?.environment?.(hardware))
    try {
      const idle = forGpus ? idleGpu(engine.memory, engine.logTail()) : undefined
      if (idle !== undefined) throw new Error(`${idle}, although it is a build for ${runtime!.title}`)
      const limit = AbortSignal.any([abortAfter(ANSWER_LIMIT_MS), ...(signal ? [signal] : [])])
      let content = ''
      const take = (deltas: readonly Delta[]) => {
        for (const delta of deltas) content += delta.content ?? ''
        return undefined
      }
      const messages = [{ role: 'user', content: 'What is the capital of France?' }]
      await engine.chat!({ messages, temperature: 0, max_tokens: 16 }, { signal: limit, take })
      if (!content.includes('Paris')) throw new Error(`a wrong answer: ${JSON.stringify(content.slice(0, 300))}`)
      return []
    } finally {
      await engine.stop()
    }
  } catch (error) {
    if (signal?.aborted) throw signal.reason
    // If other programs fill the GPU, the build may still work.
    if (forGpus && error instanceof CorralError && error.code === 'insufficient_memory') {
      return [`The GPU has no free memory to verify that the build answers with it: ${error.message}`]
    }
    throw new Error(`The demo model did not answer: ${errorMessage(error)}`, { cause: error })
  }
}
