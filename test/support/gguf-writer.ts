import { truncateSync, writeFileSync } from 'node:fs'
import { tensorSize } from '../../core/models/gguf-file.ts'

type Scalar = string | number | boolean | bigint
export interface GgufParts {
  /**
   * Strings, booleans, numbers (float32 if fractional, otherwise uint32), bigints (uint64), and arrays of strings,
   * whole numbers (int32) or booleans.
   */
  metadata?: Record<string, Scalar | string[] | number[] | boolean[]>
  /** Name, shape and ggml type (0 is F32) of each tensor. The data is a pattern based on `seed`. */
  tensors?: { name: string; shape: number[]; type?: number }[]
  seed?: number
}

const TYPE = { uint32: 4, int32: 5, float32: 6, bool: 7, string: 8, array: 9, uint64: 10 }
const ALIGNMENT = 32
export const u32 = (value: number) => {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value)
  return bytes
}
export const u64 = (value: number | bigint) => {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64LE(BigInt(value))
  return bytes
}
/** A string in GGUF form: its length, then its bytes. */
export const ggufText = (value: string) => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)])

function arrayItem(value: string | number | boolean): Buffer {
  if (typeof value === 'string') return ggufText(value)
  if (typeof value === 'boolean') return Buffer.from([value ? 1 : 0])
  const bytes = Buffer.alloc(4)
  bytes.writeInt32LE(value)
  return bytes
}

function metadataValue(value: Scalar | string[] | number[] | boolean[]): Buffer {
  if (typeof value === 'string') return Buffer.concat([u32(TYPE.string), ggufText(value)])
  if (typeof value === 'boolean') return Buffer.concat([u32(TYPE.bool), Buffer.from([value ? 1 : 0])])
  if (typeof value === 'bigint') return Buffer.concat([u32(TYPE.uint64), u64(value)])
  if (Array.isArray(value)) {
    const type = { string: TYPE.string, boolean: TYPE.bool, number: TYPE.int32 }[typeof value[0] as 'string']
    return Buffer.concat([u32(TYPE.array), u32(type ?? TYPE.string), u64(value.length), ...value.map(arrayItem)])
  }
  if (Number.isInteger(value)) return Buffer.concat([u32(TYPE.uint32), u32(value)])
  const bytes = Buffer.alloc(4)
  bytes.writeFloatLE(value)
  return Buffer.concat([u32(TYPE.float32), bytes])
}

/** The header of a GGUF v3 file, and the size of the data behind it in bytes. */
function ggufStart({ metadata = {}, tensors = [{ name: 'a', shape: [8] }] }: GgufParts): {
  start: Buffer
  data: number
} {
  const keys = Object.entries(metadata)
  const infos: Buffer[] = []
  let offset = 0
  for (const { name, shape, type = 0 } of tensors) {
    infos.push(ggufText(name), u32(shape.length), ...shape.map(u64), u32(type), u64(offset))
    const weights = shape.reduce((product, length) => product * length, 1)
    offset += Math.ceil((tensorSize(type, weights) || weights * 4) / ALIGNMENT) * ALIGNMENT
  }
  const header = Buffer.concat([
    Buffer.from('GGUF'),
    u32(3),
    u64(tensors.length),
    u64(keys.length),
    ...keys.flatMap(([key, value]) => [ggufText(key), metadataValue(value)]),
    ...infos
  ])
  const padding = Buffer.alloc((ALIGNMENT - (header.length % ALIGNMENT)) % ALIGNMENT)
  return { start: Buffer.concat([header, padding]), data: offset }
}

/** The bytes of a GGUF v3 file. Unknown tensor types take as much space as F32. */
export function ggufBytes(parts: GgufParts = {}): Buffer {
  const { start, data } = ggufStart(parts)
  return Buffer.concat([start, Buffer.alloc(data, parts.seed ?? 1)])
}

/** Writes a GGUF file of any size with weights of zero, which take no space on a disk with sparse files. */
export function writeSparseGguf(path: string, parts: GgufParts): void {
  const { start, data } = ggufStart(parts)
  writeFileSync(path, start)
  truncateSync(path, start.length + data)
}

/** Writes a small GGUF model of the Llama architecture. `metadata` adds or replaces keys. */
export function writeGguf(path: string, parts: GgufParts = {}): void {
  const metadata = {
    'general.architecture': 'llama',
    'llama.context_length': 4096,
    'llama.embedding_length': 64,
    ...parts.metadata
  }
  writeFileSync(path, ggufBytes({ ...parts, metadata }))
}

/** The bytes of a SafeTensors file with one BF16 tensor of this many weights. */
export function safetensorsBytes(weights = 16, seed = 1): Buffer {
  const header = Buffer.from(JSON.stringify({ w: { dtype: 'BF16', shape: [weights], data_offsets: [0, weights * 2] } }))
  return Buffer.concat([u64(header.length), header, Buffer.alloc(weights * 2, seed)])
}
