import type { GgufParts } from '../../../support/gguf-writer.ts'

/** ggml's type numbers. */
export const F32 = 0
export const F16 = 1
export const Q4_0 = 2
export const Q8_0 = 8
export const Q4_K = 12
export const Q6_K = 14
export const MXFP4 = 39

type Tensor = NonNullable<GgufParts['tensors']>[number]

/** A transformer as its configuration describes it. */
export interface Dense {
  arch: string
  layers: number
  embd: number
  heads: number
  kvHeads: number
  headLength?: number
  ff: number
  vocab: number
  context?: number
  /** Type of the matrices, of the token embedding and of the output. Without an output, the embedding is shared. */
  type?: number
  embdType?: number
  outputType?: number
  tied?: boolean
  qkNorm?: boolean
  biases?: boolean
  postNorms?: boolean
  fusedQkv?: boolean
  experts?: { count: number; used: number; ff: number }
  metadata?: GgufParts['metadata']
}

const matrix = (name: string, rows: number, columns: number, type: number): Tensor => ({
  name: `${name}.weight`,
  shape: [rows, columns],
  type
})
const vector = (name: string, length: number): Tensor => ({ name, shape: [length], type: F32 })

/** Returns the parts of a GGUF file of such a model, without a vocabulary. */
export function denseModel(given: Dense): Required<Pick<GgufParts, 'metadata' | 'tensors'>> {
  const { arch, layers, embd, heads, kvHeads, ff, vocab, type = Q4_K, experts } = given
  const head = given.headLength ?? embd / heads
  const tensors: Tensor[] = [
    matrix('token_embd', embd, vocab, given.embdType ?? type),
    vector('output_norm.weight', embd)
  ]
  if (!given.tied) tensors.push(matrix('output', embd, vocab, given.outputType ?? Q6_K))
  for (let il = 0; il < layers; il++) {
    const add = (name: string, rows: number, columns: number) =>
      tensors.push(matrix(`blk.${il}.${name}`, rows, columns, type))
    const norm = (name: string, length: number) => tensors.push(vector(`blk.${il}.${name}`, length))
    norm('attn_norm.weight', embd)
    if (given.fusedQkv) add('attn_qkv', embd, heads * head + 2 * kvHeads * head)
    else {
      add('attn_q', embd, heads * head)
      add('attn_k', embd, kvHeads * head)
      add('attn_v', embd, kvHeads * head)
    }
    add('attn_output', heads * head, embd)
    if (given.biases) {
      norm('attn_q.bias', heads * head)
      norm('attn_k.bias', kvHeads * head)
      norm('attn_v.bias', kvHeads * head)
    }
    if (given.qkNorm) {
      norm('attn_q_norm.weight', head)
      norm('attn_k_norm.weight', head)
    }
    if (given.postNorms) {
      norm('post_attention_norm.weight', embd)
      norm('post_ffw_norm.weight', embd)
    }
    if (arch !== 'gpt-oss') norm('ffn_norm.weight', embd)
    else {
      norm('post_attention_norm.weight', embd)
      norm('attn_sinks.weight', heads)
      norm('attn_output.bias', embd)
      norm('ffn_gate_inp.bias', experts!.count)
      for (const name of ['gate', 'up']) {
        tensors.push({ name: `blk.${il}.ffn_${name}_exps.bias`, shape: [experts!.ff, experts!.count] })
      }
      tensors.push({ name: `blk.${il}.ffn_down_exps.bias`, shape: [embd, experts!.count] })
    }
    if (experts) {
      tensors.push({ name: `blk.${il}.ffn_gate_inp.weight`, shape: [embd, experts.count] })
      for (const name of ['gate', 'up']) {
        tensors.push({ name: `blk.${il}.ffn_${name}_exps.weight`, shape: [embd, experts.ff, experts.count], type })
      }
      tensors.push({ name: `blk.${il}.ffn_down_exps.weight`, shape: [experts.ff, embd, experts.count], type })
    } else {
      if (!given.fusedQkv) add('ffn_gate', embd, ff)
      add('ffn_up', embd, given.fusedQkv ? 2 * ff : ff)
      add('ffn_down', ff, embd)
    }
  }
  return {
    metadata: {
      'general.architecture': arch,
      [`${arch}.block_count`]: layers,
      [`${arch}.context_length`]: given.context ?? 131072,
      [`${arch}.embedding_length`]: embd,
      [`${arch}.feed_forward_length`]: ff,
      [`${arch}.attention.head_count`]: heads,
      [`${arch}.attention.head_count_kv`]: kvHeads,
      [`${arch}.attention.layer_norm_rms_epsilon`]: 0.00001,
      [`${arch}.rope.dimension_count`]: head,
      ...(given.headLength ? { [`${arch}.attention.key_length`]: head, [`${arch}.attention.value_length`]: head } : {}),
      ...(experts
        ? {
            [`${arch}.expert_count`]: experts.count,
            [`${arch}.expert_used_count`]: experts.used,
            [`${arch}.expert_feed_forward_length`]: experts.ff
          }
        : {}),
      [`${arch}.vocab_size`]: vocab,
      'tokenizer.ggml.model': 'no_vocab',
      ...given.metadata
    },
    tensors
  }
}

