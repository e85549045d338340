import { readFixture } from '../../../support/fixture.ts'
import type { GgufParts } from '../../../support/gguf-writer.ts'

/** ggml's type numbers. */
export const TYPES = { F32: 0, F16: 1, Q4_0: 2, Q8_0: 8, Q4_K: 12, Q6_K: 14, MXFP4: 39 }
type TypeName = keyof typeof TYPES

type Parts = Required<Pick<GgufParts, 'metadata' | 'tensors'>>

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

/** The tensors of a layer by name without `blk.N.`. */
type Layer = Record<string, number[]>

interface Other {
  arch: string
  layers: number
  embd: number
  vocab: number
  type?: TypeName
  embdType?: TypeName
  outputType?: TypeName
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
    { name: 'token_embd.weight', shape: [embd, vocab], type: given.embdType ? TYPES[given.embdType] : type },
    { name: `${outputNorm ?? 'output_norm'}.weight`, shape: [embd], type: TYPES.F32 },
    ...(tied ? [] : [{ name: 'output.weight', shape: [embd, vocab], type: TYPES[given.outputType ?? 'Q6_K'] }])
  ]
  for (let il = 0; il < layers; il++) {
    for (const [name, shape] of Object.entries({ ...every, ...(some?.at.includes(il) ? some.tensors : others) })) {
      const small = shape.length === 1 || /conv|ssm_a$|gate_inp|ssm_dt|\.bias$/.test(name)
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

/** Returns the parts of a GGUF file of such a model, without a vocabulary. */
function denseModel(given: Dense): Parts {
  const { arch, embd, heads, kvHeads, ff, experts, headLength, fusedQkv, metadata } = given
  const head = headLength ?? embd / heads
  const [queries, keys] = [heads * head, kvHeads * head]
  const every: Layer = {
    attn_norm: [embd],
    ...(fusedQkv
      ? { attn_qkv: [embd, queries + 2 * keys] }
      : { attn_q: [embd, queries], attn_k: [embd, keys], attn_v: [embd, keys] }),
    attn_output: [queries, embd],
    ...(given.biases && { 'attn_q.bias': [queries], 'attn_k.bias': [keys], 'attn_v.bias': [keys] }),
    ...(given.qkNorm && { attn_q_norm: [head], attn_k_norm: [head] }),
    ...(given.postNorms && { post_attention_norm: [embd], post_ffw_norm: [embd] }),
    ...(arch === 'gpt-oss'
      ? { post_attention_norm: [embd], attn_sinks: [heads], 'attn_output.bias': [embd] }
      : { ffn_norm: [embd] })
  }
  if (experts) {
    const { count, ff } = experts
    Object.assign(every, { ffn_gate_inp: [embd, count], ffn_gate_exps: [embd, ff, count] })
    Object.assign(every, { ffn_up_exps: [embd, ff, count], ffn_down_exps: [ff, embd, count] })
    const biases = { 'ffn_gate_exps.bias': [ff, count], 'ffn_up_exps.bias': [ff, count] }
    const others = { 'ffn_gate_inp.bias': [count], 'ffn_down_exps.bias': [embd, count] }
    if (arch === 'gpt-oss') Object.assign(every, biases, others)
  } else if (fusedQkv) Object.assign(every, { ffn_up: [embd, 2 * ff], ffn_down: [ff, embd] })
  else Object.assign(every, { ffn_gate: [embd, ff], ffn_up: [embd, ff], ffn_down: [ff, embd] })
  const own = {
    feed_forward_length: ff,
    'attention.head_count': heads,
    'attention.head_count_kv': kvHeads,
    'rope.dimension_count': head,
    ...(headLength && { 'attention.key_length': head, 'attention.value_length': head }),
    ...(experts && {
      expert_count: experts.count,
      expert_used_count: experts.used,
      expert_feed_forward_length: experts.ff
    })
  }
  const parts = otherModel({ ...given, every, metadata: own })
  const context = { [`${arch}.context_length`]: given.context ?? 131072 }
  return { ...parts, metadata: { ...parts.metadata, ...context, ...metadata } }
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
