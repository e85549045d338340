import { type GgufHeader, listLength } from '../../../core/models/gguf-file.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import architectures from '../architectures.json' with { type: 'json' }
import type { Parts } from './device-placement.ts'
import figures from './memory-figures.json' with { type: 'json' }

interface LayerShape {
  weights: number
  /** Numbers that each token stores in the cache, as keys and as values. */
  keys: number
  values: number
  /** Whether the cache stores only the tokens of the window. */
  windowed: boolean
  /** Bytes of state per conversation, whatever its length, in a recurrent layer. */
  state: number
}

export interface ModelShape {
  architecture: string
  /** Bytes outside the layers: token embeddings, output (which may be the token table a second time) and others. */
  weights: { input: number; output: number; tied: boolean; other: number }
  layers: LayerShape[]
  /** Tokens of the window. 0 without one. */
  window: number
  embedding: number
  /** Width of the widest part of a layer's feed-forward network, in numbers per token. */
  feedForward: number
  /** The same for all experts that a token passes through. 0 without experts. */
  expertsFeedForward: number
  expertsUsed: number
  heads: number
  /** Numbers in the queries of all heads. */
  queries: number
  vocabulary: number
  /** Token pairs that the tokenizer merges. As many as tokens if the file does not list its tokens. */
  merges: number
}

const TOKENS = 'tokenizer.ggml.tokens'
const RECURRENT = new Set(architectures.recurrent)
/** Encoders and diffusion models, which have no cache in llama.cpp (`llama_model::create_memory`). */
const UNCACHED = new Set(architectures.withoutCache)
/** Layers with both attention and a recurrent part. */
const BOTH = new Set(architectures.hybridLayers)
const GEMMA_3N_CACHED_LAYERS = 20
const STATE_TENSOR = /^(ssm_|time_mix_|shortconv\.)/
const ATTENTION_TENSOR = /^attn_(k|v|qkv|kv_a_mqa|kv_b)\./
const INPUT_TENSOR = /^(token_embd|per_layer_token_embd|position_embd)\.weight$/
const F32 = 4

type Tensor = GgufHeader['tensors'][number]
type Keys = Readonly<Record<string, unknown>>

function makeKeys(keys: Keys, architecture: string) {
  const value = (name: string) => keys[`${architecture}.${name}`]
  const list = (name: string) => {
    const found = value(name)
    return Array.isArray(found) ? found : undefined
  }
  const number = (name: string) => {
    const found = value(name)
    return typeof found === 'number' && Number.isFinite(found) && found >= 0 ? found : undefined
  }
  return {
    list,
    number,
    /** The value for one layer, if layers differ. */
    at: (name: string, layer: number) => {
      const found: unknown = list(name)?.[layer]
      return typeof found === 'number' ? found : number(name)
    },
    largest: (name: string) => {
      const found = list(name)?.filter(entry => typeof entry === 'number')
      return found?.length ? Math.max(...found) : number(name)
    }
  }
}
type KeyReader = ReturnType<typeof makeKeys>

/** Returns the bytes of a recurrent layer's state for one conversation (`llama_hparams::n_embd_r`, `n_embd_s`, F32). */
function getState(read: KeyReader, embedding: number, heads: number): number {
  const of = (name: string) => read.number(name) ?? 0
  const wkv = of('wkv.head_size')
  if (wkv) return F32 * embedding * ((read.number('token_shift_count') ?? 2) + wkv)
  const short = of('shortconv.l_cache')
  if (short) return F32 * embedding * (short - 1)
  const kernel = of('ssm.conv_kernel')
  const kda = of('kda.head_dim')
  if (kda) return F32 * heads * kda * (3 * (kernel ? kernel - 1 : 3) + kda)
  const inner = of('ssm.inner_size')
  const size = of('ssm.state_size')
  return F32 * (Math.max(kernel - 1, 0) * (inner + 2 * of('ssm.group_count') * size) + size * inner)
}

/** Returns the numbers that a token stores in a layer (`llama_hparams::n_embd_k_gqa`, `n_embd_v_gqa`, `is_mla`). */
function getAttention(read: KeyReader, layer: number, headLength: number, windowed: boolean) {
  const kvHeads = read.at('attention.head_count_kv', layer) ?? read.at('attention.head_count', layer) ?? 0
  const length = (name: string) => (windowed ? read.number(`attention.${name}_swa`) : undefined)
  const keyLength = length('key_length') ?? read.number('attention.key_length') ?? headLength
  const valueLength = length('value_length') ?? read.number('attention.value_length') ?? headLength
  // With multi-head latent attention the keys include the values.
  const latent = read.number('attention.key_length_mla') && read.number('attention.value_length_mla')
  const indexer = read.number('attention.indexer.key_length') ?? 0
  return { keys: keyLength * kvHeads + indexer, values: latent ? 0 : valueLength * kvHeads }
}

