import { open, readFile } from 'node:fs/promises'
import { ggufPieces, keyValue, type OutputTensor, type OutputValue, weightsOf } from './gguf-output.ts'

/** How large a model is to be. Widths are multiples of 32. */
export interface RandomModelShape {
  layers: number
  embedding: number
  feedForward: number
  /** Heads have 64 numbers each. */
  heads: number
  kvHeads: number
}

/** Some 200 million weights, of which a token keeps 18 kB in an F16 cache. */
export const SHAPE_200M: RandomModelShape = { layers: 18, embedding: 1024, feedForward: 2816, heads: 16, kvHeads: 4 }

const HEAD = 64

const STRING = 8
const ARRAY = 9
/** Bytes of a value, by GGUF's number of its type. */
const WIDTH: Record<number, number> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }

/**
 * Writes a GGUF model of the Llama architecture whose weights are random: the same for the same seed and shape. Its
 * vocabulary and chat template are those of `vocabulary`, another GGUF file of that architecture. What it says is
 * nonsense; it is there to be measured.
 * @param options `metadata` adds keys, or replaces them
 */
export async function writeRandomModel(
  target: string,
  options: { vocabulary: string; shape: RandomModelShape; seed?: number; metadata?: Record<string, OutputValue> }
): Promise<{ parameters: number; bytes: number }> {
  const { shape, seed = 1 } = options
  const source = await readFile(options.vocabulary)
  const keys = readKeys(source)
  const words = source.readUInt32LE(keys.get('llama.vocab_size')!.end - 4)
  const tensors = tensorsOf(shape, words)
  const parameters = tensors.reduce((sum, tensor) => sum + weightsOf(tensor), 0)
  const own = { ...metadataOf(shape, parameters), ...options.metadata }
  const kept = [...keys].filter(([key]) => !(key in own)).map(([, { start, end }]) => source.subarray(start, end))
  const added = Object.entries(own).map(([key, value]) => keyValue(key, value))

  const file = await open(target, 'w')
  try {
    for (const piece of ggufPieces([...kept, ...added], tensors, seed)) await file.writeFile(piece)
    return { parameters, bytes: (await file.stat()).size }
  } finally {
    await file.close()
  }
}

function tensorsOf(
  { layers, embedding, feedForward, heads, kvHeads }: RandomModelShape,
  words: number
): OutputTensor[] {
  const weights = (name: string, ...shape: number[]): OutputTensor => ({ name: `${name}.weight`, shape, fill: 'q8_0' })
  const norm = (name: string): OutputTensor => ({ name: `${name}.weight`, shape: [embedding], fill: 'ones' })
  return [
    weights('token_embd', embedding, words),
    ...Array.from({ length: layers }, (_, i) => [
      norm(`blk.${i}.attn_norm`),
      weights(`blk.${i}.attn_q`, embedding, heads * HEAD),
      weights(`blk.${i}.attn_k`, embedding, kvHeads * HEAD),
      weights(`blk.${i}.attn_v`, embedding, kvHeads * HEAD),
      weights(`blk.${i}.attn_output`, heads * HEAD, embedding),
      norm(`blk.${i}.ffn_norm`),
      weights(`blk.${i}.ffn_gate`, embedding, feedForward),
      weights(`blk.${i}.ffn_up`, embedding, feedForward),
      weights(`blk.${i}.ffn_down`, feedForward, embedding)
    ]).flat(),
    norm('output_norm')
  ]
}

function metadataOf(shape: RandomModelShape, parameters: number): Record<string, OutputValue> {
  return {
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
    'llama.rope.dimension_count': HEAD
  }
}

interface KeyRange {
  start: number
  end: number
}

/** Where each key and its value lie in a GGUF file (v3, little-endian). */
function readKeys(bytes: Buffer): Map<string, KeyRange> {
  const keys = new Map<string, KeyRange>()
  const count = Number(bytes.readBigUInt64LE(16))
  let at = 24
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
    } else at += WIDTH[type]!
  }
  for (let i = 0; i < count; i++) {
    const start = at
    const size = length()
    const key = bytes.toString('utf8', at, at + size)
    at += size + 4
    skip(bytes.readUInt32LE(at - 4))
    keys.set(key, { start, end: at })
  }
  return keys
}
