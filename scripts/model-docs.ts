import { DEFAULT_LOAD_OPTIONS } from '../core/models/load-options.ts'
import type { LaunchSpec } from '../runtimes/llama-server/launch-spec.ts'
import { type EnginePlace, estimateFromMetadata, getTotal } from '../runtimes/llama-server/memory/engine-need.ts'
import { modelShape } from '../runtimes/llama-server/memory/model-shape.ts'

/** A model's shape from its publisher's `config.json`. */
export interface PublishedShape {
  repository: string
  /** Billions of parameters, as published. */
  parameters: number
  arch: string
  layers: number
  embedding: number
  heads: number
  kvHeads: number
  headLength: number
  feedForward: number
  vocabulary: number
  context: number
  /** Input and output embeddings share their weights. */
  tied?: true
  window?: number
  experts?: { count: number; used: number; feedForward: number }
}

export const PUBLISHED: readonly PublishedShape[] = [
  ['Qwen/Qwen3-0.6B', 0.6, 'qwen3', 28, 1024, 16, 8, 128, 3072, 151936, 40960, { tied: true }],
  ['Qwen/Qwen3-1.7B', 1.7, 'qwen3', 28, 2048, 16, 8, 128, 6144, 151936, 40960, { tied: true }],
  ['meta-llama/Llama-3.2-3B-Instruct', 3.21, 'llama', 28, 3072, 24, 8, 128, 8192, 128256, 131072, { tied: true }],
  ['Qwen/Qwen3-4B', 4.0, 'qwen3', 36, 2560, 32, 8, 128, 9728, 151936, 40960, { tied: true }],
  ['google/gemma-3-4b-it', 3.88, 'gemma3', 34, 2560, 8, 4, 256, 10240, 262208, 131072, { tied: true, window: 1024 }],
  ['mistralai/Mistral-7B-Instruct-v0.3', 7.25, 'llama', 32, 4096, 32, 8, 128, 14336, 32768, 32768],
  ['meta-llama/Llama-3.1-8B-Instruct', 8.03, 'llama', 32, 4096, 32, 8, 128, 14336, 128256, 131072],
  ['Qwen/Qwen3-8B', 8.2, 'qwen3', 36, 4096, 32, 8, 128, 12288, 151936, 40960],
  ['google/gemma-3-12b-it', 11.8, 'gemma3', 48, 3840, 16, 8, 256, 15360, 262208, 131072, { tied: true, window: 1024 }],
  ['microsoft/phi-4', 14.7, 'phi3', 40, 5120, 40, 10, 128, 17920, 100352, 16384],
  ['Qwen/Qwen3-14B', 14.8, 'qwen3', 40, 5120, 40, 8, 128, 17408, 151936, 40960],
  ['mistralai/Mistral-Small-24B-Instruct-2501', 23.6, 'llama', 40, 5120, 32, 8, 128, 32768, 131072, 32768],
  ['google/gemma-3-27b-it', 27, 'gemma3', 62, 5376, 32, 16, 128, 21504, 262208, 131072, { tied: true, window: 1024 }],
  [
    'Qwen/Qwen3-30B-A3B',
    30.5,
    'qwen3moe',
    48,
    2048,
    32,
    4,
    128,
    6144,
    151936,
    40960,
    { experts: { count: 128, used: 8, feedForward: 768 } }
  ],
  ['Qwen/Qwen3-32B', 32.8, 'qwen3', 64, 5120, 64, 8, 128, 25600, 151936, 40960],
  ['meta-llama/Llama-3.3-70B-Instruct', 70.6, 'llama', 80, 8192, 64, 8, 128, 28672, 128256, 131072]
].map(row => {
  const [
    repository,
    parameters,
    arch,
    layers,
    embedding,
    heads,
    kvHeads,
    headLength,
    feedForward,
    vocabulary,
    context
  ] = row as [string, number, string, number, number, number, number, number, number, number, number]
  const sizes = { layers, embedding, heads, kvHeads, headLength, feedForward, vocabulary, context }
  return { repository, parameters, arch, ...sizes, ...((row[11] ?? {}) as object) }
})

const GIB = 2 ** 30
/** Average bits per weight, from llama-quantize's README for Llama 3.1 8B. */
const BITS = { Q4_K_M: 4.8944, Q8_0: 8.5008 }
/** Common memory sizes in GiB. */
const MACHINES = [8, 16, 24, 48]
/** Context lengths in tokens. */
const CONTEXTS = [4096, 8192, 16384, 32768, 65536, 131072]
/** Share of memory that corral uses on a machine without a GPU, as in the choice of a download. */
const SHARE_OF_MEMORY = 0.7
/** GPU memory used by a CUDA process, and kept free by llama-server. */
const OVERHEAD = GIB / 2
const MARGIN = GIB

