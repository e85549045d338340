import { join } from 'node:path'
import t from 'tap'
import type { LoadOptions } from '../../../../core/models/load-options.ts'
import { processMemory } from '../../../../core/system/processes.ts'
import { createLlamaServerEngine, type LlamaServerEngine } from '../../../../runtimes/llama-server/engine.ts'
import type { LaunchSpec } from '../../../../runtimes/llama-server/launch-spec.ts'
import { getTotal } from '../../../../runtimes/llama-server/memory/engine-need.ts'
import { createMemoryEstimates } from '../../../../runtimes/llama-server/memory/memory-estimates.ts'
import { engineDeps, MODEL, realBuild } from '../support.ts'
import { AMX, GIB, MIB, specOf } from './support.ts'

/* Runs real engines, and compares the estimate with their report and with the system's measurement. */

const log = { debug: () => {}, warn: () => {} }
const build = realBuild()
const { signal } = new AbortController()
const HARDWARE = { gpus: [], cpu: { features: AMX ? ['amx_int8'] : [] } }

function openBook(directory: string) {
  const now = { host: { total: 16 * GIB, available: 15 * GIB }, gpus: {} }
  return createMemoryEstimates({
    runtimes: { current: () => build },
    hardware: {
      detect: async () => HARDWARE as never,
      known: () => undefined,
      memory: async () => now,
      readings: async () => []
    },
    directory,
    hostMemory: async () => 14 * GIB,
    log
  })
}

/** Fills all slots, and the cache of earlier prompts. */
async function use(engine: LlamaServerEngine, { num_ctx, num_parallel }: LoadOptions): Promise<void> {
  const words = Math.floor(num_ctx / 6)
  const ask = async (path: string, body: object) => {
    const answer = await engine.request({ method: 'POST', path, body: JSON.stringify(body), signal })
    await answer.body.consume(() => undefined)
    return answer.status
  }
  for (let round = 0; round < 2; round++) {
    const asks = Array.from({ length: num_parallel }, (_, slot) => {
      const text = Array.from({ length: words }, (_, at) => (at * 7 + round * 31 + slot * 101) % 1000).join(' ')
      if (engine.spec.mode === 'embedding') return ask('/v1/embeddings', { input: text.slice(0, num_ctx) })
      return ask('/v1/chat/completions', { messages: [{ role: 'user', content: text }], max_tokens: 4 })
    })
    for (const status of await Promise.all(asks)) t.equal(status, 200, 'the engine answers')
  }
}

// Names become names of folders (`t.testdir`), which are limited to 255 bytes.
const CASES: { name: string; options: Partial<LoadOptions>; given?: Partial<LaunchSpec> }[] = [
  { name: 'one slot', options: { num_ctx: 1024, num_parallel: 1 } },
  { name: 'three slots', options: { num_ctx: 1024, num_parallel: 3 } },
  {
    name: 'a quantized cache',
    options: { num_ctx: 1024, num_parallel: 2, cache_type_k: 'q8_0', cache_type_v: 'q8_0' }
  },
  { name: 'embeddings', options: { num_ctx: 1024, num_parallel: 2 }, given: { mode: 'embedding' } },
  {
    name: 'a draft model and smaller batches',
    options: { num_ctx: 1024, num_parallel: 2 },
    given: {
      settings: {
        arguments: ['--ubatch-size', '256'],
        environment: {},
        speculation: { ngram: false, draft: { model: 'corral/tiny-chat', modelPath: MODEL } },
        loras: []
      }
    }
  }
]

for (const { name, options, given } of CASES) {
  t.test(`the memory estimator estimates tiny-chat with ${name}`, async t => {
    const directory = join(t.testdir(), 'memory')
    const book = openBook(directory)
    const asked = specOf(MODEL, options, given)
    const need = await book.estimate(asked, build, signal)
    t.equal(need.from, 'metadata')
    const spec = { ...asked, bounds: need.bounds }
    const engine = await createLlamaServerEngine(build, spec, engineDeps(t.testdir({ run: {} })), {})
    try {
      const counted = book.learn(engine, need)
      // The report is in whole MiB, rounded down in each row.
      const report = getTotal(engine.memory!)
      const unreported = getTotal(need.use) - report
      t.ok(unreported > 38 * MIB, `the need covers the report and the process (${unreported / MIB} MiB more)`)
      t.ok(unreported < 48 * MIB + 0.3 * report, 'and is not much larger')
      await use(engine, spec.options)
      const real = await processMemory(engine.pid)
      if (process.platform === 'linux') {
        t.ok(real!.resident < getTotal(need.use), `it uses ${real!.resident / MIB} MiB of ${getTotal(need.use) / MIB}`)
        t.ok(real!.resident < getTotal(counted), `and of ${getTotal(counted) / MIB} that are counted`)
      }
    } finally {
      await engine.stop()
      await book.close()
    }
    const learned = await openBook(directory).estimate(asked, build, signal)
    t.equal(learned.from, 'learned')
    const share = getTotal(learned.use) / getTotal(need.use)
    t.ok(share > 0.7 && share < 1.1, `the learned need is like the estimate (${share})`)
  })
}
