import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import type { ToolLog } from '../core/child-process.ts'
import { messageOf } from '../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS } from '../core/options.ts'
import { packageRoot } from '../core/package-info.ts'
import type { Build, BuildCandidate } from '../core/runtimes.ts'
import type { Engine, EngineSpec, StoredVariant, Waiting } from '../core/services.ts'
import { prove } from './prove.ts'

export type StartEngine = (build: Build, spec: EngineSpec, waiting: Waiting) => Promise<Engine>

const DEMO_MODEL = join(packageRoot, 'plugins', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
/** Milliseconds for one short answer of the demo model. */
const ANSWER_LIMIT = 60_000

/** The demo model as it lies in the package, whether or not it is in storage. */
function demoSpec(): EngineSpec {
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
  const options = { ...DEFAULT_LOAD_OPTIONS, num_ctx: 256, num_parallel: 1 }
  return { alias: 'corral/tiny-chat', mode: 'chat', variant, modelPath: DEMO_MODEL, options }
}

/** Proves a candidate; `own` when corral made or downloaded it. */
export type Prove = (candidate: BuildCandidate, own: boolean, signal: AbortSignal) => Promise<Build>

/**
 * Proves that builds start, and that corral's own ones answer; those that somebody else made and uses need no such
 * trial. The same candidate is proven once.
 */
export function createProof(startEngine: StartEngine, log: ToolLog): Prove {
  const proven = new WeakMap<BuildCandidate, Build>()
  return async (candidate, own, signal) => {
    const known = proven.get(candidate)
    if (known) return known
    const build = await prove(candidate, { signal, log })
    if (own) await proveByAnswer(build, startEngine, signal)
    proven.set(candidate, build)
    return build
  }
}

/**
 * Proves that a build answers: loads the demo model and asks it something.
 * @throws Error with the reason
 */
export async function proveByAnswer(build: Build, startEngine: StartEngine, signal?: AbortSignal): Promise<void> {
  try {
    const engine = await startEngine(build, demoSpec(), { signal })
    try {
      const limit = AbortSignal.any([AbortSignal.timeout(ANSWER_LIMIT), ...(signal ? [signal] : [])])
      const body = {
        messages: [{ role: 'user', content: 'What is the capital of France?' }],
        temperature: 0,
        max_tokens: 16
      }
      const response = await engine.request({
        method: 'POST',
        path: '/v1/chat/completions',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal: limit
      })
      const reply = await text(response.body)
      if (response.status !== 200) throw new Error(`status ${response.status}: ${reply.slice(0, 300)}`)
      const content = JSON.parse(reply).choices?.[0]?.message?.content
      if (typeof content !== 'string' || !content.includes('Paris')) {
        throw new Error(`a wrong answer: ${reply.slice(0, 300)}`)
      }
    } finally {
      await engine.stop()
    }
  } catch (error) {
    if (signal?.aborted) throw signal.reason
    throw new Error(`The demo model could not be made to answer: ${messageOf(error)}`, { cause: error })
  }
}
