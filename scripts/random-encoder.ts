import { ggufPieces, keyValue, type OutputTensor, type OutputValue } from './gguf-output.ts'

/** Numbers of an embedding that `randomEncoder` makes. */
export const ENCODER_WIDTH = 64

const LAYERS = 2
const HEADS = 4
const FEED_FORWARD = 128
const CONTEXT = 512
/** llama.cpp's numbers of LLAMA_POOLING_TYPE_MEAN and _RANK. */
const POOLING = { embedding: 1, reranker: 4 }

const SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
/** Characters that words may be made of; each is a token at a word's beginning (with a mark) and within. */
const CHARACTERS = [...'abcdefghijklmnopqrstuvwxyz0123456789.,;:!?\'"()-']
const TOKEN_CONTROL = 3
const TOKEN_NORMAL = 1

/**
 * The bytes of a GGUF model of the BERT architecture with random weights: one that makes embeddings of 64 numbers (the
 * mean of its tokens'), or one that scores documents by a classification head. Its numbers mean nothing; it is there to
 * see whether such models are recognised, loaded and asked as they must be.
 */
export function randomEncoder(purpose: 'embedding' | 'reranker', seed = 1): Buffer {
  const tokens = [...SPECIAL, ...CHARACTERS.flatMap(one => [`▁${one}`, one])]
  const metadata: Record<string, OutputValue> = {
    'general.architecture': 'bert',
    'general.type': 'model',
    'general.name': `Random ${purpose}`,
    'general.file_type': 1,
    'bert.block_count': LAYERS,
    'bert.context_length': CONTEXT,
    'bert.embedding_length': ENCODER_WIDTH,
    'bert.feed_forward_length': FEED_FORWARD,
    'bert.attention.head_count': HEADS,
    'bert.attention.layer_norm_epsilon': 1e-12,
    'bert.attention.causal': false,
    'bert.pooling_type': POOLING[purpose],
    'tokenizer.ggml.model': 'bert',
    'tokenizer.ggml.token_type_count': 2,
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.token_type': tokens.map((_, id) => (id < SPECIAL.length ? TOKEN_CONTROL : TOKEN_NORMAL)),
    'tokenizer.ggml.padding_token_id': 0,
    'tokenizer.ggml.unknown_token_id': 1,
    'tokenizer.ggml.bos_token_id': 2,
    'tokenizer.ggml.cls_token_id': 2,
    'tokenizer.ggml.seperator_token_id': 3,
    'tokenizer.ggml.mask_token_id': 4
  }
  const pairs = Object.entries(metadata).map(([key, value]) => keyValue(key, value))
  return Buffer.concat([
    ...ggufPieces(pairs, [...encoder(tokens.length), ...(purpose === 'reranker' ? HEAD : [])], seed)
  ])
}

const weights = (name: string, ...shape: number[]): OutputTensor => ({ name: `${name}.weight`, shape, fill: 'f16' })
const bias = (name: string, length: number): OutputTensor => ({ name: `${name}.bias`, shape: [length], fill: 'f32' })
const linear = (name: string, from: number, to: number) => [weights(name, from, to), bias(name, to)]
const norm = (name: string): OutputTensor[] => [
  { name: `${name}.weight`, shape: [ENCODER_WIDTH], fill: 'ones' },
  bias(name, ENCODER_WIDTH)
]

/** Score of a document: tanh of a layer, then a layer with one number. */
const HEAD = [...linear('cls', ENCODER_WIDTH, ENCODER_WIDTH), ...linear('cls.output', ENCODER_WIDTH, 1)]

function encoder(words: number): OutputTensor[] {
  return [
    weights('token_embd', ENCODER_WIDTH, words),
    // What is added to others rather than multiplied with them must not be F16.
    { name: 'token_types.weight', shape: [ENCODER_WIDTH, 2], fill: 'f32' },
    weights('position_embd', ENCODER_WIDTH, CONTEXT),
    ...norm('token_embd_norm'),
    ...Array.from({ length: LAYERS }, (_, i) => [
      ...linear(`blk.${i}.attn_q`, ENCODER_WIDTH, ENCODER_WIDTH),
      ...linear(`blk.${i}.attn_k`, ENCODER_WIDTH, ENCODER_WIDTH),
      ...linear(`blk.${i}.attn_v`, ENCODER_WIDTH, ENCODER_WIDTH),
      ...linear(`blk.${i}.attn_output`, ENCODER_WIDTH, ENCODER_WIDTH),
      ...norm(`blk.${i}.attn_output_norm`),
      ...linear(`blk.${i}.ffn_up`, ENCODER_WIDTH, FEED_FORWARD),
      ...linear(`blk.${i}.ffn_down`, FEED_FORWARD, ENCODER_WIDTH),
      ...norm(`blk.${i}.layer_output_norm`)
    ]).flat()
  ]
}
