import type { GgufParts } from '../../../support/gguf-writer.ts'
import { F32, Q4_K, Q6_K, Q8_0 } from './model-shapes.ts'

type Parts = Required<Pick<GgufParts, 'metadata' | 'tensors'>>
/** The tensors of a layer by name without `blk.N.`. Matrices, if no type is given. */
type Layer = Record<string, number[]>

interface Other {
  arch: string
  layers: number
  embd: number
  vocab: number
  type?: number
  tied?: boolean
  outputNorm?: string
  layer: (il: number) => Layer
  metadata: Record<string, NonNullable<GgufParts['metadata']>[string]>
}

/** Returns the parts of a GGUF file of a model whose layers differ or are not a plain transformer's. */
function model({ arch, layers, embd, vocab, type = Q4_K, tied, outputNorm, layer, metadata }: Other): Parts {
  const tensors = [
    { name: 'token_embd.weight', shape: [embd, vocab], type },
    { name: `${outputNorm ?? 'output_norm'}.weight`, shape: [embd], type: F32 },
    ...(tied ? [] : [{ name: 'output.weight', shape: [embd, vocab], type: Q6_K }])
  ]
  for (let il = 0; il < layers; il++) {
    for (const [name, shape] of Object.entries(layer(il))) {
      const small = shape.length === 1 || /conv|ssm_a$|gate_inp|ssm_dt/.test(name)
      const named = /\.bias$|^ssm_(a|d)$/.test(name) ? name : `${name}.weight`
      tensors.push({ name: `blk.${il}.${named}`, shape, type: small ? F32 : type })
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

const experts = (embd: number, count: number, ff: number): Layer => ({
  ffn_gate_inp: [embd, count],
  ffn_gate_exps: [embd, ff, count],
  ffn_up_exps: [embd, ff, count],
  ffn_down_exps: [ff, embd, count]
})
const net = (embd: number, ff: number, suffix = ''): Layer => ({
  [`ffn_gate${suffix}`]: [embd, ff],
  [`ffn_up${suffix}`]: [embd, ff],
  [`ffn_down${suffix}`]: [ff, embd]
})

/** DeepSeek-V2-Lite: latent attention of rank 512 with 64 position dimensions, 16 heads of 192 and 128. */
function deepseek(): Parts {
  return model({
    arch: 'deepseek2',
    layers: 27,
    embd: 2048,
    vocab: 102400,
    type: Q8_0,
    layer: il => ({
      attn_norm: [2048],
      attn_kv_a_norm: [512],
      attn_q: [2048, 16 * 192],
      attn_kv_a_mqa: [2048, 576],
      attn_k_b: [128, 512, 16],
      attn_v_b: [512, 128, 16],
      attn_output: [2048, 2048],
      ffn_norm: [2048],
      ...(il === 0 ? net(2048, 10944) : { ...experts(2048, 64, 1408), ...net(2048, 2816, '_shexp') })
    }),
    metadata: {
      feed_forward_length: 10944,
      'attention.head_count': 16,
      'attention.head_count_kv': 1,
      'attention.key_length': 576,
      'attention.value_length': 512,
      'attention.key_length_mla': 192,
      'attention.value_length_mla': 128,
      'attention.kv_lora_rank': 512,
      'rope.dimension_count': 64,
      leading_dense_block_count: 1,
      expert_count: 64,
      expert_used_count: 6,
      expert_shared_count: 2,
      expert_feed_forward_length: 1408
    }
  })
}

/** mamba-2.8b: states only. */
function mamba(): Parts {
  return model({
    arch: 'mamba',
    layers: 64,
    embd: 2560,
    vocab: 50280,
    type: Q8_0,
    tied: true,
    layer: () => ({
      attn_norm: [2560],
      ssm_in: [2560, 10240],
      ssm_conv1d: [4, 5120],
      'ssm_conv1d.bias': [5120],
      ssm_x: [5120, 160 + 32],
      ssm_dt: [160, 5120],
      'ssm_dt.bias': [5120],
      ssm_a: [16, 5120],
      ssm_d: [5120],
      ssm_out: [5120, 2560]
    }),
    metadata: {
      feed_forward_length: 0,
      'attention.head_count': 0,
      'ssm.conv_kernel': 4,
      'ssm.inner_size': 5120,
      'ssm.state_size': 16,
      'ssm.time_step_rank': 160
    }
  })
}

/** Qwen3-Next-80B-A3B: three of four layers have a state instead of a cache. */
function qwen3next(): Parts {
  const linear: Layer = {
    attn_qkv: [2048, 8192],
    attn_gate: [2048, 4096],
    ssm_conv1d: [4, 8192],
    'ssm_dt.bias': [32],
    ssm_a: [32],
    ssm_ba: [2048, 64],
    ssm_norm: [128],
    ssm_out: [4096, 2048]
  }
  const attention: Layer = {
    attn_q: [2048, 256 * 16 * 2],
    attn_k: [2048, 512],
    attn_v: [2048, 512],
    attn_output: [4096, 2048],
    attn_q_norm: [256],
    attn_k_norm: [256]
  }
  return model({
    arch: 'qwen3next',
    layers: 48,
    embd: 2048,
    vocab: 151936,
    layer: il => ({
      attn_norm: [2048],
      post_attention_norm: [2048],
      ...((il + 1) % 4 === 0 ? attention : linear),
      ...experts(2048, 512, 512),
      ffn_gate_inp_shexp: [2048],
      ...net(2048, 512, '_shexp')
    }),
    metadata: {
      feed_forward_length: 5120,
      'attention.head_count': 16,
      'attention.head_count_kv': 2,
      'attention.key_length': 256,
      'attention.value_length': 256,
      'rope.dimension_count': 64,
      expert_count: 512,
      expert_used_count: 10,
      expert_feed_forward_length: 512,
      expert_shared_feed_forward_length: 512,
      'ssm.conv_kernel': 4,
      'ssm.inner_size': 4096,
      'ssm.state_size': 128,
      'ssm.time_step_rank': 32,
      'ssm.group_count': 16
    }
  })
}

/** LFM2-1.2B: six of sixteen layers have attention, by a list. */
function lfm2(): Parts {
  const attends = (il: number) => [2, 5, 8, 10, 12, 14].includes(il)
  return model({
    arch: 'lfm2',
    layers: 16,
    embd: 2048,
    vocab: 65536,
    tied: true,
    outputNorm: 'token_embd_norm',
    layer: il => ({
      attn_norm: [2048],
      ffn_norm: [2048],
      ...net(2048, 8192),
      ...(attends(il)
        ? {
            attn_q: [2048, 2048],
            attn_k: [2048, 512],
            attn_v: [2048, 512],
            attn_output: [2048, 2048],
            attn_q_norm: [64],
            attn_k_norm: [64]
          }
        : {
            'shortconv.conv': [3, 2048],
            'shortconv.in_proj': [2048, 6144],
            'shortconv.out_proj': [2048, 2048]
          })
    }),
    metadata: {
      feed_forward_length: 8192,
      'attention.head_count': 32,
      'attention.head_count_kv': Array.from({ length: 16 }, (_, il) => (attends(il) ? 8 : 0)),
      'shortconv.l_cache': 3
    }
  })
}

export const OTHERS: Record<string, () => Parts> = {
  'deepseek-v2-lite': deepseek,
  'mamba-2.8b': mamba,
  'qwen3-next-80b': qwen3next,
  'lfm2-1.2b': lfm2
}
