import { type CacheOptions, cells } from './cache-size.ts'
import type { ModelShape } from './model-shape.ts'

const F32 = 4
const F16 = 2

/** How an engine is asked to compute. */
export interface ComputeOptions extends CacheOptions {
  flashAttention: boolean
  /** Texts are embedded or ranked: nothing is told of next tokens. */
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
  // Where texts are embedded, llama.cpp reckons with the output of each token, which encoders do not have.
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