function layerTensors(tensors: Tensor[], count: number, getSize: (tensor: Tensor) => number) {
  const layers = Array.from({ length: count }, () => ({ bytes: 0, state: false, attention: false }))
  for (const tensor of tensors) {
    const match = /^blk\.(\d+)\.(.*)$/.exec(tensor.name)
    const layer = match && layers[Number(match[1])]
    if (!layer) continue
    layer.bytes += getSize(tensor)
    layer.state ||= STATE_TENSOR.test(match[2]!)
    layer.attention ||= ATTENTION_TENSOR.test(match[2]!)
  }
  return layers
}

/** Infers the kind of a layer from the keys alone. Assumes both kinds if the keys do not show it. */
function guessedLayer(architecture: string, read: KeyReader, layer: number, state: number) {
  if (RECURRENT.has(architecture)) return { attention: false, state: true }
  if (state === 0) return { attention: true, state: false }
  const interval = read.number('full_attention_interval') ?? (/^qwen3(next|5)/.test(architecture) ? 4 : undefined)
  if (interval) {
    const attention = (layer + 1) % interval === 0
    return { attention, state: !attention }
  }
  const kvHeads = read.list('attention.head_count_kv')?.[layer]
  return { attention: kvHeads !== 0, state: kvHeads === undefined || kvHeads === 0 || BOTH.has(architecture) }
}

/**
 * Returns a model's shape by its metadata and, if known, its tensors. Undefined if the keys do not describe it.
 * @param keys of the first file. If lists such as heads by layer are missing, the guess is on the large side
 * @param bytes of all model files, used if the tensors are unknown
 */
export function modelShape(
  keys: Keys,
  tensors: Tensor[] | undefined,
  bytes: number,
  amx = false
): ModelShape | undefined {
  const architecture = keys['general.architecture']
  if (typeof architecture !== 'string') return undefined
  const read = makeKeys(keys, architecture)
  const count = read.number('block_count')
  const embedding = read.number('embedding_length')
  if (!count || !embedding || count > 4096) return undefined

  const heads = read.largest('attention.head_count') ?? 0
  const headLength = heads > 0 ? embedding / heads : 0
  const trunk = count - (read.number('nextn_predict_layers') ?? 0)
  const shared = read.number('attention.shared_kv_layers')
  const cached = architecture === 'gemma3n' ? GEMMA_3N_CACHED_LAYERS : shared ? count - shared : count
  const window = slidingWindow(architecture, count, read)
  const state = getState(read, embedding, heads)
  const getSize = amx ? packedForAmx : (tensor: Tensor) => tensor.bytes
  const known = tensors?.length ? layerTensors(tensors, count, getSize) : undefined
  const table = tensors?.find(tensor => tensor.name === 'token_embd.weight')
  // Few models in use have a larger vocabulary.
  const vocabulary = table?.shape[1] ?? read.number('vocab_size') ?? listLength(keys[TOKENS]) ?? 262_144

  const makeLayer = (layer: number): LayerShape => {
    const own = known?.[layer] ?? { ...guessedLayer(architecture, read, layer, state), bytes: 0 }
    const windowed = window?.has(layer) ?? false
    const recurrent = own.state && state > 0
    const attends =
      own.attention &&
      (!recurrent || BOTH.has(architecture) || !known) &&
      layer < Math.min(trunk, cached) &&
      !UNCACHED.has(architecture) &&
      !RECURRENT.has(architecture)
    const attention = attends ? getAttention(read, layer, headLength, windowed) : { keys: 0, values: 0 }
    return { weights: own.bytes, ...attention, windowed, state: recurrent ? state : 0 }
  }

  const layers = Array.from({ length: count }, (_, layer) => makeLayer(layer))
  const expertsUsed = read.largest('expert_used_count') ?? 0
  const feedForward = read.largest('feed_forward_length') ?? 0
  const expertLength = read.largest('expert_feed_forward_length') ?? feedForward
  return {
    architecture,
    weights: placeWeights(layers, tensors, bytes, vocabulary * embedding, getSize),
    layers,
    window: window?.tokens ?? 0,
    embedding,
    feedForward: Math.max(feedForward, read.number('ssm.inner_size') ?? 0),
    expertsFeedForward: expertsUsed * expertLength,
    expertsUsed,
    heads,
    queries: heads * (read.number('attention.key_length_mla') ?? read.number('attention.key_length') ?? headLength),
    vocabulary,
    merges: keys[TOKENS] === undefined ? vocabulary : (listLength(keys['tokenizer.ggml.merges']) ?? 0)
  }
}

