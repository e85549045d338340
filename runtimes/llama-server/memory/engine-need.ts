import { stat } from 'node:fs/promises'
import type { MemoryUse } from '../../../core/contracts/engines.ts'
import { type GgufHeader, readGgufHeader } from '../../../core/models/gguf-file.ts'
import { shardNames } from '../../../core/models/gguf-file-name.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { setNewest } from '../../../core/system/collections.ts'
import { pooledBatch } from '../arguments.ts'
import type { EngineBounds, LaunchSpec } from '../launch-spec.ts'
import { type Device, type Parts, place } from './device-placement.ts'
import figures from './memory-figures.json' with { type: 'json' }
import {
  type ComputeOptions,
  cacheByLayer,
  checkpointSize,
  computeSize,
  type ModelShape,
  modelShape,
  totalWeights
} from './model-shape.ts'

const MIB = 2 ** 20
/** llama-server's defaults. */
const BATCH = 512
const CHECKPOINTS = 32
const DRAFT_TOKENS = 3
const NGRAM_TOKENS = 64
/** Bytes that a llama-server uses but does not report, for code, threads and buffers of requests … */
const PROCESS = 40 * MIB
const SLOT = MIB
/** … and for its tokenizer, per token and per merge. The measured values were 180 and 160 with 262,144 of them. */
const TOKEN = 256
const MERGE = 192

export interface EngineNeed {
  /** Bytes by pool: `host`, or the id of a device of the build. */
  use: MemoryUse
  /** The source of the numbers: an earlier engine's own report, or the file's metadata. */
  from: 'learned' | 'metadata'
  /** Bytes in all pools together, for messages. */
  parts: { weights: number; cache: number; compute: number }
  /** Limits that the engine must be started with (`LaunchSpec.bounds`) to stay within the estimate. */
  bounds: EngineBounds
}

export interface EnginePlace {
  devices: readonly Device[]
  /** Bytes of the machine's memory that all engines together may use. */
  memory: number
  /** In Node's naming. */
  arch: string
  /** Whether the processor has AMX, for which llama.cpp packs weights differently. */
  amx: boolean
  /** Bytes of each device to leave free, if llama.cpp does not do so by default. */
  margins?: readonly number[] | undefined
  /** Shares of the layers on each device, if they differ from llama.cpp's own. */
  shares?: readonly number[] | undefined
}

export type MetadataEstimate = ReturnType<typeof estimateFromMetadata>

export function addUse(...uses: readonly MemoryUse[]): MemoryUse {
  const all: MemoryUse = {}
  for (const use of uses) {
    for (const [pool, bytes] of Object.entries(use)) all[pool] = (all[pool] ?? 0) + bytes
  }
  return all
}

/** Returns the difference of each pool, which may be negative. */
export function subtractUse(use: MemoryUse, less: MemoryUse): MemoryUse {
  return addUse(use, Object.fromEntries(Object.entries(less).map(([pool, bytes]) => [pool, -bytes])))
}

export function getTotal(use: MemoryUse): number {
  return Object.values(use).reduce((sum, bytes) => sum + bytes, 0)
}

