import type { MemoryUse } from '../../../core/contracts/engines.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { pooledBatch, promptCacheSize } from '../arguments.ts'
import type { EngineBounds, LaunchSpec } from '../launch-spec.ts'
import { type Device, type Parts, place } from './device-placement.ts'
import type { EngineFiles } from './engine-files.ts'
import { type ModelShape, weightsOf } from './model-shape.ts'
import { type ComputeOptions, cacheByLayer, checkpointSize, computeSize } from './model-sizes.ts'

const MIB = 2 ** 20
/** llama-server's defaults. */
const BATCH = 512
const CHECKPOINTS = 32
const DRAFT_TOKENS = 3
const NGRAM_TOKENS = 64
/** What a llama-server takes that it does not report: code, threads, buffers of requests … */
const PROCESS = 40 * MIB
const SLOT = MIB
/** … and its vocabulary, for each token, with the merges. */
const VOCABULARY = 512

/** What an engine will take, before it is started. */
export interface EngineNeed {
  /** Bytes by pool: `host`, or the id of a device of the build. */
  use: MemoryUse
  /** Where the numbers come from: an earlier engine's own report, llama-fit-params, or the file's metadata (a guess). */
  from: 'learned' | 'fit' | 'metadata'
  /** Bytes in all pools together, for messages. */
  parts: { weights: number; cache: number; compute: number }
  /** What the engine has to be started with (`LaunchSpec.bounds`), so that it keeps to this. */
  bounds: EngineBounds
}

/** What is known of where it runs. */
export interface EnginePlace {
  devices: readonly Device[]
  /** Bytes of the machine's memory that engines may take together. */
  memory: number
  /** As Node says it. */
  arch: string
  /** Bytes of each device to leave free, where that is configured. */
  deviceMargins?: readonly number[]
}

/** What an engine takes, by its files' metadata. Sizes are bytes. */
export interface MetadataEstimate {
  /** What llama-server reports as its own, by pool. */
  core: MemoryUse
  /** What its draft model takes, which is in its report too. */
  draft: MemoryUse
  /** What it takes from the start that the report leaves out. */
  unreported: MemoryUse
  /** What it may grow by in the machine's memory, within its bounds. */
  growth: number
  bounds: EngineBounds
  weights: number
  cache: number
  /** Of the core: buffers that hold an answer's numbers for each token of a batch, which not every build reserves. */
  logits: number
  /** Whether the placement of layers is certain: all fit on the devices, their number was given, or there is no device. */
  settled: boolean
}

/** Sums uses by pool. */
export function addUse(...uses: readonly MemoryUse[]): MemoryUse {
  const all: MemoryUse = {}
  for (const use of uses) {
    for (const [pool, bytes] of Object.entries(use)) all[pool] = (all[pool] ?? 0) + bytes
  }
  return all
}

/** Bytes of all pools. */
export function totalOf(use: MemoryUse): number {
  return Object.values(use).reduce((sum, bytes) => sum + bytes, 0)
}

/** How an engine is started, as far as it decides about memory: options, and flags that win over them. */
function computeOptions(spec: LaunchSpec, flags: EngineFlags): ComputeOptions {
  const { options, mode, settings } = spec
  const num_parallel = Math.max(1, flags.slots ?? options.num_parallel)
  const context = flags.context || options.num_ctx * options.num_parallel
  const num_ctx = Math.max(1, context / num_parallel)
  const pooled = mode !== 'chat'
  const { draft, ngram } = settings?.speculation ?? { ngram: false }
  const guessed = draft ? (draft.maxTokens ?? DRAFT_TOKENS) : ngram ? NGRAM_TOKENS : 0
  return {
    num_ctx,
    num_parallel,
    cache_type_k: flags.cacheTypes.cache_type_k ?? options.cache_type_k,
    cache_type_v: flags.cacheTypes.cache_type_v ?? options.cache_type_v,
    batch: flags.batch || (pooled ? pooledBatch(options) : BATCH),
    unified: pooled || flags.unified,
    fullWindow: flags.fullWindow,
    flashAttention: flags.flashAttention,
    pooled,
    guessed: pooled ? 0 : guessed
  }
}

function partsOf(shape: ModelShape, options: ComputeOptions, loras: number, copies: boolean): Parts {
  const cache = cacheByLayer(shape, options)
  const { input, output, tied, other } = shape.weights
  return {
    input,
    layers: shape.layers.map(({ weights }, at) => ({
      weights: weights + loras / shape.layers.length,
      cache: cache[at]!
    })),
    output: output + other,
    copied: tied && !copies ? output : 0,
    compute: computeSize(shape, options)
  }
}

