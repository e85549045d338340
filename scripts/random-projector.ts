import { ggufPieces, keyValue, type OutputTensor, type OutputValue } from './gguf-output.ts'

/** Embedding length of the demo model. */
export const DEMO_MODEL_WIDTH = 256

const WIDTH = 64
const HEADS = 4
const FEED_FORWARD = 128
const LAYERS = 2
/** Pixels along an image's sides, and along those of the squares that are seen as one. */
const IMAGE = 56
const PATCH = 14
/** Bands that sounds are cut into, and half as many moments as the 30 seconds that are heard at once have. */
const MEL_BINS = 80
const MOMENTS = 1500
/** Moments that become one token; llama.cpp counts on it that nothing is left over. */
const STACK = 10

/**
 * The bytes of a projector (mmproj) in GGUF with random weights, which makes tokens of a language model of images (as
 * LLaVA 1.5 does) or of sounds (as Ultravox does): 16 for an image, 150 for every 30 seconds begun. A model understands
 * nothing of them; they are there to see whether images and sounds find their way.
 * @param modelWidth the language model's embedding length
 */
export function randomProjector(sense: 'vision' | 'audio', modelWidth: number, seed = 1): Buffer {
  const metadata: Record<string, OutputValue> = {
    'general.architecture': 'clip',
    'general.type': 'mmproj',
    'general.name': `Random ${sense} projector`,
    'general.file_type': 1,
    'clip.use_gelu': true,
    ...(sense === 'vision' ? visionKeys(modelWidth) : audioKeys(modelWidth))
  }
  const pairs = Object.entries(metadata).map(([key, value]) => keyValue(key, value))
  const tensors = sense === 'vision' ? visionTensors(modelWidth) : audioTensors(modelWidth)
  return Buffer.concat([...ggufPieces(pairs, tensors, seed)])
}

const encoderKeys = (prefix: string, modelWidth: number): Record<string, OutputValue> => ({
  [`${prefix}.embedding_length`]: WIDTH,
  [`${prefix}.feed_forward_length`]: FEED_FORWARD,
  [`${prefix}.block_count`]: LAYERS,
  [`${prefix}.projection_dim`]: modelWidth,
  [`${prefix}.attention.head_count`]: HEADS,
  [`${prefix}.attention.layer_norm_epsilon`]: 1e-5
})

const visionKeys = (modelWidth: number): Record<string, OutputValue> => ({
  'clip.has_vision_encoder': true,
  'clip.projector_type': 'mlp',
  'clip.vision.image_size': IMAGE,
  'clip.vision.patch_size': PATCH,
  'clip.vision.image_mean': [0.48, 0.46, 0.41],
  'clip.vision.image_std': [0.27, 0.26, 0.28],
  ...encoderKeys('clip.vision', modelWidth)
})

const audioKeys = (modelWidth: number): Record<string, OutputValue> => ({
  'clip.has_audio_encoder': true,
  'clip.projector_type': 'ultravox',
  'clip.audio.num_mel_bins': MEL_BINS,
  'clip.audio.projector.stack_factor': STACK,
  ...encoderKeys('clip.audio', modelWidth)
})

const weights = (name: string, ...shape: number[]): OutputTensor => ({ name: `${name}.weight`, shape, fill: 'f16' })
const bias = (name: string, ...shape: number[]): OutputTensor => ({ name: `${name}.bias`, shape, fill: 'f32' })
const linear = (name: string, from: number, to: number) => [weights(name, from, to), bias(name, to)]
const scale = (name: string, length: number): OutputTensor => ({
  name: `${name}.weight`,
  shape: [length],
  fill: 'ones'
})
const norm = (name: string) => [scale(name, WIDTH), bias(name, WIDTH)]

/** @param prefix `v` or `a` */
function encoder(prefix: string): OutputTensor[] {
  return Array.from({ length: LAYERS }, (_, i) => [
    ...norm(`${prefix}.blk.${i}.ln1`),
    ...linear(`${prefix}.blk.${i}.attn_q`, WIDTH, WIDTH),
    // Whisper's keys have no bias, which llama.cpp insists on.
    weights(`${prefix}.blk.${i}.attn_k`, WIDTH, WIDTH),
    ...linear(`${prefix}.blk.${i}.attn_v`, WIDTH, WIDTH),
    ...linear(`${prefix}.blk.${i}.attn_out`, WIDTH, WIDTH),
    ...norm(`${prefix}.blk.${i}.ln2`),
    ...linear(`${prefix}.blk.${i}.ffn_up`, WIDTH, FEED_FORWARD),
    ...linear(`${prefix}.blk.${i}.ffn_down`, FEED_FORWARD, WIDTH)
  ]).flat()
}

function visionTensors(modelWidth: number): OutputTensor[] {
  return [
    { name: 'v.class_embd', shape: [WIDTH], fill: 'f32' },
    weights('v.patch_embd', PATCH, PATCH, 3, WIDTH),
    weights('v.position_embd', WIDTH, (IMAGE / PATCH) ** 2 + 1),
    ...norm('v.pre_ln'),
    ...encoder('v'),
    ...linear('mm.0', WIDTH, modelWidth),
    ...linear('mm.2', modelWidth, modelWidth)
  ]
}

function audioTensors(modelWidth: number): OutputTensor[] {
  return [
    weights('a.conv1d.1', 3, MEL_BINS, WIDTH),
    bias('a.conv1d.1', 1, WIDTH),
    weights('a.conv1d.2', 3, WIDTH, WIDTH),
    bias('a.conv1d.2', 1, WIDTH),
    { name: 'a.position_embd.weight', shape: [WIDTH, MOMENTS], fill: 'f32' },
    ...encoder('a'),
    ...norm('a.post_ln'),
    scale('mm.a.norm_pre', WIDTH * STACK),
    weights('mm.a.mlp.1', WIDTH * STACK, modelWidth),
    scale('mm.a.norm_mid', modelWidth / 2),
    weights('mm.a.mlp.2', modelWidth / 2, modelWidth)
  ]
}
