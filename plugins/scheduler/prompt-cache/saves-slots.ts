import { createHash } from 'node:crypto'
import type { Build } from '../../../core/runtimes.ts'
import type { EngineSpec } from '../../../core/services.ts'

/*
 * Which engines' slots are worth saving, and which saved slot fits which engine. What llama-server writes for a slot is
 * the tokens and the state of its memory, but not the checkpoints that it keeps beside (llama.cpp issues 25913, 28194).
 */

/**
 * Architectures that keep no cell for every token of the conversation: recurrent and hybrid ones (`llm_arch_is_recurrent`,
 * `llm_arch_is_hybrid` in llama-arch.cpp) and those with sliding windows (`swa_type` in src/models). Without their
 * checkpoints llama-server reads the whole prompt again after a restore; `--swa-full` does not help, since cells outside
 * the window are left out of the file all the same. Others here keep more than one cache, or none.
 */
const UNSUITABLE = new Set(
  `mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7
  jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next kimi-linear kimi-k3 bailingmoe3
  qwen35 qwen35moe qwen4exp deepseek4 minimax-01
  gemma2 gemma3 gemma3n gemma4 llama4 cohere2 cohere2moe gpt-oss mimo2 step35 spark2_5 maple muse-glimmer granite_swa
  deepseek32 glm-dsa hy_v4 dots3note minimax-m3 dflash
  t5 dream llada llada-moe rnd1`.split(/\s+/)
)

/** Their GGUF files name a window that llama.cpp does not use. */
const WINDOW_UNUSED = new Set(['phi3', 'llama'])

/** Keys of metadata that only models with a recurrent state have. */
const RECURRENT_KEY = /\.(?:ssm|wkv|shortconv|kda)\./

/**
 * Whether the slots of such an engine can be saved and are of use after a restore: chats of models whose attention
 * reaches the whole context. Decided by metadata; an unknown architecture counts as such a model, and when it is none,
 * llama-server finds that out itself and reads the prompt again.
 */
export function savesSlots({ mode, variant }: EngineSpec): boolean {
  const { architecture = '', info } = variant.metadata
  if (mode !== 'chat' || UNSUITABLE.has(architecture)) return false
  if (Number(info[`${architecture}.attention.sliding_window`] ?? 0) > 0 && !WINDOW_UNUSED.has(architecture))
    return false
  return !Object.keys(info).some(key => RECURRENT_KEY.test(key))
}

/**
 * Names all that a slot's cache depends on; a saved one is given only to engines with the same key. `stamps` tell files
 * apart that lie outside the model's revision, such as LoRA adapters (size and time of change).
 *
 * Not in it: the context, of which a larger or smaller one does as long as the tokens fit (but for models that choose
 * their rope factors by it), the number of slots, and where layers run.
 */
export function cacheKey(spec: EngineSpec, build: Build, stamps: readonly string[]): string {
  const { variant, options, settings } = spec
  const { architecture, info } = variant.metadata
  const original = Number(info[`${architecture}.rope.scaling.original_context_length`] ?? 0)
  const parts = {
    format: 1,
    revision: variant.revision,
    dtype: variant.format === 'gguf' ? undefined : options.dtype,
    mode: spec.mode,
    build: [build.version, build.commit, build.commit === undefined ? build.digest : undefined],
    types: [options.cache_type_k, options.cache_type_v],
    longRope: original > 0 && options.num_ctx > original,
    projector: spec.projectorPath !== undefined,
    loras: settings?.loras,
    speculation: settings?.speculation,
    arguments: settings?.arguments,
    environment: settings?.environment,
    stamps
  }
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex')
}

/** Files outside the model's revision that its caches depend on. */
export function outsideFiles({ settings, projectorPath }: EngineSpec): string[] {
  return [...(settings?.loras ?? []).map(lora => lora.path), ...(projectorPath === undefined ? [] : [projectorPath])]
}

/** Bytes of one element of a cache, by its type. */
const ELEMENT: Record<string, number> = {
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

/** About how many bytes a token takes in a saved cache, by the model's metadata; undefined where that is too scarce. */
export function bytesPerToken({ variant, options }: EngineSpec): number | undefined {
  const { architecture, info } = variant.metadata
  const value = (name: string) => {
    const found = info[`${architecture}.${name}`]
    return typeof found === 'number' && found > 0 ? found : undefined
  }
  const layers = value('block_count')
  const heads = value('attention.head_count')
  const width = value('embedding_length')
  const k = ELEMENT[options.cache_type_k]
  const v = ELEMENT[options.cache_type_v]
  if (!layers || !heads || !width || !k || !v) return undefined
  const kvHeads = value('attention.head_count_kv') ?? heads
  const keys = value('attention.key_length') ?? width / heads
  const values = value('attention.value_length') ?? width / heads
  // Each cell is named by its position and sequence, and its token by its number.
  return layers * kvHeads * (keys * k + values * v) + 16
}