export function parametersOf(model: PublishedShape): number {
  const { layers, embedding, heads, kvHeads, headLength, feedForward, vocabulary, experts } = model
  const attention = 2 * embedding * headLength * (heads + kvHeads)
  const wide = experts ? experts.count * experts.feedForward + experts.count / 3 : feedForward
  return layers * (attention + 3 * embedding * wide) + (model.tied ? 1 : 2) * vocabulary * embedding
}

function keysOf(model: PublishedShape): Record<string, unknown> {
  const { arch, experts } = model
  const keys = {
    block_count: model.layers,
    context_length: model.context,
    embedding_length: model.embedding,
    feed_forward_length: model.feedForward,
    vocab_size: model.vocabulary,
    'attention.head_count': model.heads,
    'attention.head_count_kv': model.kvHeads,
    'attention.key_length': model.headLength,
    'attention.value_length': model.headLength,
    ...(model.window && { 'attention.sliding_window': model.window }),
    ...(experts && {
      expert_count: experts.count,
      expert_used_count: experts.used,
      expert_feed_forward_length: experts.feedForward
    })
  }
  const named = Object.entries(keys).map(([name, value]) => [`${arch}.${name}`, value])
  return { 'general.architecture': arch, ...Object.fromEntries(named) }
}

const sizeOf = (model: PublishedShape, bits: number) => Math.round((parametersOf(model) * bits) / 8)

/** Whether the model fits with one conversation of this many tokens, according to corral's estimate. */
function fits(model: PublishedShape, context: number, { gpu, memory }: { gpu: boolean; memory: number }): boolean {
  const size = sizeOf(model, BITS.Q4_K_M)
  const shape = modelShape(keysOf(model), undefined, size)
  const options = { ...DEFAULT_LOAD_OPTIONS, num_ctx: context, num_parallel: 1 }
  const spec = { mode: 'chat', options } as LaunchSpec
  const devices = gpu ? [{ pool: 'gpu', budget: memory - MARGIN, overhead: OVERHEAD }] : []
  const where: EnginePlace = { devices, memory, arch: 'x64', amx: false }
  const { core, unreported, settled } = estimateFromMetadata(spec, { shape, size, loras: 0 }, where)
  if (gpu) return settled && (core.gpu ?? 0) + (unreported.gpu ?? 0) <= memory - MARGIN
  return getTotal(core) + getTotal(unreported) <= SHARE_OF_MEMORY * memory
}

/** The longest conversation that fits, as a table cell. */
function longest(model: PublishedShape, machine: { gpu: boolean; memory: number }): string {
  const fitting = [...CONTEXTS.filter(context => context < model.context), model.context].filter(context =>
    fits(model, context, machine)
  )
  const most = Math.max(0, ...fitting)
  if (most === 0) return '–'
  return most === model.context ? `${Math.floor(most / 1024)}k (all)` : `${most / 1024}k`
}

const INTRODUCTION = `# Which model fits

This page shows which models fit, not which are good. \`corral pull\` chooses the quantization for your memory
automatically. \`corral pull <model> --dry-run\` shows before a download whether the model fits this machine.

The tables show the longest conversation in tokens that fits: one conversation at a time (\`num_parallel: 1\`), Q4_K_M
weights and a 16-bit cache. "All" is the full context of the model, and "–" does not fit. The numbers come from the same
memory estimate that corral makes before it loads a model, with the shapes stated by the publishers.

Rules of thumb:

- A billion parameters take about 0.6 GB in Q4_K_M, and 1.1 GB in Q8_0.
- Each concurrent conversation has its own cache: \`num_parallel: 4\`, the default, takes four times as much as one.
- \`cache_type_k: q8_0\` and \`cache_type_v: q8_0\` halve the cache.
- A mixture of experts (30B-A3B) needs memory for all weights, but is as fast as a model with only its active weights.
- Layers that do not fit the GPU run on the processor, which is slower. corral does this automatically.

`

export function renderModelDocs(): { 'choosing-a-model.md': string } {
  const table = (gpu: boolean) =>
    [
      `| model | Q4_K_M | ${MACHINES.map(size => `${size} GB`).join(' | ')} |`,
      `|---|---|${MACHINES.map(() => '---|').join('')}`,
      ...PUBLISHED.map(model => {
        const cells = MACHINES.map(size => longest(model, { gpu, memory: size * GIB }))
        const file = (sizeOf(model, BITS.Q4_K_M) / 1e9).toFixed(1)
        return `| ${model.repository} | ${file} GB | ${cells.join(' | ')} |`
      })
    ].join('\n')
  return {
    'choosing-a-model.md': `${INTRODUCTION}## By GPU memory

All layers on one GPU.

${table(true)}

## By main memory, without a GPU

corral uses at most 70 % of it, as when it chooses a download.

${table(false)}

## Try before you download

\`\`\`sh
corral pull Qwen/Qwen3-0.6B-GGUF --dry-run
corral doctor
\`\`\`

For text embeddings and reranking, small models are enough. The [cookbook](cookbook.md) uses some. \`corral show\` lists the
capabilities of a downloaded model.
`
  }
}
