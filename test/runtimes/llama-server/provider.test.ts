import t, { type Test } from 'tap'
import type { Build } from '../../../core/contracts/builds.ts'
import type { EngineExit, EngineSpec, MemoryEstimate } from '../../../core/contracts/engines.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError } from '../../../core/errors.ts'
import type { EngineDeps, LlamaServerEngine } from '../../../runtimes/llama-server/engine.ts'
import { createEngineLogs } from '../../../runtimes/llama-server/engine-logs.ts'
import { createLlamaServerProvider, type ProviderDeps } from '../../../runtimes/llama-server/provider.ts'
import { createSpeculation, getSpeedKey } from '../../../runtimes/llama-server/speculation.ts'
import { failure as errorOf } from '../../support/failure.ts'
import { buildOf, engineSpec } from './support.ts'

/* Tests the provider of llama-server with stand-ins for its engines and everything else. */

const NEED = { use: { host: 6 }, from: 'learned', parts: {}, bounds: { checkpoints: 2 } }
const GGUF = { path: 'model.gguf', size: 1, sha256: '', role: 'model' as const }

interface World {
  provider: ReturnType<typeof createLlamaServerProvider>
  /** The steps, in order. */
  done: string[]
  /** Promises that steps wait for or fail with. */
  hold: Partial<Record<'estimate' | 'start' | 'save', Promise<unknown>>>
  engines: (LlamaServerEngine & { die(): void; askProbabilities(): void })[]
  /** Number of callers that prevent the removal of the model's files. */
  held(): number
  remove(): Promise<void>
  spec: EngineSpec
}

function world(t: Test, given: Partial<StoredVariant> = {}, speeds: Record<string, string> = {}): World {
  const done: string[] = []
  const hold: World['hold'] = {}
  const engines: World['engines'] = []
  let files = 0
  let removal: ((variants: StoredVariant[]) => Promise<void>) | undefined
  const { modelPath: _path, ...neutral } = engineSpec()
  const variant = { ...neutral.variant, files: [GGUF], directory: '/models', ...given }
  const step = async (name: keyof World['hold'], signal?: AbortSignal) => {
    done.push(name)
    const aborted = new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)))
    await Promise.race([hold[name], ...(signal ? [aborted] : [])])
  }
  const startEngine = async (build: Build, spec: LlamaServerEngine['spec'], deps: EngineDeps, waiting: Waiting) => {
    await step('start', waiting.signal)
    let end: (exit: EngineExit) => void = () => {}
    const exited = new Promise<EngineExit>(resolve => {
      end = resolve
    })
    const engine = {
      spec,
      build,
      exited,
      memory: { host: 4 },
      askProbabilities: () => deps.refuseProbabilities?.(),
      async stop() {
        done.push('stop')
        end({ code: 0, signal: null, expected: true })
        await exited
      },
      die: () => end({ code: null, signal: 'SIGKILL', expected: false, failure: new CorralError('engine_crashed', '') })
    } as unknown as World['engines'][number]
    engines.push(engine)
    return engine
  }
  const build = buildOf('/llama-server')
  const log = { debug() {}, info() {}, warn() {} }
  const provider = createLlamaServerProvider({
    storage: {
      find: () => undefined,
      hold() {
        files++
        return () => files--
      },
      requireTrusted: async () => undefined,
      onRemove(listener: typeof removal) {
        removal = listener
      }
    },
    conversion: {
      async convert(_variant: StoredVariant, dtype: string) {
        done.push(`convert ${dtype}`)
        return { modelPath: `/models/converted/${dtype}.gguf` }
      },
      requireDtype(dtype: string) {
        if (dtype === 'odd') throw new CorralError('invalid_option', 'There is no type "odd".')
        return dtype.toLowerCase()
      }
    },
    runtimes: {
      build: async () => build,
      environment: () => ({}),
      startOn: async (_engine: object, start: (build: Build) => Promise<unknown>) => await start(build),
      engineSettings: {}
    },
    memory: {
      async estimate(_spec: object, _build: Build, signal: AbortSignal) {
        await step('estimate', signal)
        return NEED
      },
      learn: () => ({ host: 5 }),
      learnOutOfMemory: () => done.push('out of memory'),
      explain: (_spec: object, _need: object, budget: { host: number }) => `Only ${budget.host} can be used.`,
      budgets: async () => ({ CUDA0: 1 }),
      close: async () => undefined
    },
    promptCache: {
      folderFor: async () => '/caches',
      async attach(engine: LlamaServerEngine) {
        done.push('attach')
        Object.assign(engine, {
          promptSlots: { saveAll: () => Promise.race([step('save'), engine.exited.then(() => undefined)]) }
        })
      },
      sealed: async () => undefined,
      async forget({ variant }: { variant: string }) {
        done.push(`forget ${variant}`)
      }
    },
    rpcWorkers: { budgets: async () => ({ '10.0.0.2:50052': 2 }), close: async () => undefined },
    engineLogs: createEngineLogs(),
    freeMemory: async (bytes: number) => void done.push(`free ${bytes}`),
    grammarLimits: { size: 65_536, ways: 20_000 },
    speculation: createSpeculation({ directory: t.testdir(speeds), isEnabled: () => true, log }),
    log,
    startEngine
  } as unknown as ProviderDeps)
  return {
    provider,
    done,
    hold,
    engines,
    held: () => files,
    remove: () => removal!([variant]),
    spec: { ...neutral, variant }
  }
}

