import { createHash } from 'node:crypto'
import { json, text } from 'node:stream/consumers'
import type { LlamaServerEngine } from '../engine.ts'
import type { LaunchSpec } from '../launch-spec.ts'
import { modelShape } from '../memory/model-shape.ts'
import { cacheByLayer } from '../memory/model-sizes.ts'

/*
 * What llama-server's HTTP interface offers for slots (tools/server/README.md: GET /slots, POST /slots/{id}?action=…,
 * GET /metrics).
 */

export interface SlotUse {
  id: number
  /** Tokens in its cache; undefined where the build does not say. */
  tokens: number | undefined
  /** Grows with each task of the engine, so that the latest used slot has the highest one. */
  task: number
}

/** The slots that have answered something since the engine's start. @throws Error when the engine does not answer */
export async function usedSlots(engine: LlamaServerEngine, signal: AbortSignal): Promise<SlotUse[]> {
  const { status, body } = await engine.request({ method: 'GET', path: '/slots', signal })
  const slots = await json(body)
  if (status !== 200 || !Array.isArray(slots)) throw new Error(`GET /slots: status ${status}`)
  return slots.flatMap(slot =>
    typeof slot?.id === 'number' && typeof slot.id_task === 'number'
      ? [{ id: slot.id, task: slot.id_task, tokens: numberOf(slot.n_prompt_tokens) }]
      : []
  )
}

/** Saves or restores a slot: its tokens, and the bytes written. @throws Error with the engine's own words */
export async function slotAction(
  engine: LlamaServerEngine,
  id: number,
  action: 'save' | 'restore',
  filename: string,
  signal: AbortSignal
): Promise<{ tokens: number; bytes: number }> {
  const { status, body } = await engine.request({
    method: 'POST',
    path: `/slots/${id}?action=${action}`,
    body: JSON.stringify({ filename }),
    signal
  })
  const reply = (await json(body)) as Record<string, unknown>
  if (status === 200) {
    return { tokens: numberOf(reply.n_saved ?? reply.n_restored) ?? 0, bytes: numberOf(reply.n_written) ?? 0 }
  }
  const message = (reply?.error as { message?: unknown } | undefined)?.message
  throw new Error(typeof message === 'string' ? message : `status ${status}`)
}

/** Milliseconds that a token of a prompt took to read, on average; undefined where too few were read to say. */
export async function promptPace(engine: LlamaServerEngine, signal: AbortSignal): Promise<number | undefined> {
  const { status, body } = await engine.request({ method: 'GET', path: '/metrics', signal })
  const metrics = await text(body)
  const count = (name: string) => Number(new RegExp(`^llamacpp:${name} (\\S+)$`, 'm').exec(metrics)?.[1])
  const tokens = count('prompt_tokens_total')
  const seconds = count('prompt_seconds_total')
  // Single tokens take longer than those of a batch.
  return status === 200 && tokens >= 256 && seconds > 0 ? (seconds * 1000) / tokens : undefined
}

function numberOf(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined
}

/*
 * Which engines' slots can be saved, and which saved slot fits which engine. What llama-server writes for a slot is
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

/**
 * Whether the slots of such an engine can be saved and are of use after a restore: chats of models whose attention
 * reaches the whole context, without a draft model, whose own cache is not in the file: it would guess badly for the
 * rest of the conversation (7 of 100 guesses were right instead of 57). Decided by metadata; an unknown architecture
 * counts as such a model, and when it is none, llama-server finds that out itself and reads the prompt again.
 */
export function savesSlots(spec: LaunchSpec): boolean {
  if (spec.mode !== 'chat' || spec.settings?.speculation.draft) return false
  if (UNSUITABLE.has(spec.variant.metadata.architecture ?? '')) return false
  const shape = shapeOf(spec)
  return !shape || (shape.window === 0 && shape.layers.every(layer => layer.state === 0))
}

function shapeOf({ variant }: LaunchSpec) {
  const { architecture, info } = variant.metadata
  return modelShape({ ...info, 'general.architecture': architecture }, undefined, variant.size)
}

/**
 * Names all that a slot's cache depends on; a saved one is given only to engines with the same key. `stamps` distinguish
 * files outside the model's revision, such as LoRA adapters (size and time of change).
 *
 * Not in it: the context, of which a larger or smaller one does as long as the tokens fit (but for models that choose
 * their rope factors by it), the number of slots, and where layers run.
 */
export function cacheKey(
  { spec, build, sharedArguments }: Pick<LlamaServerEngine, 'spec' | 'build' | 'sharedArguments'>,
  stamps: readonly string[]
): string {
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
    arguments: [...sharedArguments, ...(settings?.arguments ?? [])],
    environment: settings?.environment,
    stamps
  }
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex')
}

/** Files outside the model's revision that its caches depend on. */
export function outsideFiles({ settings, projectorPath }: LaunchSpec): string[] {
  return [...(settings?.loras ?? []).map(lora => lora.path), ...(projectorPath === undefined ? [] : [projectorPath])]
}

/** What llama-server writes for each token beside the cache itself: its number, position and sequence. */
const TOKEN_BYTES = 16
/** Tokens that the size of a cache is estimated for. */
const STEP = 256

/** About how many bytes a token takes in a saved cache, by the model's metadata; undefined where that is too scarce. */
export function bytesPerToken(spec: LaunchSpec): number | undefined {
  const shape = shapeOf(spec)
  if (!shape) return undefined
  const layers = cacheByLayer(shape, { ...spec.options, num_ctx: STEP, num_parallel: 1, batch: STEP })
  return layers.reduce((sum, bytes) => sum + bytes, 0) / STEP + TOKEN_BYTES
}