/** Shapes of popular models, as published by their makers. */
export const SHAPES: Record<string, Dense> = {
  'llama-3.1-8b': { arch: 'llama', layers: 32, embd: 4096, heads: 32, kvHeads: 8, ff: 14336, vocab: 128256 },
  'llama-3.2-1b': {
    arch: 'llama',
    layers: 16,
    embd: 2048,
    heads: 32,
    kvHeads: 8,
    ff: 8192,
    vocab: 128256,
    tied: true,
    type: Q8_0,
    metadata: { 'llama.rope.dimension_count': 64 }
  },
  'llama-2-7b': {
    arch: 'llama',
    layers: 32,
    embd: 4096,
    heads: 32,
    kvHeads: 32,
    ff: 11008,
    vocab: 32000,
    context: 4096,
    type: Q4_0
  },
  'qwen2.5-0.5b': {
    arch: 'qwen2',
    layers: 24,
    embd: 896,
    heads: 14,
    kvHeads: 2,
    ff: 4864,
    vocab: 151936,
    tied: true,
    biases: true,
    type: Q8_0,
    context: 32768
  },
  'qwen2.5-7b': {
    arch: 'qwen2',
    layers: 28,
    embd: 3584,
    heads: 28,
    kvHeads: 4,
    ff: 18944,
    vocab: 152064,
    biases: true
  },
  'qwen3-4b': {
    arch: 'qwen3',
    layers: 36,
    embd: 2560,
    heads: 32,
    kvHeads: 8,
    headLength: 128,
    ff: 9728,
    vocab: 151936,
    tied: true,
    embdType: Q6_K,
    qkNorm: true,
    context: 40960
  },
  'qwen3-30b-a3b': {
    arch: 'qwen3moe',
    layers: 48,
    embd: 2048,
    heads: 32,
    kvHeads: 4,
    headLength: 128,
    ff: 6144,
    vocab: 151936,
    qkNorm: true,
    experts: { count: 128, used: 8, ff: 768 },
    context: 40960
  },
  'gemma-2-9b': {
    arch: 'gemma2',
    layers: 42,
    embd: 3584,
    heads: 16,
    kvHeads: 8,
    headLength: 256,
    ff: 14336,
    vocab: 256000,
    tied: true,
    embdType: Q6_K,
    postNorms: true,
    context: 8192,
    metadata: { 'gemma2.attention.sliding_window': 4096 }
  },
  'gemma-3-1b': {
    arch: 'gemma3',
    layers: 26,
    embd: 1152,
    heads: 4,
    kvHeads: 1,
    headLength: 256,
    ff: 6912,
    vocab: 262144,
    tied: true,
    type: Q8_0,
    qkNorm: true,
    postNorms: true,
    context: 32768,
    metadata: { 'gemma3.attention.sliding_window': 512 }
  },
  'gemma-3-27b': {
    arch: 'gemma3',
    layers: 62,
    embd: 5376,
    heads: 32,
    kvHeads: 16,
    headLength: 128,
    ff: 21504,
    vocab: 262208,
    tied: true,
    embdType: Q6_K,
    type: Q4_0,
    qkNorm: true,
    postNorms: true,
    metadata: { 'gemma3.attention.sliding_window': 1024 }
  },
  'gpt-oss-20b': {
    arch: 'gpt-oss',
    layers: 24,
    embd: 2880,
    heads: 64,
    kvHeads: 8,
    headLength: 64,
    ff: 2880,
    vocab: 201088,
    type: Q8_0,
    outputType: Q8_0,
    biases: true,
    experts: { count: 32, used: 4, ff: 2880 },
    metadata: { 'gpt-oss.attention.sliding_window': 128 }
  },
  'phi-4': {
    arch: 'phi3',
    layers: 40,
    embd: 5120,
    heads: 40,
    kvHeads: 10,
    ff: 17920,
    vocab: 100352,
    fusedQkv: true,
    context: 16384
  },
  'mistral-small-24b': {
    arch: 'llama',
    layers: 40,
    embd: 5120,
    heads: 32,
    kvHeads: 8,
    headLength: 128,
    ff: 32768,
    vocab: 131072,
    context: 32768
  }
}