t.test('the provider estimates, starts within limits, saves and ends an engine', async t => {
  const { provider, spec, done, engines, held } = world(t)
  t.equal(provider.serves(spec.variant, 'chat'), 1)
  t.equal(provider.serves(spec.variant, 'rerank'), 0)
  const estimate = await provider.estimate!(spec, {})
  t.match(estimate, { use: { host: 6 }, certain: true })
  t.equal(estimate.explain({ host: 3 }), 'Only 3 can be used.')
  t.equal(held(), 0)
  const engine = await provider.start(spec, {}, estimate)
  t.equal(held(), 1, 'its files stay while it runs')
  t.same(done, ['estimate', 'free 6', 'start', 'attach'])
  t.match(engines[0]!.spec, { modelPath: '/models/model.gguf', slotFolder: '/caches', bounds: NEED.bounds })
  t.same(engine.reserved, { host: 5 })
  await engine.saveSlots!()
  await engine.stop()
  t.same(done.slice(4), ['save', 'stop'])
  t.equal(held(), 0)
})

t.test('the provider converts SafeTensors, the only format for which the type matters', async t => {
  const { provider, spec, done, engines } = world(t, { format: 'safetensors' })
  const options = { ...spec.options, dtype: 'q8_0' }
  await provider.start({ ...spec, options }, {})
  t.same(
    done,
    ['convert q8_0', 'estimate', 'convert q8_0', 'free 6', 'start', 'attach'],
    'estimated, because it was not done before'
  )
  t.equal(engines[0]!.spec.modelPath, '/models/converted/q8_0.gguf')
  const { variant } = spec
  const gguf = { ...variant, format: 'gguf' }
  const chat = { mode: 'chat' as const }
  t.same(provider.loadOptions!(variant, { dtype: 'Q8_0', num_ctx: 1 }, options, chat), { dtype: 'q8_0', num_ctx: 1 })
  t.same(provider.loadOptions!(gguf, { dtype: 'Q8_0', num_ctx: 1 }, { ...options, dtype: 'odd' }, chat), { num_ctx: 1 })
  const odd = { code: 'invalid_option' }
  t.throws(() => provider.loadOptions!(variant, {}, { ...options, dtype: 'odd' }, chat), odd)
  t.throws(() => provider.loadOptions!(gguf, { dtype: 'odd' }, options, chat), odd)
})

