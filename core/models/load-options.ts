import { type Static, Type } from 'typebox'

const CACHE_TYPES = ['f32', 'f16', 'bf16', 'q8_0', 'q4_0', 'q4_1', 'iq4_nl', 'q5_0', 'q5_1'] as const

/** The largest number that engines accept. */
export const MAX_INT = 2 ** 31 - 1

export const LoadOptionsSchema = Type.Object({
  num_ctx: Type.Integer({ minimum: 1, maximum: MAX_INT, description: 'Context window of one conversation, in tokens' }),
  num_parallel: Type.Integer({ minimum: 1, maximum: 256, description: 'Parallel slots in the inference server' }),
  n_gpu_layers: Type.Integer({
    minimum: -1,
    maximum: MAX_INT,
    description: 'Layers offloaded to the GPU; -1 is automatic'
  }),
  cache_type_k: Type.Enum([...CACHE_TYPES], { description: 'Type of the KV cache keys' }),
  cache_type_v: Type.Enum([...CACHE_TYPES], { description: 'Type of the KV cache values' }),
  dtype: Type.String({
    pattern: '^[A-Za-z0-9_]{2,16}$',
    description: 'Output precision of the automatic SafeTensors → GGUF conversion'
  })
})
export type LoadOptions = Static<typeof LoadOptionsSchema>

/** `n_gpu_layers: -1` leaves the choice to the engine. */
export const DEFAULT_LOAD_OPTIONS: LoadOptions = {
  num_ctx: 4096,
  num_parallel: 4,
  n_gpu_layers: -1,
  cache_type_k: 'f16',
  cache_type_v: 'f16',
  dtype: 'f16'
}