/**
 * Whether the processor's code repacks these weights (ggml-cpu's repack.cpp): a table of tokens that is also the output
 * is then held twice.
 */
function packed({ weights, vocabulary, embedding }: ModelShape, arch: string): boolean {
  const bits = (8 * weights.output) / (vocabulary * embedding)
  return bits < (arch === 'arm64' ? 9 : 5)
}

/** A model whose metadata says nothing: its files, and as much again as usual models take. */
function unknownParts(size: number, context: number): Parts {
  const perToken = Math.min(512 * 1024, 16 * 1024 + size / 32768)
  return {
    input: 0,
    layers: [{ weights: size, cache: perToken * context }],
    output: 0,
    copied: 0,
    compute: { layers: 256 * MIB + size / 16, io: 64 * MIB }
  }
}

/**
 * How much llama-server may keep in addition to the slots' own caches. It would fill what it is allowed, so that all of it is
 * counted: for the states of earlier prompts a sixteenth of what corral may take (`promptCacheSize`), and no more than
 * half of the slots' caches; the same for checkpoints of models with windows or states, one for each slot at least. No
 * model is refused for that: where there is no room beside the model itself, nothing is kept.
 */
function growthBounds(
  flags: EngineFlags,
  { room, limit, cache, checkpoint }: { room: number; limit: number; cache: number; checkpoint: number }
): { promptCache: number; checkpoints: number; growth: number } {
  const usual = Math.max(1, Math.floor(limit / Math.max(1, checkpoint)))
  const most = Math.min(CHECKPOINTS, usual, Math.floor(room / Math.max(1, checkpoint)))
  const checkpoints = flags.checkpoints ?? (checkpoint > 0 ? most : CHECKPOINTS)
  const left = Math.max(0, room - checkpoints * checkpoint)
  const promptCache = flags.promptCache ?? Math.floor(Math.min(limit, cache / 2, left) / MIB) * MIB
  return { promptCache, checkpoints, growth: promptCache + checkpoints * checkpoint }
}

const processSize = (shape: ModelShape | undefined, slots: number) =>
  PROCESS + SLOT * slots + VOCABULARY * (shape?.vocabulary ?? 0)

/** Estimates by the files' metadata what an engine takes of each pool. */
export function estimateFromMetadata(spec: LaunchSpec, files: EngineFiles, where: EnginePlace): MetadataEstimate {
  const flags = engineFlags(spec.settings?.arguments ?? [])
  const options = computeOptions(spec, flags)
  const { shape } = files
  const devices = flags.hostOnly ? [] : where.devices
  const gpuLayers = flags.gpuLayers ?? spec.options.n_gpu_layers
  const context = options.num_ctx * options.num_parallel
  const first = devices[0]?.pool ?? 'host'

  const copies = shape !== undefined && devices.length === 0 && packed(shape, where.arch)
  const parts = shape ? partsOf(shape, options, files.loras, copies) : unknownParts(files.size + files.loras, context)
  const projector = files.projector ? files.projector.size + files.projector.compute : 0
  const drafted = draftPlacement(spec, files, options, devices, where.arch)
  const reserved = addUse({ [first]: projector }, drafted)
  // Layers cannot use the room that other parts take on the devices.
  const roomier = devices.map(device => ({
    ...device,
    overhead: device.overhead + (device.pool === 'host' ? 0 : (reserved[device.pool] ?? 0))
  }))
  const placement = place(parts, roomier, gpuLayers, flags.hostCache)

  const overheads = devices.slice(0, placement.devices.length).map(({ pool, overhead }) => ({ [pool]: overhead }))
  const unreported = addUse({ host: processSize(shape, options.num_parallel) }, { [first]: projector }, ...overheads)
  const cache = parts.layers.reduce((sum, layer) => sum + layer.cache, 0)
  const chat = spec.mode === 'chat'
  const start = addUse(placement.use, drafted, unreported).host ?? 0
  const bounds = growthBounds(flags, {
    room: chat ? Math.max(0, where.memory - start) : 0,
    limit: promptCacheSize(where.memory) * MIB,
    cache,
    checkpoint: chat && shape ? checkpointSize(shape, options) * options.num_parallel : 0
  })
  return {
    core: placement.use,
    draft: drafted,
    unreported,
    growth: bounds.growth,
    bounds: {
      promptCache: bounds.promptCache,
      checkpoints: bounds.checkpoints,
      ...(where.deviceMargins && gpuLayers < 0 ? { deviceMargins: where.deviceMargins } : {})
    },
    weights: shape ? weightsOf(shape) + files.loras : files.size + files.loras,
    cache,
    logits: shape && chat ? 4 * shape.vocabulary * options.batch : 0,
    settled: devices.length === 0 || gpuLayers >= 0 || placement.layers === parts.layers.length + 1
  }
}

