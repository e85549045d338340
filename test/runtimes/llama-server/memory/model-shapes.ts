import { readFixture } from '../../../support/fixture.ts'
import type { GgufParts } from '../../../support/gguf-writer.ts'

/** ggml's type numbers. */
export const TYPES = { F32: 0, F16: 1, Q4_0: 2, Q8_0: 8, Q4_K: 12, Q6_K: 14, MXFP4: 39 }
type TypeName = keyof typeof TYPES

type Parts = Required<Pick<GgufParts, 'metadata' | 'tensors'>>
type Tensor = NonNullable<GgufParts['tensors']>[number]

/** A transformer as its configuration describes it. */
interface Dense {
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
  type?: TypeName
  embdType?: TypeName
  outputType?: TypeName
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
const vector = (name: string, length: number): Tensor => ({ name, shape: [length], type: TYPES.F32 })

/** Returns the parts of a GGUF file of such a model, without a vocabulary. */
function denseModel(given: Dense): Parts {
  const { arch, layers, embd, heads, kvHeads, ff, vocab, experts } = given
  const type = TYPES[given.type ?? 'Q4_K']
  const head = given.headLength ?? embd / heads
  const tensors: Tensor[] = [
    matrix('token_embd', embd, vocab, given.embdType ? TYPES[given.embdType] : type),
    vector('output_norm.weight', embd)
  ]
  if (!given.tied) tensors.push(matrix('output', embd, vocab, TYPES[given.outputType ?? 'Q6_K']))
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

/** The tensors of a layer by name without `blk.N.`. */
type Layer = Record<string, number[]>

interface Other {
  arch: string
  layers: number
  embd: number
  vocab: number
  type?: TypeName
  tied?: boolean
  outputNorm?: string
  every: Layer
  some?: { at: number[]; tensors: Layer }
  others?: Layer
  metadata: Record<string, NonNullable<GgufParts['metadata']>[string]>
}

/** Returns the parts of a GGUF file of a model whose layers differ or are not a plain transformer's. */
function otherModel(given: Other): Parts {
  const { arch, layers, embd, vocab, tied, outputNorm, every, some, others, metadata } = given
  const type = TYPES[given.type ?? 'Q4_K']
  const tensors = [
    { name: 'token_embd.weight', shape: [embd, vocab], type },
    { name: `${outputNorm ?? 'output_norm'}.weight`, shape: [embd], type: TYPES.F32 },
    ...(tied ? [] : [{ name: 'output.weight', shape: [embd, vocab], type: TYPES.Q6_K }])
  ]
  for (let il = 0; il < layers; il++) {
    for (const [name, shape] of Object.entries({ ...every, ...(some?.at.includes(il) ? some.tensors : others) })) {
      const small = shape.length === 1 || /conv|ssm_a$|gate_inp|ssm_dt/.test(name)
      const named = /\.bias$|^ssm_(a|d)$/.test(name) ? name : `${name}.weight`
      tensors.push({ name: `blk.${il}.${named}`, shape, type: small ? TYPES.F32 : type })
    }
  }
  const own = Object.entries(metadata).map(([key, value]) => [`${arch}.${key}`, value])
  return {
    metadata: {
      'general.architecture': arch,
      [`${arch}.block_count`]: layers,
      [`${arch}.embedding_length`]: embd,
      [`${arch}.context_length`]: 131072,
      [`${arch}.vocab_size`]: vocab,
      [`${arch}.attention.layer_norm_rms_epsilon`]: 0.00001,
      'tokenizer.ggml.model': 'no_vocab',
      ...Object.fromEntries(own)
    },
    tensors
  }
}

const SHAPES = readFixture<{ transformers: Record<string, Dense>; others: Record<string, Other> }>('model-shapes.yaml')

/** Names of the known models: popular transformers, and models whose layers differ. */
export const TRANSFORMERS = Object.keys(SHAPES.transformers)
export const OTHERS = Object.keys(SHAPES.others)

/** Returns the parts of a GGUF file of a model with a known shape. */
export function getParts(name: string): Parts {
  const dense = SHAPES.transformers[name]
  return dense ? denseModel(dense) : otherModel(SHAPES.others[name]!)
}