/** Estimates the weights of layers if the tensors are unknown. The rest are the weights outside the layers. */
function placeWeights(
  layers: LayerShape[],
  tensors: Tensor[] | undefined,
  bytes: number,
  table: number,
  getSize: (tensor: Tensor) => number
): ModelShape['weights'] {
  if (tensors && layers.some(layer => layer.weights > 0)) {
    const outside = tensors.filter(({ name }) => !/^blk\.\d+\./.test(name))
    const tokens = outside.find(({ name }) => name === 'token_embd.weight')
    const output = outside.find(({ name }) => name === 'output.weight')
    const inputs = outside.filter(({ name }) => INPUT_TENSOR.test(name))
    const others = outside.filter(tensor => tensor !== output && !inputs.includes(tensor))
    const sum = (sizes: number[]) => sizes.reduce((total, size) => total + size, 0)
    return {
      // Looked up, not multiplied, so never packed.
      input: sum(inputs.map(tensor => tensor.bytes)),
      output: output || tokens ? getSize((output ?? tokens)!) : 0,
      tied: output === undefined,
      other: sum(others.map(getSize))
    }
  }
  // A byte per number is between usual quantizations and F16.
  const input = Math.min(table, bytes / 3)
  for (const layer of layers) layer.weights = (bytes - input) / layers.length
  return { input, output: input, tied: true, other: 0 }
}

/** Returns the bytes of a matrix in the layout for AMX (`get_row_size` in ggml-cpu/amx/mmq.cpp), by bits per number. */
function packedForAmx({ shape, bytes }: Tensor): number {
  if (shape.length !== 2) return bytes
  const bits = (8 * bytes) / (shape[0]! * shape[1]!)
  return bytes * (AMX_GROWTH[bits] ?? 1)
}

/** By bits: Q8_0, Q4_K, Q5_K, IQ4_XS. Q4_0 has as many bits as Q4_K but does not grow, so its estimate is too high. */
const AMX_GROWTH: Record<number, number> = { 8.5: 38 / 34, 4.5: 148 / 144, 5.5: 180 / 176, 4.25: 138 / 136 }

/** Bytes of all weights. @param copies whether a token table that is also the output is in memory twice */
export function totalWeights({ weights, layers }: ModelShape, copies = false): number {
  const outside = weights.input + (weights.tied && !copies ? 0 : weights.output) + weights.other
  return layers.reduce((sum, layer) => sum + layer.weights, outside)
}

/** Which layers of a model store only a window of the conversation. */
interface Pattern {
  /** One in this many layers sees the whole conversation. */
  period: number
  /** Whether the first layers are dense. If not, the last layers are. */
  denseFirst?: boolean
  /** Tokens of the window if the file does not say. If this is absent too, such a file has no window. */
  window?: number
  /** The file's number is ignored. */
  fixed?: boolean
  /** Only models with this many layers have a window. */
  layers?: number
}

/**
 * The architectures with a window cache in llama.cpp (`load_swa_pattern` in src/models/*.cpp of v0.5.0). Others are
 * assumed to cache everything, even if their files name a window. Phi and Mistral files do, and llama.cpp ignores it.
 */
const PATTERNS: Record<string, Pattern> = architectures.windows
/** These architectures list the kind of each layer. */
const LISTED = new Set(architectures.windowsByList)

/** Reads the window of a model from the keys of its file: its tokens, and which layers have one. */
function slidingWindow(architecture: string, layers: number, read: KeyReader) {
  const window = read.number('attention.sliding_window')
  const list = read.list('attention.sliding_window_pattern')
  const pattern = PATTERNS[architecture]
  if (!pattern && !LISTED.has(architecture)) return undefined
  if (pattern?.layers !== undefined && pattern.layers !== layers) return undefined
  const tokens = (pattern?.fixed && window !== 0 ? pattern.window : window) ?? pattern?.window
  if (!tokens) return undefined
  if (list) return { tokens, has: (layer: number) => Boolean(list[layer]) }
  const period = read.number('attention.sliding_window_pattern') ?? pattern?.period
  if (period === undefined) return undefined
  // llama_hparams::set_swa_pattern
  return {
    tokens,
    has: (layer: number) => period === 0 || (pattern?.denseFirst ? layer % period !== 0 : layer % period < period - 1)
  }
}

/** Bytes of a number in the cache, by ggml's blocks of 32 with their scales. */
const BYTES: Record<LoadOptions['cache_type_k'], number> = figures.cacheBytes