/** Collects the options that decide about memory, and the flags that override them. */
function computeOptions(spec: LaunchSpec, flags: EngineFlags): ComputeOptions {
  const { options, mode, settings } = spec
  const num_parallel = Math.max(1, flags.slots ?? options.num_parallel)
  const context = flags.context || options.num_ctx * options.num_parallel
  const num_ctx = Math.max(1, context / num_parallel)
  const pooled = mode !== 'chat'
  const { draft, mtp, companion, ngram } = settings?.speculation ?? {}
  const guessed = draft || mtp || companion ? (draft?.max_tokens ?? DRAFT_TOKENS) : ngram ? NGRAM_TOKENS : 0
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

/** Returns the bytes of a model's parts by its shape. If its metadata is missing, assumes a typical model. */
function getParts({ shape, size }: Weights, options: ComputeOptions, loras: number, copies: boolean): Parts {
  if (!shape) {
    const perToken = Math.min(512 * 1024, 16 * 1024 + size / 32768)
    const cache = perToken * options.num_ctx * options.num_parallel
    const compute = { layers: 256 * MIB + size / 16, io: 64 * MIB }
    return { input: 0, layers: [{ weights: size + loras, cache }], output: 0, copied: 0, compute }
  }
  const cache = cacheByLayer(shape, options)
  const { input, output, tied, other } = shape.weights
  const layers = shape.layers.map(({ weights }, at) => {
    return { weights: weights + loras / shape.layers.length, cache: cache[at]! }
  })
  const compute = computeSize(shape, options)
  return { input, layers, output: output + other, copied: tied && !copies ? output : 0, compute }
}

/** Whether the processor's code packs these weights. A token table that is also the output is then in memory twice. */
function packed({ weights, vocabulary, embedding }: ModelShape, { arch, amx }: EnginePlace): boolean {
  const bits = (8 * weights.output) / (vocabulary * embedding)
  return bits < (amx ? 17 : arch === 'arm64' ? 9 : 5)
}

/** The share of the machine's memory that checkpoints may use, and the most bytes. */
const CHECKPOINT_SHARE = 1 / 16
const MAX_CHECKPOINTS_SIZE = 2048 * MIB

/**
 * Returns how many checkpoints llama-server may make of each slot. It makes the maximum, so all are counted.
 * @param room bytes beside the model @param size bytes of a checkpoint of every slot
 */
function countCheckpoints(flags: EngineFlags, memory: number, room: number, size: number): number {
  if (flags.checkpoints !== undefined || size === 0) return flags.checkpoints ?? CHECKPOINTS
  const usual = Math.max(1, Math.floor(Math.min(MAX_CHECKPOINTS_SIZE, memory * CHECKPOINT_SHARE) / size))
  return Math.min(CHECKPOINTS, usual, Math.floor(room / size))
}

/** Estimates an engine's memory, in bytes, according to its files' metadata. */
export function estimateFromMetadata(spec: LaunchSpec, files: EngineFiles, where: EnginePlace) {
  const flags = engineFlags(spec.settings?.arguments ?? [])
  const options = computeOptions(spec, flags)
  const { shape } = files
  const devices = flags.hostOnly ? [] : where.devices
  const gpuLayers = flags.gpuLayers ?? spec.options.n_gpu_layers
  const first = devices[0]?.pool ?? 'host'
  const copied = (of: ModelShape | undefined) => of !== undefined && devices.length === 0 && packed(of, where)

  const copies = copied(shape)
  const parts = getParts(files, options, files.loras, copies)
  const projector = files.projector ? files.projector.size + files.projector.compute : 0
  let drafted: MemoryUse = {}
  if (files.draft) {
    // The draft model has the same conversations, with a 16-bit cache.
    const own: ComputeOptions = { ...options, cache_type_k: 'f16', cache_type_v: 'f16', guessed: 0 }
    const shared = devices.map(device => ({ ...device, overhead: 0 }))
    const draftLayers = spec.settings?.speculation.draft?.n_gpu_layers ?? -1
    drafted = place(getParts(files.draft, own, 0, copied(files.draft.shape)), shared, draftLayers).use
  }
  const reserved = addUse({ [first]: projector }, drafted)
  // Layers cannot use the room that other parts take on the devices.
  const roomier = devices.map(device => ({
    ...device,
    overhead: device.overhead + (device.pool === 'host' ? 0 : (reserved[device.pool] ?? 0))
  }))
  const placement = place(parts, roomier, gpuLayers, flags.hostCache)

  const overheads = devices.slice(0, placement.devices.length).map(({ pool, overhead }) => ({ [pool]: overhead }))
  const processSize =
    PROCESS + SLOT * options.num_parallel + TOKEN * (shape?.vocabulary ?? 0) + MERGE * (shape?.merges ?? 0)
  const unreported = addUse({ host: processSize }, { [first]: projector }, ...overheads)
  const cache = parts.layers.reduce((sum, layer) => sum + layer.cache, 0)
  const chat = spec.mode === 'chat'
  const start = addUse(placement.use, drafted, unreported).host ?? 0
  const checkpoint = chat && shape ? checkpointSize(shape, options) * options.num_parallel : 0
  const checkpoints = countCheckpoints(flags, where.memory, Math.max(0, where.memory - start), checkpoint)
  const settled = devices.length === 0 || gpuLayers >= 0 || placement.layers === parts.layers.length + 1
  const margins = where.margins && gpuLayers < 0 ? { deviceMargins: where.margins } : {}
  // With explicit shares, llama.cpp does not place layers itself, but it must do so if not all fit.
  const shares = where.shares && settled && placement.devices.length > 0 ? { shares: where.shares } : {}
  const bounds: EngineBounds = { checkpoints, ...margins, ...shares }
  return {
    /** The memory that llama-server reports as its own, by pool. */
    core: placement.use,
    /** The memory of its draft model, which is also in its report. */
    draft: drafted,
    /** Memory used from the start that the report leaves out. */
    unreported,
    /** How much its use of the machine's memory may grow within its limits. */
    growth: checkpoints * checkpoint,
    bounds,
    weights: (shape ? totalWeights(shape, copies) : files.size) + files.loras,
    cache,
    /** Whether the placement is certain: all layers fit on the devices, their number was given, or there is no device. */
    settled
  }
}

type FlagName = keyof typeof figures.flags
/** Flags with a value, in all their spellings in llama-server's `--help`. Contexts are the tokens of all slots. */
const NAMES = new Map(
  Object.entries(figures.flags).flatMap(([name, flags]) =>
    flags.split(' ').map(flag => [flag, name as FlagName] as const)
  )
)
const MANY = 1e6

type EngineFlags = ReturnType<typeof engineFlags>

/** Parses how a model's own flags change its memory. llama-server checks other flags and invalid values. */
export function engineFlags(list: readonly string[]) {
  const has = (...flags: string[]) => list.some(flag => flags.includes(flag))
  const after = (...flags: string[]) => list[list.findLastIndex(flag => flags.includes(flag)) + 1]
  const cacheTypes: Partial<Pick<LoadOptions, 'cache_type_k' | 'cache_type_v'>> = {}
  const numbers: Partial<Record<Exclude<FlagName, keyof typeof cacheTypes>, number>> = {}
  for (const [at, flag] of list.entries()) {
    const name = NAMES.get(flag)
    const value = list[at + 1] ?? ''
    const number = value === 'all' ? MANY : Number(value)
    if (name === 'cache_type_k' || name === 'cache_type_v') cacheTypes[name] = value as LoadOptions['cache_type_k']
    else if (name && value.trim() !== '' && Number.isInteger(number)) numbers[name] = number
  }
  return {
    ...numbers,
    cacheTypes,
    flashAttention: !(
      has('-fa', '--flash-attn') && /^(off|false|0|disabled)$/.test(after('-fa', '--flash-attn') ?? '')
    ),
    unified: has('-kvu', '--kv-unified'),
    fullWindow: has('--swa-full'),
    hostOnly: has('-dev', '--device') && after('-dev', '--device') === 'none',
    hostCache: has('-nkvo', '--no-kv-offload')
  }
}

/** Factor by which a retry after running out of memory is assumed to need more. */
const MORE = 1.1

/** Returns the memory used from the start by metadata. */
export function fromMetadata({ core, draft, unreported }: MetadataEstimate): MemoryUse {
  return addUse(core, draft, unreported)
}

/** Returns the memory used from the start by the engine's report. `resident` is what the system reports. */
export function fromReport(report: MemoryUse, estimated: MetadataEstimate, resident: number | undefined): MemoryUse {
  const use = addUse(report, estimated.unreported)
  return { ...use, host: Math.max(use.host ?? 0, resident ?? 0) }
}

/** Raises each pool above the amount that was too little. */
export function beyond(use: MemoryUse, tooLittle: MemoryUse = {}): MemoryUse {
  const raised = Object.entries(tooLittle).map(([pool, bytes]) => [pool, Math.max(use[pool] ?? 0, bytes * MORE)])
  return { ...use, ...Object.fromEntries(raised) }
}

export function toNeed(estimated: MetadataEstimate, start: MemoryUse, from: EngineNeed['from']): EngineNeed {
  const use = addUse(start, { host: estimated.growth })
  for (const [pool, bytes] of Object.entries(use)) use[pool] = Math.max(0, Math.ceil(bytes))
  const weights = estimated.weights
  const cache = estimated.cache + estimated.growth
  const compute = Math.max(0, getTotal(use) - weights - cache)
  return { use, from, parts: { weights, cache, compute }, bounds: estimated.bounds }
}

/** A model's files. Sizes are bytes. */
interface Weights {
  shape: ModelShape | undefined
  size: number
}

export interface EngineFiles extends Weights {
  loras: number
  projector?: { size: number; compute: number }
  draft?: Weights
}

/** A missing file, or one of another kind, has size 0 here. The engine reports the problem. */
async function lookAt(path: string): Promise<{ size: number; mtimeMs: number }> {
  const { size = 0, mtimeMs = 0 } = (await stat(path).catch(() => undefined)) ?? {}
  return { size, mtimeMs }
}

const getSize = async (path: string) => (await lookAt(path)).size

async function headerOf(path: string): Promise<GgufHeader | undefined> {
  return readGgufHeader(path).catch(() => undefined)
}

/** The models whose files were read most recently, by their first file. Reading them again would delay each load. */
const known = new Map<string, { mark: string; weights: Weights }>()
const MAX_KNOWN = 100

/** @param info the store's record of the model, for files that cannot be read */
async function weightsIn(path: string, info: Record<string, unknown>, amx: boolean): Promise<Weights> {
  const paths = shardNames(path)
  const files = await Promise.all(paths.map(lookAt))
  const mark = [amx, ...files.map(({ size, mtimeMs }) => `${size} ${mtimeMs}`)].join()
  const before = known.get(path)
  if (before?.mark === mark) return before.weights
  const headers = await Promise.all(paths.map(headerOf))
  const size = files.reduce((sum, file) => sum + file.size, 0)
  const tensors = headers.flatMap(header => header?.tensors ?? [])
  const isWhole = headers.every(header => header !== undefined)
  // The size of a type that is newer than corral is unknown.
  const sized = isWhole && tensors.every(({ bytes }) => bytes > 0)
  const weights = { shape: modelShape(headers[0]?.keys ?? info, sized ? tensors : undefined, size, amx), size }
  if (isWhole) setNewest(known, path, { mark, weights }, MAX_KNOWN)
  return weights
}

async function projectorIn(path: string): Promise<EngineFiles['projector']> {
  const [size, header] = await Promise.all([getSize(path), headerOf(path)])
  return { size, compute: projectorCompute(header?.keys, size) }
}

/** Reads the facts about memory from an engine's files, otherwise from the store's record. Never rejects. */
export async function engineFiles(spec: LaunchSpec, amx = false): Promise<EngineFiles> {
  const { loras = [], speculation } = spec.settings ?? {}
  const draftPath = spec.mode === 'chat' ? (speculation?.draft?.modelPath ?? speculation?.companion) : undefined
  const [model, projector, draft, ...adapters] = await Promise.all([
    weightsIn(spec.modelPath, spec.variant.metadata.info, amx),
    spec.projectorPath === undefined ? undefined : projectorIn(spec.projectorPath),
    draftPath === undefined ? undefined : weightsIn(draftPath, {}, amx),
    ...loras.map(({ path }) => getSize(path))
  ])
  return {
    shape: model.shape,
    size: model.size || spec.variant.size,
    loras: adapters.reduce((sum, bytes) => sum + bytes, 0),
    ...(projector ? { projector } : {}),
    ...(draft ? { draft } : {})
  }
}

const F32 = 4

/**
 * Returns the bytes that a projector needs for an image: the attention scores of all patches, and the widest step of a
 * layer (tools/mtmd/clip.cpp without flash attention). Without keys, returns the size of its weights.
 */
export function projectorCompute(keys: Readonly<Record<string, unknown>> | undefined, weights: number): number {
  const number = (name: string) => Number(keys?.[`clip.vision.${name}`] ?? 0)
  const side = number('patch_size') > 0 ? number('image_size') / number('patch_size') : 0
  const patches = side * side
  const widest = 3 * number('feed_forward_length') + 5 * number('embedding_length')
  if (!(patches > 0 && widest > 0)) return weights
  return F32 * patches * (widest + patches * number('attention.head_count'))
}
