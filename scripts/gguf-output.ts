/** Content of a tensor: random weights, quantized or not, or ones for the weights of norms. */
export type TensorFill = 'q8_0' | 'f16' | 'f32' | 'ones'

export interface OutputTensor {
  name: string
  /** Rows are along the first dimension. */
  shape: number[]
  /** Or the values themselves, stored as F16. */
  fill: TensorFill | Float32Array
}

/**
 * A value of GGUF metadata. Whole numbers are uint32, others float32. Lists of numbers are int32 or float32 as a whole.
 */
export type OutputValue = string | number | boolean | readonly string[] | readonly number[]

const ALIGNMENT = 32
/** Weights in a Q8_0 block, and its bytes: an F16 scale and a byte per weight. */
const BLOCK = 32
const BLOCK_BYTES = 34
/** Standard deviation of uniformly distributed whole numbers from -128 to 127. */
const SPREAD = 74
/** Number of weights generated at a time. */
const CHUNK = 2 ** 20

const VALUE = { uint32: 4, int32: 5, float32: 6, bool: 7, string: 8, array: 9 }
/** ggml's type number, and the size of this many weights in bytes. */
const TENSOR: Record<TensorFill, { type: number; bytes: (weights: number) => number }> = {
  q8_0: { type: 8, bytes: weights => (weights / BLOCK) * BLOCK_BYTES },
  f16: { type: 1, bytes: weights => weights * 2 },
  f32: { type: 0, bytes: weights => weights * 4 },
  ones: { type: 0, bytes: weights => weights * 4 }
}

const getFormat = ({ fill }: OutputTensor) => TENSOR[typeof fill === 'string' ? fill : 'f16']

export function countWeights({ shape }: OutputTensor): number {
  return shape.reduce((all, length) => all * length, 1)
}

/**
 * Yields the bytes of a GGUF file (v3, little-endian). The same seed gives the same file.
 * @param kept additional key-value pairs, as encoded in another file
 */
export function* ggufPieces(
  metadata: Record<string, OutputValue>,
  tensors: readonly OutputTensor[],
  seed: number,
  kept: readonly Uint8Array[] = []
): Generator<Buffer> {
  const pairs = [...kept, ...encodePairs(metadata)]
  const infos: Buffer[] = []
  let offset = 0
  for (const tensor of tensors) {
    const { type, bytes } = getFormat(tensor)
    infos.push(text(tensor.name), u32(tensor.shape.length), ...tensor.shape.map(u64), u32(type), u64(offset))
    offset += padded(bytes(countWeights(tensor)))
  }
  const count = kept.length + Object.keys(metadata).length
  const header = Buffer.concat([Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(count), ...pairs, ...infos])
  yield Buffer.concat([header], padded(header.length))
  const random = createRandom(seed)
  for (const tensor of tensors) yield* dataOf(tensor, random)
}

function encodePairs(metadata: Record<string, OutputValue>): Buffer[] {
  return Object.entries(metadata).map(([key, value]) => Buffer.concat([text(key), typedValue(value)]))
}

/** The parts of a GGUF file that stay unchanged when only its keys change. */
export interface KeptParts {
  pairs: readonly Uint8Array[]
  tensors: number
  infos: Uint8Array
  data: Uint8Array
}

export function ggufWith(metadata: Record<string, OutputValue>, { pairs, tensors, infos, data }: KeptParts): Buffer {
  const all = [...pairs, ...encodePairs(metadata)]
  const header = Buffer.concat([Buffer.from('GGUF'), u32(3), u64(tensors), u64(all.length), ...all, infos])
  return Buffer.concat([Buffer.concat([header], padded(header.length)), data])
}

function* dataOf(tensor: OutputTensor, random: (bytes: Buffer) => void): Generator<Buffer> {
  const weights = countWeights(tensor)
  // Keeps the scale of activations constant from layer to layer. Biases have the scale of their layer.
  const scale = 1 / Math.sqrt(tensor.shape.length > 1 ? weights / tensor.shape.at(-1)! : weights) / SPREAD
  const { fill } = tensor
  if (typeof fill === 'string') {
    for (let left = weights; left > 0; left -= CHUNK) yield createPiece(fill, Math.min(CHUNK, left), scale, random)
  } else yield Buffer.from(Uint16Array.from(fill, half).buffer)
  const size = getFormat(tensor).bytes(weights)
  yield Buffer.alloc(padded(size) - size)
}

function createPiece(fill: TensorFill, weights: number, scale: number, random: (bytes: Buffer) => void): Buffer {
  if (fill === 'ones') return Buffer.from(new Float32Array(weights).fill(1).buffer)
  if (fill === 'q8_0') {
    const blocks = Buffer.alloc(TENSOR.q8_0.bytes(weights))
    random(blocks)
    const bits = half(scale)
    for (let at = 0; at < blocks.length; at += BLOCK_BYTES) blocks.writeUInt16LE(bits, at)
    return blocks
  }
  const numbers = Buffer.alloc(weights)
  random(numbers)
  const values = Float32Array.from(new Int8Array(numbers.buffer, numbers.byteOffset, weights), one => one * scale)
  return Buffer.from(fill === 'f32' ? values.buffer : Uint16Array.from(values, half).buffer)
}

/** Rounds a length up to the alignment. */
export function padded(length: number): number {
  return Math.ceil(length / ALIGNMENT) * ALIGNMENT
}

/** Fills buffers with xorshift32: fast, and the same on every machine. */
function createRandom(seed: number): (bytes: Buffer) => void {
  let state = seed | 0 || 1
  return bytes => {
    for (let at = 0; at < bytes.length; at += 4) {
      state ^= state << 13
      state ^= state >>> 17
      state ^= state << 5
      if (at + 4 <= bytes.length) bytes.writeInt32LE(state, at)
      else for (let rest = at; rest < bytes.length; rest++) bytes[rest] = state >> (8 * (rest - at))
    }
  }
}

/** Converts a number up to 65504 to F16. */
function half(value: number): number {
  const size = Math.abs(value)
  const sign = value < 0 ? 0x8000 : 0
  const exponent = Math.floor(Math.log2(size))
  if (exponent < -14) return sign + Math.round(size * 2 ** 24)
  return sign + ((exponent + 15) << 10) + Math.round((size / 2 ** exponent - 1) * 1024)
}

function typedValue(value: OutputValue): Buffer {
  if (typeof value === 'string') return Buffer.concat([u32(VALUE.string), text(value)])
  if (typeof value === 'boolean') return Buffer.concat([u32(VALUE.bool), Buffer.from([value ? 1 : 0])])
  if (typeof value === 'number') {
    return Buffer.concat(Number.isInteger(value) ? [u32(VALUE.uint32), u32(value)] : [u32(VALUE.float32), f32(value)])
  }
  const items = value as readonly (string | number)[]
  const whole = items.every(item => Number.isInteger(item))
  const type = typeof items[0] === 'string' ? VALUE.string : whole ? VALUE.int32 : VALUE.float32
  const bytes = items.map(item => (typeof item === 'string' ? text(item) : whole ? u32(item) : f32(item)))
  return Buffer.concat([u32(VALUE.array), u32(type), u64(items.length), ...bytes])
}

function text(value: string): Buffer {
  return Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)])
}

const u32 = (value: number) => Buffer.from(new Uint32Array([value]).buffer)
const f32 = (value: number) => Buffer.from(new Float32Array([value]).buffer)
const u64 = (value: number) => Buffer.from(new BigUint64Array([BigInt(value)]).buffer)
