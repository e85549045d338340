import { join } from 'node:path'
import type { EngineSettings } from '../../core/config/model-settings.ts'
import type { Build, BuildCandidate, MemoryUse } from '../../core/contracts/builds.ts'
import type { Delta, Engine } from '../../core/contracts/engines.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../core/models/options.ts'
import type { ToolLog } from '../../core/system/child-process.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import type { LaunchSpec } from '../llama-server/launch-spec.ts'
import { type ProveOptions, prove } from './prove.ts'
import { isForGpus } from './ranking.ts'

/** Starts an engine; `environment` is what its kind of build wants on this machine. */
export type StartEngine = (
  build: Build,
  spec: LaunchSpec,
  waiting: Waiting,
  environment?: Readonly<Record<string, string>>
) => Promise<Pick<Engine, 'chat' | 'memory' | 'logTail' | 'stop'>>

const DEMO_MODEL = join(packageRoot, 'plugins', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const ALL_LAYERS = 999
/** Milliseconds for one short answer of the demo model. */
const ANSWER_LIMIT = 60_000

/** The demo model as it lies in the package, whether or not it is in storage. */
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
  // All of its layers outright: how much of a larger model a GPU has room for is not the question here.
  const options = {
    ...DEFAULT_LOAD_OPTIONS,
    num_ctx: 256,
    num_parallel: 1,
    ...(forGpus && { n_gpu_layers: ALL_LAYERS })
  }
  const settings: EngineSettings = {
    // Where builds do not report their memory, a line of this level tells how many layers are on the GPU.
    arguments: forGpus ? ['--verbosity', '4'] : [],
    environment: {},
    speculation: { ngram: false },
    loras: []
  }
  return { alias: 'corral/tiny-chat', mode: 'chat', variant, modelPath: DEMO_MODEL, options, settings }
}

export interface ProofOptions extends ProveOptions {
  signal: AbortSignal
  /** Whether corral made or downloaded it: what somebody else made and uses need not answer a question. */
  own: boolean
}

/** Proves a candidate. @throws Error with the reason when it does not work here */
export type Prove = (candidate: BuildCandidate, options: ProofOptions) => Promise<Build>

/**
 * Proves that builds start and list their devices, and that corral's own ones answer with them. The same candidate is
 * proven once.
 */
export function createProof(startEngine: StartEngine, log: ToolLog): Prove {
  const proven = new WeakMap<BuildCandidate, Build>()
  return async (candidate, options) => {
    const known = proven.get(candidate)
    if (known) return known
    let build = await prove(candidate, { ...options, log })
    if (options.own) {
      const warnings = await proveByAnswer(build, startEngine, options)
      if (warnings.length > 0) build = { ...build, warnings }
    }
    proven.set(candidate, build)
    return build
  }
}

/**
 * Why an engine of a build for GPUs did not use one, by its own account of its memory, else by its log; undefined when
 * it did, or does not tell. Pure.
 */
export function idleGpu(memory: MemoryUse | undefined, log: readonly string[]): string | undefined {
  if (memory && Object.keys(memory).length > 0) {
    const onDevices = Object.entries(memory).some(([pool, bytes]) => pool !== 'host' && bytes > 0)
    return onDevices ? undefined : 'all of the model lies in the memory of the machine, none on a GPU'
  }
  const counted = log.map(line => /\boffloaded (\d+)\/(\d+) layers to GPU/.exec(line)).findLast(match => match !== null)
  return counted?.[1] === '0' ? `0 of ${counted[2]} layers of the model were put on a GPU` : undefined
}

/**
 * Proves that a build answers: loads the demo model and asks it something; on a build for GPUs all of it must lie there.
 * Returns warnings.
 * @throws Error with the reason
 */
export async function proveByAnswer(
  build: Build,
  startEngine: StartEngine,
  { runtime, hardware, signal }: Omit<ProveOptions, 'log'>
): Promise<string[]> {
  const forGpus = runtime !== undefined && isForGpus(runtime.kind)
  try {
    const engine = await startEngine(build, demoSpec(forGpus), { signal }, runtime?.environment?.(hardware))
    try {
      const idle = forGpus ? idleGpu(engine.memory, engine.logTail()) : undefined
      if (idle !== undefined) throw new Error(`${idle}, although it is a build for ${runtime!.title}`)
      const limit = AbortSignal.any([AbortSignal.timeout(ANSWER_LIMIT), ...(signal ? [signal] : [])])
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
    // Other programs fill the GPU: that says nothing about the build.
    if (forGpus && error instanceof CorralError && error.code === 'insufficient_memory') {
      return [`The GPU had no memory left to prove that the build answers with it: ${error.message}`]
    }
    throw new Error(`The demo model could not be made to answer: ${messageOf(error)}`, { cause: error })
  }
}
