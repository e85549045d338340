import t from 'tap'
import type { EngineMode } from '../../../../core/contracts/engines.ts'
import type { LoadOptions } from '../../../../core/models/load-options.ts'
import { engineArguments } from '../../../../runtimes/llama-server/arguments.ts'
import { engineFiles, estimateFromMetadata, getTotal } from '../../../../runtimes/llama-server/memory/engine-need.ts'
import { engineBuildFolder } from '../../../support/engine-build.ts'
import { OTHERS, TRANSFORMERS } from './model-shapes.ts'
import { AMX, buildWithoutAmx, GIB, MIB, reportOf, specOf, writeShape } from './support.ts'

/*
 * Compares estimates from metadata with llama-server's own estimates for the same files and options. The files have the
 * shapes of popular models, with zeros as weights.
 */

interface Case {
  options: Partial<LoadOptions>
  mode?: EngineMode
  flags?: string[]
}
const CASES: Case[] = [
  { options: { num_ctx: 4096, num_parallel: 4 } },
  { options: { num_ctx: 16384, num_parallel: 1 } },
  { options: { num_ctx: 777, num_parallel: 3 } },
  { options: { num_ctx: 4096, num_parallel: 2, cache_type_k: 'q8_0', cache_type_v: 'q8_0' } },
  { options: { num_ctx: 4096, num_parallel: 4 }, flags: ['--flash-attn', 'off'] },
  { options: { num_ctx: 2048, num_parallel: 2 }, mode: 'embedding' }
]
/** Further shapes, created once, with fewer cases each. */
const MORE: Case[] = [
  { options: { num_ctx: 8192, num_parallel: 2 }, flags: ['--kv-unified'] },
  { options: { num_ctx: 8192, num_parallel: 2 }, flags: ['--swa-full', '-ub', '1024'] },
  { options: { num_ctx: 8192, num_parallel: 2, cache_type_k: 'q4_0', cache_type_v: 'q5_1' } }
]
/** llama.cpp itself fails on this model's fused attention with a quantized cache. */
const BROKEN = (name: string, { options }: Case) => name === 'phi-4' && options.cache_type_k === 'q8_0'
const WHERE = { devices: [], memory: 16 * GIB, arch: process.arch, amx: AMX }

const folder = t.testdir()
const plainFolder = buildWithoutAmx(t)

async function compare(name: string, path: string, { options, mode = 'chat', flags = [] }: Case, amx = AMX) {
  const settings = { arguments: flags, environment: {}, speculation: { ngram: false }, loras: [] }
  const spec = specOf(path, options, { mode, settings })
  const { core, weights, cache } = estimateFromMetadata(spec, await engineFiles(spec, amx), { ...WHERE, amx })
  const args = engineArguments(spec, { listen: { host: '127.0.0.1', port: 1 } })
  // The helper sets the address and the logging.
  const own = args.slice(args.indexOf('--alias'))
  const real = await reportOf(
    amx ? engineBuildFolder() : plainFolder,
    path,
    own.filter(flag => flag !== '--log-jsonl' && flag !== '--no-ui')
  )
  const total = real.model + real.context + real.compute
  return {
    title: `${name} ${JSON.stringify({ ...options, mode, flags })}`,
    weights: weights / MIB / real.model,
    // The table rounds down to whole MiB.
    cache: real.context === 0 ? 1 : cache / MIB / (real.context + 0.5),
    all: getTotal(core) / MIB / total
  }
}

t.test('the memory estimator estimates dense models and mixtures of experts', async t => {
  for (const name of TRANSFORMERS) {
    const path = writeShape(folder, name)
    for (const given of CASES) {
      if (BROKEN(name, given)) continue
      const { title, weights, cache, all } = await compare(name, path, given)
      // Q4_0, which AMX leaves unchanged, is mistaken for Q4_K.
      t.ok(weights > 0.99 && weights < (AMX ? 1.03 : 1.01), `${title}: weights are ${weights} of the truth`)
      t.ok(cache > 0.98 && cache < 1.02, `${title}: the cache is ${cache} of the truth`)
      t.ok(all > 0.97 && all < 1.15, `${title}: all is ${all} of the truth`)
    }
  }
  for (const name of ['llama-3.1-8b', 'gemma-3-1b']) {
    for (const given of MORE) {
      const { title, cache, all } = await compare(name, writeShape(folder, name), given)
      t.ok(cache > 0.98 && cache < 1.02, `${title}: the cache is ${cache} of the truth`)
      t.ok(all > 0.97 && all < 1.15, `${title}: all is ${all} of the truth`)
    }
  }
})

t.test('the memory estimator estimates latent attention, states and hybrids', async t => {
  for (const name of OTHERS) {
    const path = writeShape(folder, name)
    for (const given of CASES) {
      const { title, cache, all } = await compare(name, path, given, false)
      t.ok(cache > 0.95 && cache < 1.1, `${title}: the cache is ${cache} of the truth`)
      t.ok(all > 0.97 && all < 1.5, `${title}: all is ${all} of the truth`)
    }
  }
})