t.test('a failed or cancelled start leaves nothing', async t => {
  const failing = world(t)
  const estimate = await failing.provider.estimate!(failing.spec, {})
  failing.hold.start = Promise.reject(new CorralError('insufficient_memory', 'No memory.'))
  t.match(await errorOf(failing.provider.start(failing.spec, {}, estimate)), { code: 'insufficient_memory' })
  t.same(failing.done, ['estimate', 'free 6', 'start', 'out of memory'], 'the shortage is remembered')
  t.equal(failing.held(), 0)

  for (const step of ['estimate', 'start'] as const) {
    const { provider, spec, hold, done, held } = world(t)
    hold[step] = new Promise(() => undefined)
    const controller = new AbortController()
    const { signal } = controller
    const ready: Promise<MemoryEstimate> | undefined = step === 'estimate' ? undefined : provider.estimate!(spec, {})
    const work = ready ? provider.start(spec, { signal }, await ready) : provider.estimate!(spec, { signal })
    const failure = errorOf(work)
    while (!done.includes(step)) await new Promise(resolve => setImmediate(resolve))
    controller.abort(new Error('enough'))
    t.match(await failure, { message: 'enough' }, step)
    t.equal(held(), 0)
  }
})

/** A large model with MTP heads, which was already measured without guessing ahead. */
function worldWithHeads(t: Test) {
  const { variant } = engineSpec()
  const info = { 'qwen35.nextn_predict_layers': 1 }
  const metadata = { architecture: 'qwen35', capabilities: ['completion' as const], info }
  const settings = { arguments: [], environment: {}, speculation: {}, loras: [] }
  const given = { size: 2 ** 30, metadata }
  const key = getSpeedKey({ ...engineSpec({ settings }), variant: { ...variant, ...given } }, buildOf('/llama-server'))
  const speeds = { [key]: { methods: { none: { tokens: 2000, milliseconds: 100_000 } }, at: '2026-01-01' } }
  const made = world(t, given, { 'speeds.json': JSON.stringify({ version: 1, speeds }) })
  const start = async () => {
    const spec = { ...made.spec, settings }
    return await made.provider.start(spec, {}, await made.provider.estimate!(spec, {}))
  }
  return { ...made, start, method: () => made.engines.at(-1)!.spec.settings!.speculation }
}

t.test('a method of guessing ahead that does not start or crashes is not tried again', async t => {
  for (const when of ['start', 'answer']) {
    const { start, method, hold, engines } = worldWithHeads(t)
    const failures = when === 'start' ? [new CorralError('load_failed', 'There are no heads.')] : []
    Object.defineProperty(hold, 'start', {
      get: () => {
        const failure = failures.pop()
        return failure && Promise.reject(failure)
      }
    })
    await start()
    if (when === 'start') t.same(method(), { ngram: false }, 'it starts without')
    else {
      t.same(method(), { ngram: false, mtp: true }, 'the method that is not measured yet')
      engines[0]!.die()
      await engines[0]!.exited
    }
    await start()
    t.same(method(), { ngram: true }, `${when}: the next method`)
  }
})

t.test('a request for log probabilities gets an engine that guesses nothing', async t => {
  const { start, method, engines } = worldWithHeads(t)
  const engine = await start()
  t.throws(() => engines[0]!.askProbabilities(), { code: 'engine_crashed', details: { sent: false } })
  await engine.outdated
  await start()
  t.same(method(), { ngram: false })
  engines[1]!.askProbabilities()
  t.match(engines[1]!.speculation, { method: 'none', tokensPerSecond: { none: 20 } })
})

t.test('removing a model removes its saved caches after its engines have ended', async t => {
  const { provider, spec, hold, done, remove } = world(t)
  const engine = await provider.start(spec, {})
  hold.save = new Promise(() => undefined)
  const saving = engine.saveSlots!()
  const removed = remove()
  await new Promise(resolve => setImmediate(resolve))
  t.notOk(done.some(step => step.startsWith('forget')))
  await engine.stop()
  await Promise.all([saving, removed])
  t.same(done.slice(-2), ['stop', 'forget corral/tiny-chat:f16'])
  t.same(await provider.budgets!({}), { CUDA0: 1, '10.0.0.2:50052': 2 })
})
