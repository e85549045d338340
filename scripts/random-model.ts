import { open, readFile } from 'node:fs/promises'

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
const ALIGNMENT = 32
const F32 = 0
const Q8_0 = 8
/** Weights in a block of Q8_0, and its bytes: a scale in F16 and a byte for each weight. */
const BLOCK = 32
const BLOCK_BYTES = 34
/** Standard deviation of whole numbers from -128 to 127 that are all as likely. */
const SPREAD = 74
const CHUNK = BLOCK_BYTES * 2 ** 15

const UINT32 = 4
const STRING = 8
const ARRAY = 9
/** Bytes of a value, by GGUF's number of its type. */
const WIDTH: Record<number, number> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }

interface Tensor {
  name: string
  shape: number[]
  /** Norms are F32 and all ones, other weights Q8_0 and random. */
  norm: boolean
}

/**
 * Writes a GGUF model of the Llama architecture whose weights are random: the same for the same seed and shape. Its
 * vocabulary and chat template are those of `vocabulary`, another GGUF file of that architecture. What it says is
 * nonsense; it is there to be measured.
 */
export async function writeRandomModel(
  target: string,
  options: { vocabulary: string; shape: RandomModelShape; seed?: number }
): Promise<{ parameters: number; bytes: number }> {
  const { shape, seed = 1 } = options
  const source = await readFile(options.vocabulary)
  const keys = readKeys(source)
  const words = source.readUInt32LE(keys.get('llama.vocab_size')!.end - 4)
  const tensors = tensorsOf(shape, words)

  const file = await open(target, 'w')
  try {
    const header = headerOf(source, keys, tensors, shape)
    await file.writeFile(header)
    const random = createRandom(seed)
    for (const tensor of tensors) {
      for (const chunk of dataOf(tensor, random)) await file.writeFile(chunk)
    }
    const parameters = tensors.reduce((sum, { shape }) => sum + product(shape), 0)
    return { parameters, bytes: (await file.stat()).size }
  } finally {
    await file.close()
  }
}

function tensorsOf({ layers, embedding, feedForward, heads, kvHeads }: RandomModelShape, words: number): Tensor[] {
  const weights = (name: string, ...shape: number[]): Tensor => ({ name: `${name}.weight`, shape, norm: false })
  const norm = (name: string): Tensor => ({ name: `${name}.weight`, shape: [embedding], norm: true })
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

function headerOf(source: Buffer, keys: Map<string, KeyRange>, tensors: Tensor[], shape: RandomModelShape): Buffer {
  const replaced: Record<string, Buffer> = {
    'general.name': stringValue('Random'),
    'general.basename': stringValue('random'),
    'general.size_label': stringValue(`${Math.round(tensors.reduce((sum, t) => sum + product(t.shape), 0) / 1e6)}M`),
    'general.file_type': numberValue(7),
    'llama.block_count': numberValue(shape.layers),
    'llama.embedding_length': numberValue(shape.embedding),
    'llama.feed_forward_length': numberValue(shape.feedForward),
    'llama.attention.head_count': numberValue(shape.heads),
    'llama.attention.head_count_kv': numberValue(shape.kvHeads),
    'llama.attention.key_length': numberValue(HEAD),
    'llama.attention.value_length': numberValue(HEAD),
    'llama.rope.dimension_count': numberValue(HEAD)
  }
  const pairs = [...keys].map(([key, { start, end }]) =>
    replaced[key] ? Buffer.concat([text(key), replaced[key]]) : source.subarray(start, end)
  )
  const infos: Buffer[] = []
  let offset = 0
  for (const tensor of tensors) {
    infos.push(text(tensor.name), u32(tensor.shape.length), ...tensor.shape.map(u64))
    infos.push(u32(tensor.norm ? F32 : Q8_0), u64(offset))
    offset += padded(sizeOf(tensor))
  }
  const header = Buffer.concat([
    Buffer.from('GGUF'),
    u32(3),
    u64(tensors.length),
    u64(pairs.length),
    ...pairs,
    ...infos
  ])
  return Buffer.concat([header], padded(header.length))
}

/** The data of a tensor in pieces, with the padding behind it. */
function* dataOf(tensor: Tensor, random: (bytes: Buffer) => void): Generator<Buffer> {
  const size = sizeOf(tensor)
  if (tensor.norm) {
    yield Buffer.from(new Float32Array(tensor.shape[0]!).fill(1).buffer)
  } else {
    // Numbers keep their size from layer to layer.
    const scale = half(1 / Math.sqrt(tensor.shape[0]!) / SPREAD)
    for (let left = size; left > 0; left -= CHUNK) {
      const chunk = Buffer.alloc(Math.min(CHUNK, left))
      random(chunk)
      for (let at = 0; at < chunk.length; at += BLOCK_BYTES) chunk.writeUInt16LE(scale, at)
      yield chunk
    }
  }
  yield Buffer.alloc(padded(size) - size)
}

function sizeOf({ shape, norm }: Tensor): number {
  return norm ? product(shape) * 4 : (product(shape) / BLOCK) * BLOCK_BYTES
}

function product(shape: number[]): number {
  return shape.reduce((all, length) => all * length, 1)
}

function padded(length: number): number {
  return Math.ceil(length / ALIGNMENT) * ALIGNMENT
}

/** Fills buffers with xorshift32: quick, and the same on every machine. */
function createRandom(seed: number): (bytes: Buffer) => void {
  let state = seed | 0 || 1
  return bytes => {
    for (let at = 0; at < bytes.length; at += 4) {
      state ^= state << 13
      state ^= state >>> 17
      state ^= state << 5
      if (at + 4 <= bytes.length) bytes.writeInt32LE(state, at)
      else bytes.writeIntLE(state >> 16, at, 2)
    }
  }
}

/** A small positive number as F16. */
function half(value: number): number {
  const exponent = Math.floor(Math.log2(value))
  if (exponent < -14) return Math.round(value * 2 ** 24)
  return ((exponent + 15) << 10) + Math.round((value / 2 ** exponent - 1) * 1024)
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

const stringValue = (value: string) => Buffer.concat([u32(STRING), text(value)])
const numberValue = (value: number) => Buffer.concat([u32(UINT32), u32(value)])
const text = (value: string) => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)])

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value)
  return bytes
}

function u64(value: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64LE(BigInt(value))
  return bytes
}
