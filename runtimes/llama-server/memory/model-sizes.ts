import type { LoadOptions } from '../../../core/models/load-options.ts'
import type { LayerShape, ModelShape } from './model-shape.ts'

/** Bytes of a number in the cache, by ggml's blocks of 32 with their scales. */
const BYTES: Record<LoadOptions['cache_type_k'], number> = {
  f32: 4,
  f16: 2,
  bf16: 2,
  q8_0: 34 / 32,
  q5_1: 24 / 32,
  q5_0: 22 / 32,
  q4_1: 20 / 32,
  q4_0: 18 / 32,
  iq4_nl: 18 / 32
}

/** The options that decide the size of the cache. */
export interface CacheOptions extends Pick<LoadOptions, 'num_ctx' | 'num_parallel' | 'cache_type_k' | 'cache_type_v'> {
  /** Tokens that are evaluated at once. */
  batch: number
  /** All slots share one cache (`--kv-unified`). */
  unified?: boolean
  /** Layers with a window keep everything (`--swa-full`). */
  fullWindow?: boolean
}

const pad = (tokens: number) => Math.ceil(tokens / 256) * 256

/**
 * Tokens that the cache of each slot holds, in layers without and with a window. Both are multiples of 256
 * (`llama_context::llama_context`, `llama_kv_cache_iswa` in llama.cpp's src/).
 */
export function cells(shape: Pick<ModelShape, 'window'>, options: CacheOptions): { full: number; windowed: number } {
  const slots = options.num_parallel
  const all = pad(options.num_ctx * slots)
  const full = options.unified ? all / slots : pad(Math.floor(all / slots))
  if (options.fullWindow || shape.window === 0) return { full, windowed: full }
  const windows = options.unified ? shape.window * slots : shape.window
  const windowed = pad(Math.min(options.unified ? all : full, windows + options.batch))
  return { full, windowed: options.unified ? windowed / slots : windowed }
}

/** Bytes that one slot's cache takes in a layer. */
function slotBytes(layer: LayerShape, tokens: number, options: CacheOptions): number {
  return tokens * (layer.keys * BYTES[options.cache_type_k] + layer.values * BYTES[options.cache_type_v]) + layer.state
}

/** Bytes of each layer's cache for all slots: keys and values (`llama_kv_cache`), states (`llama_memory_recurrent`). */
export function cacheByLayer(shape: ModelShape, options: CacheOptions): number[] {
  const { full, windowed } = cells(shape, options)
  return shape.layers.map(layer => options.num_parallel * slotBytes(layer, layer.windowed ? windowed : full, options))
}

/**
 * Bytes of a checkpoint of a slot: what cannot be rolled back, which llama-server copies now and then where a model has
 * windows or states (`--ctx-checkpoints`); 0 for other models.
 */
export function checkpointSize(shape: ModelShape, options: CacheOptions): number {
  const { windowed } = cells(shape, options)
  const size = (layer: LayerShape) => (layer.windowed ? slotBytes(layer, windowed, options) : layer.state)
  return options.fullWindow ? 0 : shape.layers.reduce((sum, layer) => sum + size(layer), 0)
}

const F32 = 4
const F16 = 2

/** The options that decide the size of the compute buffers. */
export interface ComputeOptions extends CacheOptions {
  flashAttention: boolean
  /** Texts are embedded or ranked: no next tokens are predicted. */
  pooled: boolean
  /** Tokens guessed ahead. */
  guessed: number
}

/** Bytes of the buffers that a batch is computed in. */
export interface ComputeSize {
  /** Where layers are computed. */
  layers: number
  /** Beside that in the machine's memory when layers are computed elsewhere: what goes in and comes out. */
  io: number
}

/**
 * What `llama_context::sched_reserve` reserves for a whole batch. The graph's buffers are shared between its steps, so
 * the widest step decides: the feed-forward net, or the scores of attention where flash attention is off. The sums are
 * found by comparison with llama.cpp's own figures for many shapes (test/memory), where they are at most a third too
 * large.
 */
export function computeSize(shape: ModelShape, options: ComputeOptions): ComputeSize {
  const { full, windowed } = cells(shape, options)
  const slots = options.num_parallel
  const rows = Math.min(options.batch, full * slots)
  const { embedding, queries, feedForward, expertsFeedForward, expertsUsed } = shape
  const cached = Math.max(0, ...shape.layers.map(layer => layer.keys + layer.values))
  const width = Math.max(queries, embedding)

  const net = 3 * feedForward + 3 * embedding + width
  const experts = expertsUsed > 0 ? 2 * expertsUsed * embedding + 2 * expertsFeedForward + 3 * embedding : 0
  let widest = Math.max(net, experts)
  // Where texts are embedded, llama.cpp reserves the output of each token, which encoders do not have.
  if (options.pooled && shape.layers.some(layer => layer.keys > 0 || layer.state > 0)) {
    widest = Math.max(widest, shape.vocabulary + 3 * embedding + 2 * width)
  }
  if (!options.flashAttention) widest = Math.max(widest, full * shape.heads + 3 * embedding + 3 * width + cached)
  // Recurrent layers work on copies of their states, one for each conversation.
  const state = Math.max(0, ...shape.layers.map(layer => layer.state))
  const states = state * slots * 2
  const chunks = state > 0 ? rows * F32 * 4 * width : 0

  const mask = rows * (full + (shape.window > 0 ? windowed : 0)) * (options.flashAttention ? F16 : F32)
  const outputs = options.pooled ? 0 : 2 * F32 * shape.vocabulary * slots * (1 + options.guessed)
  const fed = rows * F32 * embedding
  return { layers: rows * F32 * widest + states + chunks + mask + outputs, io: 2 * fed + mask + outputs }
}