/** What a draft model takes: a model of its own with the same conversations, its cache in 16 bits. */
function draftPlacement(
  spec: LaunchSpec,
  { draft }: EngineFiles,
  options: ComputeOptions,
  devices: readonly Device[],
  arch: string
): MemoryUse {
  if (!draft) return {}
  const own: ComputeOptions = { ...options, cache_type_k: 'f16', cache_type_v: 'f16', guessed: 0 }
  const context = options.num_ctx * options.num_parallel
  const { shape } = draft
  const copies = shape !== undefined && devices.length === 0 && packed(shape, arch)
  const parts = shape ? partsOf(shape, own, 0, copies) : unknownParts(draft.size, context)
  const shared = devices.map(device => ({ ...device, overhead: 0 }))
  return place(parts, shared, spec.settings?.speculation.draft?.gpuLayers ?? -1).use
}

/** A need out of what an engine takes from the start and what it may grow by. */
export function needOf(estimated: MetadataEstimate, start: MemoryUse, from: EngineNeed['from']): EngineNeed {
  const use = addUse(start, { host: estimated.growth })
  for (const [pool, bytes] of Object.entries(use)) use[pool] = Math.ceil(bytes)
  const weights = estimated.weights
  const cache = estimated.cache + estimated.growth
  const compute = Math.max(0, totalOf(use) - weights - cache)
  return { use, from, parts: { weights, cache, compute }, bounds: estimated.bounds }
}

/** What a model's own flags for llama-server change about its memory. */
export interface EngineFlags {
  /** Tokens of all slots together. */
  context?: number
  slots?: number
  batch?: number
  gpuLayers?: number
  cacheTypes: Partial<Pick<LoadOptions, 'cache_type_k' | 'cache_type_v'>>
  flashAttention: boolean
  unified: boolean
  fullWindow: boolean
  /** Bytes. */
  promptCache?: number
  checkpoints?: number
  /** No device is used. */
  hostOnly: boolean
  /** Caches stay in the machine's memory. */
  hostCache: boolean
}

/** Flags with a value, by all their spellings in llama-server's `--help`. */
const VALUES: Record<string, string> = {
  '-c': 'context',
  '--ctx-size': 'context',
  '-np': 'slots',
  '--parallel': 'slots',
  '-ub': 'batch',
  '--ubatch-size': 'batch',
  '-ngl': 'gpuLayers',
  '--gpu-layers': 'gpuLayers',
  '--n-gpu-layers': 'gpuLayers',
  '-cram': 'promptCache',
  '--cache-ram': 'promptCache',
  '-ctxcp': 'checkpoints',
  '--ctx-checkpoints': 'checkpoints',
  '--swa-checkpoints': 'checkpoints'
}
const TYPES: Record<string, 'cache_type_k' | 'cache_type_v'> = {
  '-ctk': 'cache_type_k',
  '--cache-type-k': 'cache_type_k',
  '-ctv': 'cache_type_v',
  '--cache-type-v': 'cache_type_v'
}
const MANY = 1e6

/** Reads the flags that matter; llama-server checks the others and invalid values. */
export function engineFlags(list: readonly string[]): EngineFlags {
  const flags: EngineFlags = {
    cacheTypes: {},
    flashAttention: true,
    unified: false,
    fullWindow: false,
    hostOnly: false,
    hostCache: false
  }
  const numbers: Record<string, number> = {}
  for (const [at, flag] of list.entries()) {
    const value = list[at + 1] ?? ''
    const name = VALUES[flag]
    const type = TYPES[flag]
    if (name) {
      const number = value === 'all' ? MANY : Number(value)
      if (value.trim() !== '' && Number.isInteger(number)) numbers[name] = number
    } else if (type) flags.cacheTypes[type] = value as LoadOptions['cache_type_k']
    else if (flag === '-fa' || flag === '--flash-attn') flags.flashAttention = !/^(off|false|0|disabled)$/.test(value)
    else if (flag === '-kvu' || flag === '--kv-unified') flags.unified = true
    else if (flag === '--swa-full') flags.fullWindow = true
    else if (flag === '-dev' || flag === '--device') flags.hostOnly = value === 'none'
    else if (flag === '-nkvo' || flag === '--no-kv-offload') flags.hostCache = true
  }
  const { promptCache, ...others } = numbers
  if (promptCache !== undefined) flags.promptCache = promptCache < 0 ? MANY * 2 ** 20 : promptCache * 2 ** 20
  return Object.assign(flags, others)
}