export interface CacheOptions extends Pick<LoadOptions, 'num_ctx' | 'num_parallel' | 'cache_type_k' | 'cache_type_v'> {
  /** Tokens that are evaluated together. */
  batch: number
  /** Whether all slots share one cache (`--kv-unified`). */
  unified?: boolean
  /** Whether layers with a window cache everything (`--swa-full`). */
  fullWindow?: boolean
}

const pad = (tokens: number) => Math.ceil(tokens / 256) * 256

/** Returns the tokens that each slot's cache holds, in layers without and with a window (`llama_kv_cache_iswa`). */
export function cells(shape: Pick<ModelShape, 'window'>, options: CacheOptions): { full: number; windowed: number } {
  const slots = options.num_parallel
  const all = pad(options.num_ctx * slots)
  const full = options.unified ? all / slots : pad(Math.floor(all / slots))
  if (options.fullWindow || shape.window === 0) return { full, windowed: full }
  const windows = options.unified ? shape.window * slots : shape.window
  const windowed = pad(Math.min(options.unified ? all : full, windows + options.batch))
  return { full, windowed: options.unified ? windowed / slots : windowed }
}

function slotBytes(layer: LayerShape, tokens: number, options: CacheOptions): number {
  return tokens * (layer.keys * BYTES[options.cache_type_k] + layer.values * BYTES[options.cache_type_v]) + layer.state
}

/** Returns the bytes of each layer's cache for all slots (`llama_kv_cache`, `llama_memory_recurrent`). */
export function cacheByLayer(shape: ModelShape, options: CacheOptions): number[] {
  const { full, windowed } = cells(shape, options)
  return shape.layers.map(layer => options.num_parallel * slotBytes(layer, layer.windowed ? windowed : full, options))
}

/** Returns the bytes of a slot's checkpoint (`--ctx-checkpoints`): the parts that cannot be rolled back. */
export function checkpointSize(shape: ModelShape, options: CacheOptions): number {
  const { windowed } = cells(shape, options)
  const size = (layer: LayerShape) => (layer.windowed ? slotBytes(layer, windowed, options) : layer.state)
  return options.fullWindow ? 0 : shape.layers.reduce((sum, layer) => sum + size(layer), 0)
}

const F16 = 2

export interface ComputeOptions extends CacheOptions {
  flashAttention: boolean
  /** Whether texts are embedded or ranked, so that no next tokens are predicted. */
  pooled: boolean
  /** Tokens guessed ahead. */
  guessed: number
}

/**
 * Estimates the memory that `llama_context::sched_reserve` reserves for a whole batch. The steps of a graph share its
 * buffers, so the widest step decides: the feed-forward network, or the attention scores if flash attention is off. The
 * formula was fitted to llama.cpp's own figures for many shapes (test/runtimes/llama-server/memory), and is at most a
 * third too high.
 * @returns bytes where layers are computed, and in the machine's memory when they are computed elsewhere
 */
export function computeSize(shape: ModelShape, options: ComputeOptions): Parts['compute'] {
  const { full, windowed } = cells(shape, options)
  const slots = options.num_parallel
  const rows = Math.min(options.batch, full * slots)
  const { embedding, queries, feedForward, expertsFeedForward, expertsUsed } = shape
  const cached = Math.max(0, ...shape.layers.map(layer => layer.keys + layer.values))
  const width = Math.max(queries, embedding)

  const net = 3 * feedForward + 3 * embedding + width
  const experts = expertsUsed > 0 ? 2 * expertsUsed * embedding + 2 * expertsFeedForward + 3 * embedding : 0
  let widest = Math.max(net, experts)
  // For embeddings, llama.cpp reserves the output of each token. Encoders have no such output.
  if (options.pooled && shape.layers.some(layer => layer.keys > 0 || layer.state > 0)) {
    widest = Math.max(widest, shape.vocabulary + 3 * embedding + 2 * width)
  }
  if (!options.flashAttention) widest = Math.max(widest, full * shape.heads + 3 * embedding + 3 * width + cached)
  // Recurrent layers work on copies of their states, one per conversation.
  const state = Math.max(0, ...shape.layers.map(layer => layer.state))
  const states = state * slots * 2
  const chunks = state > 0 ? rows * F32 * 4 * width : 0

  const mask = rows * (full + (shape.window > 0 ? windowed : 0)) * (options.flashAttention ? F16 : F32)
  const outputs = options.pooled ? 0 : 2 * F32 * shape.vocabulary * slots * (1 + options.guessed)
  const fed = rows * F32 * embedding
  return { layers: rows * F32 * widest + states + chunks + mask + outputs, io: 2 * fed + mask + outputs }
}
