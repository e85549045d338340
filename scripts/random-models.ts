import { readFileSync } from 'node:fs'
import { open, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { countWeights, ggufPieces, ggufWith, type OutputTensor, type OutputValue, padded } from './gguf-output.ts'

/*
 * GGUF files with random weights, whose output is meaningless. They are for measurements, and to test that all kinds of
 * models are recognized, loaded and called correctly.
 */

export const demoModelFile = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const DEMO_MODEL_WIDTH = 256
const DEMO_MODEL_LAYERS = 3

const weights = (name: string, ...shape: number[]): OutputTensor => ({ name: `${name}.weight`, shape, fill: 'f16' })
const bias = (name: string, ...shape: number[]): OutputTensor => ({ name: `${name}.bias`, shape, fill: 'f32' })
const scale = (name: string, length: number): OutputTensor => ({
  name: `${name}.weight`,
  shape: [length],
  fill: 'ones'
})
const linear = (name: string, from: number, to: number) => [weights(name, from, to), bias(name, to)]
const norm = (name: string, width = ENCODER_WIDTH) => [scale(name, width), bias(name, width)]
const layers = (count: number, layer: (index: number) => OutputTensor[]) =>
  Array.from({ length: count }, (_, i) => layer(i)).flat()

/** Embedding width of `randomEncoder` and of the encoders in projectors. */
export const ENCODER_WIDTH = 64
const LAYERS = 2
const HEADS = 4
const FEED_FORWARD = 128
const CONTEXT = 512
/** llama.cpp's LLAMA_POOLING_TYPE_MEAN, _LAST and _RANK. */
const POOLING = { embedding: 1, last: 3, reranker: 4 }

const SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
/** Characters of words. Each is a token at the start of a word (with a mark) and another one inside. */
const CHARACTERS = [...'abcdefghijklmnopqrstuvwxyz0123456789.,;:!?\'"()-']
const TOKEN = { normal: 1, control: 3 }

interface EncoderOptions {
  /** Embedding width, a multiple of 32. */
  width?: number
  /** Whole-word tokens. Words in the same list have the same meaning and start with the same vector. */
  words?: readonly (readonly string[])[]
}

/**
 * The bytes of a BERT model. It computes embeddings (the mean of its tokens), or scores documents with a classification
 * head.
 */
export function randomEncoder(
  purpose: 'embedding' | 'reranker',
  seed = 1,
  { width = ENCODER_WIDTH, words = [] }: EncoderOptions = {}
): Buffer {
  const tokens = [...SPECIAL, ...CHARACTERS.flatMap(one => [`▁${one}`, one]), ...words.flat().map(word => `▁${word}`)]
  const metadata = {
    'general.architecture': 'bert',
    'general.type': 'model',
    'general.name': `Random ${purpose}`,
    'general.file_type': 1,
    'bert.block_count': LAYERS,
    'bert.context_length': CONTEXT,
    'bert.embedding_length': width,
    'bert.feed_forward_length': FEED_FORWARD,
    'bert.attention.head_count': HEADS,
    'bert.attention.layer_norm_epsilon': 1e-12,
    'bert.attention.causal': false,
    'bert.pooling_type': POOLING[purpose],
    'tokenizer.ggml.model': 'bert',
    'tokenizer.ggml.token_type_count': 2,
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.token_type': tokens.map((_, id) => (id < SPECIAL.length ? TOKEN.control : TOKEN.normal)),
    'tokenizer.ggml.padding_token_id': 0,
    'tokenizer.ggml.unknown_token_id': 1,
    'tokenizer.ggml.bos_token_id': 2,
    'tokenizer.ggml.cls_token_id': 2,
    'tokenizer.ggml.seperator_token_id': 3,
    'tokenizer.ggml.mask_token_id': 4
  }
  const tensors = [
    tokenEmbeddings(width, tokens.length, words),
    // Weights that are added rather than multiplied must not be F16.
    { ...weights('token_types', width, 2), fill: 'f32' as const },
    weights('position_embd', width, CONTEXT),
    ...norm('token_embd_norm', width),
    ...layers(LAYERS, i => [
      ...linear(`blk.${i}.attn_q`, width, width),
      ...linear(`blk.${i}.attn_k`, width, width),
      ...linear(`blk.${i}.attn_v`, width, width),
      ...linear(`blk.${i}.attn_output`, width, width),
      ...norm(`blk.${i}.attn_output_norm`, width),
      ...linear(`blk.${i}.ffn_up`, width, FEED_FORWARD),
      ...linear(`blk.${i}.ffn_down`, FEED_FORWARD, width),
      ...norm(`blk.${i}.layer_output_norm`, width)
    ])
  ]
  // The score of a document: tanh of a layer, then a layer with one output.
  const head = [...linear('cls', width, width), ...linear('cls.output', width, 1)]
  return Buffer.concat([...ggufPieces(metadata, purpose === 'reranker' ? [...tensors, ...head] : tensors, seed)])
}

/** Random vectors for all tokens. The last tokens are words, some with the same meaning. */
function tokenEmbeddings(width: number, tokens: number, words: readonly (readonly string[])[]): OutputTensor {
  if (words.length === 0) return weights('token_embd', width, tokens)
  // The digits of large sines are effectively random.
  const fill = Float32Array.from({ length: width * tokens }, (_, i) => ((Math.sin(i) * 43758.5453) % 1) / 2)
  let at = tokens - words.flat().length
  for (const { length } of words) {
    const first = fill.slice(at * width, (at + 1) * width)
    for (let alike = 0; alike < length; alike++) fill.set(first, at++ * width)
  }
  return { name: 'token_embd.weight', shape: [width, tokens], fill }
}

/** Pixels per side of an image, and of the patches that it is split into. */
const IMAGE = 56
const PATCH = 14
/** Frequency bands of audio, and half the number of frames in a window of 30 seconds. */
const MEL_BINS = 80
const MOMENTS = 1500
/** Number of frames per token. llama.cpp requires that it divides the frames evenly. */
const STACK = 10

/**
 * The bytes of a projector (mmproj) that converts images (like LLaVA 1.5) or audio (like Ultravox) to tokens of the
 * demo model: 16 tokens per image, 150 per started 30 seconds.
 */
export function randomProjector(sense: 'vision' | 'audio', seed = 1): Buffer {
  const metadata: Record<string, OutputValue> = {
    'general.architecture': 'clip',
    'general.type': 'mmproj',
    'general.name': `Random ${sense} projector`,
    'general.file_type': 1,
    'clip.use_gelu': true,
    ...(sense === 'vision' ? VISION_KEYS : AUDIO_KEYS),
    [`clip.${sense}.embedding_length`]: ENCODER_WIDTH,
    [`clip.${sense}.feed_forward_length`]: FEED_FORWARD,
    [`clip.${sense}.block_count`]: LAYERS,
    [`clip.${sense}.projection_dim`]: DEMO_MODEL_WIDTH,
    [`clip.${sense}.attention.head_count`]: HEADS,
    [`clip.${sense}.attention.layer_norm_epsilon`]: 1e-5
  }
  return Buffer.concat([...ggufPieces(metadata, sense === 'vision' ? visionTensors() : audioTensors(), seed)])
}

const VISION_KEYS = {
  'clip.has_vision_encoder': true,
  'clip.projector_type': 'mlp',
  'clip.vision.image_size': IMAGE,
  'clip.vision.patch_size': PATCH,
  'clip.vision.image_mean': [0.48, 0.46, 0.41],
  'clip.vision.image_std': [0.27, 0.26, 0.28]
}

const AUDIO_KEYS = {
  'clip.has_audio_encoder': true,
  'clip.projector_type': 'ultravox',
  'clip.audio.num_mel_bins': MEL_BINS,
  'clip.audio.projector.stack_factor': STACK
}

function projectorLayers(prefix: 'v' | 'a'): OutputTensor[] {
  return layers(LAYERS, i => [
    ...norm(`${prefix}.blk.${i}.ln1`),
    ...linear(`${prefix}.blk.${i}.attn_q`, ENCODER_WIDTH, ENCODER_WIDTH),
    // llama.cpp requires this bias, although Whisper's keys have none.
    weights(`${prefix}.blk.${i}.attn_k`, ENCODER_WIDTH, ENCODER_WIDTH),
    ...linear(`${prefix}.blk.${i}.attn_v`, ENCODER_WIDTH, ENCODER_WIDTH),
    ...linear(`${prefix}.blk.${i}.attn_out`, ENCODER_WIDTH, ENCODER_WIDTH),
    ...norm(`${prefix}.blk.${i}.ln2`),
    ...linear(`${prefix}.blk.${i}.ffn_up`, ENCODER_WIDTH, FEED_FORWARD),
    ...linear(`${prefix}.blk.${i}.ffn_down`, FEED_FORWARD, ENCODER_WIDTH)
  ])
}

const visionTensors = (): OutputTensor[] => [
  { name: 'v.class_embd', shape: [ENCODER_WIDTH], fill: 'f32' },
  weights('v.patch_embd', PATCH, PATCH, 3, ENCODER_WIDTH),
  weights('v.position_embd', ENCODER_WIDTH, (IMAGE / PATCH) ** 2 + 1),
  ...norm('v.pre_ln'),
  ...projectorLayers('v'),
  ...linear('mm.0', ENCODER_WIDTH, DEMO_MODEL_WIDTH),
  ...linear('mm.2', DEMO_MODEL_WIDTH, DEMO_MODEL_WIDTH)
]

const audioTensors = (): OutputTensor[] => [
  weights('a.conv1d.1', 3, MEL_BINS, ENCODER_WIDTH),
  bias('a.conv1d.1', 1, ENCODER_WIDTH),
  weights('a.conv1d.2', 3, ENCODER_WIDTH, ENCODER_WIDTH),
  bias('a.conv1d.2', 1, ENCODER_WIDTH),
  { ...weights('a.position_embd', ENCODER_WIDTH, MOMENTS), fill: 'f32' },
  ...projectorLayers('a'),
  ...norm('a.post_ln'),
  scale('mm.a.norm_pre', ENCODER_WIDTH * STACK),
  weights('mm.a.mlp.1', ENCODER_WIDTH * STACK, DEMO_MODEL_WIDTH),
  scale('mm.a.norm_mid', DEMO_MODEL_WIDTH / 2),
  weights('mm.a.mlp.2', DEMO_MODEL_WIDTH / 2, DEMO_MODEL_WIDTH)
]

/** Size of a model. Widths are multiples of 32. */
interface ChatModelShape {
  layers: number
  embedding: number
  feedForward: number
  /** Heads have a width of 64. */
  heads: number
  kvHeads: number
}

/** About 200 million weights. Each token needs 18 kB of F16 cache. */
export const SHAPE_200M: ChatModelShape = { layers: 18, embedding: 1024, feedForward: 2816, heads: 16, kvHeads: 4 }
const HEAD = 64

/**
 * Writes a model of the Llama architecture with the vocabulary and chat template of the demo model.
 * @param metadata keys to add or replace
 */
export async function writeRandomModel(
  target: string,
  shape: ChatModelShape,
  { seed = 1, metadata = {} }: { seed?: number; metadata?: Record<string, OutputValue> } = {}
): Promise<{ parameters: number; bytes: number }> {
  const source = await readFile(demoModelFile)
  const keys = readKeys(source)
  const tensors = chatTensors(
    shape,
    keys.get('llama.vocab_size')!.readUInt32LE(keys.get('llama.vocab_size')!.length - 4)
  )
  const parameters = tensors.reduce((sum, tensor) => sum + countWeights(tensor), 0)
  const own: Record<string, OutputValue> = {
    'general.name': 'Random',
    'general.basename': 'random',
    'general.size_label': `${Math.round(parameters / 1e6)}M`,
    'general.file_type': 7,
    'llama.block_count': shape.layers,
    'llama.embedding_length': shape.embedding,
    'llama.feed_forward_length': shape.feedForward,
    'llama.attention.head_count': shape.heads,
    'llama.attention.head_count_kv': shape.kvHeads,
    'llama.attention.key_length': HEAD,
    'llama.attention.value_length': HEAD,
    'llama.rope.dimension_count': HEAD,
    ...metadata
  }
  const kept = [...keys].filter(([key]) => !(key in own)).map(([, pair]) => pair)
  const file = await open(target, 'w')
  try {
    for (const piece of ggufPieces(own, tensors, seed, kept)) await file.writeFile(piece)
    return { parameters, bytes: (await file.stat()).size }
  } finally {
    await file.close()
  }
}

function chatTensors(shape: ChatModelShape, words: number): OutputTensor[] {
  const { embedding, feedForward, heads, kvHeads } = shape
  const quantized = (name: string, ...shape: number[]): OutputTensor => ({ ...weights(name, ...shape), fill: 'q8_0' })
  return [
    quantized('token_embd', embedding, words),
    ...layers(shape.layers, i => [
      scale(`blk.${i}.attn_norm`, embedding),
      quantized(`blk.${i}.attn_q`, embedding, heads * HEAD),
      quantized(`blk.${i}.attn_k`, embedding, kvHeads * HEAD),
      quantized(`blk.${i}.attn_v`, embedding, kvHeads * HEAD),
      quantized(`blk.${i}.attn_output`, heads * HEAD, embedding),
      scale(`blk.${i}.ffn_norm`, embedding),
      quantized(`blk.${i}.ffn_gate`, embedding, feedForward),
      quantized(`blk.${i}.ffn_up`, embedding, feedForward),
      quantized(`blk.${i}.ffn_down`, feedForward, embedding)
    ]),
    scale('output_norm', embedding)
  ]
}

/** Sizes of the models that `writeRandomArchitecture` writes. */
const SMALL = { width: 128, layers: 6, heads: 2, window: 64, convolution: 3 }
/** Of Qwen 3.5's linear attention: the width of a head's state, its heads, and the length of its convolution. */
const LINEAR = { state: 64, heads: 2, convolution: 4 }

/** Architectures whose state is not only a cell for each token: windows, convolutions, linear attention. */
export type SmallArchitecture = 'gemma3' | 'lfm2' | 'qwen35'

/** The keys of a small model. Qwen 3.5 has one more layer, which predicts the token after the next (MTP). */
export function architectureKeys(architecture: SmallArchitecture): Record<string, OutputValue> {
  const { width, layers, heads, window, convolution } = SMALL
  const own: Record<SmallArchitecture, Record<string, OutputValue>> = {
    gemma3: { 'attention.sliding_window': window },
    lfm2: { 'shortconv.l_cache': convolution },
    qwen35: {
      nextn_predict_layers: 1,
      full_attention_interval: 2,
      'rope.dimension_count': HEAD,
      'rope.dimension_sections': [HEAD / 4, HEAD / 8, HEAD / 8, 0],
      'ssm.conv_kernel': LINEAR.convolution,
      'ssm.inner_size': LINEAR.heads * LINEAR.state,
      'ssm.state_size': LINEAR.state,
      'ssm.time_step_rank': LINEAR.heads,
      'ssm.group_count': LINEAR.heads
    }
  }
  const keys: Record<string, OutputValue> = {
    block_count: architecture === 'qwen35' ? layers + 1 : layers,
    context_length: 32_768,
    embedding_length: width,
    feed_forward_length: 2 * width,
    'attention.head_count': heads,
    'attention.head_count_kv': architecture === 'lfm2' ? Array.from({ length: layers }, (_, i) => i % 2) : 1,
    'attention.layer_norm_rms_epsilon': 1e-5,
    'attention.key_length': HEAD,
    'attention.value_length': HEAD,
    'rope.freq_base': 10_000.5,
    ...own[architecture]
  }
  return Object.fromEntries(Object.entries(keys).map(([key, value]) => [`${architecture}.${key}`, value]))
}

/**
 * Writes a small model with the vocabulary and template of the demo model.
 * @param part of Qwen 3.5: the whole model, or only the layer that predicts the token after the next, as a draft model
 */
export async function writeRandomArchitecture(
  target: string,
  architecture: SmallArchitecture,
  part: 'whole' | 'heads' = 'whole'
): Promise<void> {
  const { width, heads, convolution } = SMALL
  const source = readKeys(await readFile(demoModelFile))
  const words = source.get('llama.vocab_size')!.readUInt32LE(source.get('llama.vocab_size')!.length - 4)
  const attention = (block: string, queries = heads * HEAD) => [
    weights(`${block}.attn_q`, width, queries),
    weights(`${block}.attn_k`, width, HEAD),
    weights(`${block}.attn_v`, width, HEAD),
    weights(`${block}.attn_output`, heads * HEAD, width),
    scale(`${block}.attn_q_norm`, HEAD),
    scale(`${block}.attn_k_norm`, HEAD)
  ]
  const linearAttention = (block: string) => {
    const { state, heads, convolution } = LINEAR
    const all = state * heads
    return [
      weights(`${block}.attn_qkv`, width, 3 * all),
      weights(`${block}.attn_gate`, width, all),
      { ...weights(`${block}.ssm_conv1d`, convolution, 3 * all), fill: 'f32' as const },
      bias(`${block}.ssm_dt`, heads),
      { name: `${block}.ssm_a`, shape: [heads], fill: 'f32' as const },
      weights(`${block}.ssm_beta`, width, heads),
      weights(`${block}.ssm_alpha`, width, heads),
      scale(`${block}.ssm_norm`, state),
      weights(`${block}.ssm_out`, all, width)
    ]
  }
  const mixers: Record<SmallArchitecture, (block: string, isFull: boolean) => OutputTensor[]> = {
    gemma3: block => [
      ...attention(block),
      scale(`${block}.post_attention_norm`, width),
      scale(`${block}.post_ffw_norm`, width),
      scale(`${block}.ffn_norm`, width)
    ],
    lfm2: (block, isFull) => [
      ...(isFull
        ? attention(block)
        : [
            { ...weights(`${block}.shortconv.conv`, convolution, width), fill: 'f32' as const },
            weights(`${block}.shortconv.in_proj`, width, 3 * width),
            weights(`${block}.shortconv.out_proj`, width, width)
          ]),
      scale(`${block}.ffn_norm`, width)
    ],
    qwen35: (block, isFull) => [
      ...(isFull ? attention(block, 2 * heads * HEAD) : linearAttention(block)),
      scale(`${block}.post_attention_norm`, width)
    ]
  }
  const block = (i: number, isFull = i % 2 === 1) => [
    scale(`blk.${i}.attn_norm`, width),
    ...mixers[architecture](`blk.${i}`, isFull),
    weights(`blk.${i}.ffn_gate`, width, 2 * width),
    weights(`blk.${i}.ffn_up`, width, 2 * width),
    weights(`blk.${i}.ffn_down`, 2 * width, width)
  ]
  const next = `blk.${SMALL.layers}`
  const tensors = [
    weights('token_embd', width, words),
    scale(architecture === 'lfm2' ? 'token_embd_norm' : 'output_norm', width),
    ...(part === 'whole' ? layers(SMALL.layers, block) : []),
    ...(architecture === 'qwen35'
      ? [
          ...block(SMALL.layers, true),
          weights(`${next}.nextn.eh_proj`, 2 * width, width),
          scale(`${next}.nextn.enorm`, width),
          scale(`${next}.nextn.hnorm`, width)
        ]
      : [])
  ]
  const own = { 'general.architecture': architecture, 'general.file_type': 1, ...architectureKeys(architecture) }
  const kept = [...source].filter(([key]) => key.startsWith('tokenizer.')).map(([, pair]) => pair)
  await writeFile(target, Buffer.concat([...ggufPieces(own, tensors, 1, kept)]))
}

/** Offset of the first key. */
const START = 24
const STRING = 8
const ARRAY = 9
/** Bytes of a value by GGUF's type number. */
const VALUE_BYTES: Record<number, number> = { 4: 4, 5: 4, 6: 4, 7: 1 }

/** The keys of the demo model, with the encoded key and value. */
export function readKeys(bytes: Buffer): Map<string, Buffer> {
  const keys = new Map<string, Buffer>()
  let at = START
  const length = () => {
    at += 8
    return Number(bytes.readBigUInt64LE(at - 8))
  }
  const skip = (type: number) => {
    if (type === STRING) {
      const size = length()
      at += size
    } else if (type === ARRAY) {
      const items = bytes.readUInt32LE(at)
      at += 4
      for (let left = length(); left > 0; left--) skip(items)
    } else at += VALUE_BYTES[type]!
  }
  for (let left = Number(bytes.readBigUInt64LE(16)); left > 0; left--) {
    const start = at
    skip(STRING)
    const key = bytes.toString('utf8', start + 8, at)
    at += 4
    skip(bytes.readUInt32LE(at - 4))
    keys.set(key, bytes.subarray(start, at))
  }
  return keys
}

/** Embedding width of `writeRandomDecoderEmbedding`. */
export const DECODER_WIDTH = 128

/**
 * Writes an embedding model with a chat model's architecture, like Qwen3-Embedding. Only its metadata shows this. The
 * embedding of a text is that of its last token.
 */
export async function writeRandomDecoderEmbedding(target: string, seed = 1): Promise<void> {
  const shape = { layers: 2, embedding: DECODER_WIDTH, feedForward: 256, heads: 2, kvHeads: 1 }
  await writeRandomModel(target, shape, { seed, metadata: { 'llama.pooling_type': POOLING.last } })
}

/** The bytes of a LoRA adapter for the demo model with random changes to its attention. */
export function randomAdapter(seed = 1): Buffer {
  const rank = 4
  const metadata = {
    'general.architecture': 'llama',
    'general.type': 'adapter',
    'general.name': 'Random adapter',
    'adapter.type': 'lora',
    // A fraction, because the value must be a float32.
    'adapter.lora.alpha': 4.5
  }
  const tensors = layers(DEMO_MODEL_LAYERS, i => [
    { name: `blk.${i}.attn_q.weight.lora_a`, shape: [DEMO_MODEL_WIDTH, rank], fill: 'f32' },
    { name: `blk.${i}.attn_q.weight.lora_b`, shape: [rank, DEMO_MODEL_WIDTH], fill: 'f32' }
  ])
  return Buffer.concat([...ggufPieces(metadata, tensors, seed)])
}

const TENSOR_COUNT_AT = 8

export function demoModelWith(metadata: Record<string, OutputValue>): Buffer {
  const source = readFileSync(demoModelFile)
  const keys = [...readKeys(source)]
  const tensors = Number(source.readBigUInt64LE(TENSOR_COUNT_AT))
  const from = keys.reduce((at, [, pair]) => at + pair.length, START)
  let to = from
  for (let left = tensors; left > 0; left--) {
    // Name, number of dimensions, dimensions, type and offset.
    to += 8 + Number(source.readBigUInt64LE(to))
    to += 4 + 8 * source.readUInt32LE(to) + 4 + 8
  }
  return ggufWith(metadata, {
    pairs: keys.filter(([key]) => !(key in metadata)).map(([, pair]) => pair),
    tensors,
    infos: source.subarray(from, to),
    data: source.subarray(padded(to))
  })
}
