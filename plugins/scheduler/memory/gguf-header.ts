import { open } from 'node:fs/promises'
import { tensorSize } from '../../../core/models/tensor-size.ts'

/** What a GGUF file's header says of its weights' places and sizes, and its keys without long lists of texts. */
export interface GgufHeader {
  /** Numbers, texts, truth values, and lists of numbers or truth values. Of a list of texts its length. */
  keys: Record<string, unknown>
  tensors: { name: string; shape: number[]; bytes: number }[]
}

/** How much is read at first; a vocabulary makes most headers longer. */
const FIRST_READ = 1 << 20
const MAX_HEADER = 1 << 28
/** No model has more layers, for which such lists are. */
const MAX_LIST = 4096
const MAX_TEXT = 1024

const STRING = 8
const ARRAY = 9
/** Bytes of a value, by GGUF's number of its type. */
const WIDTH: Record<number, number> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }

/** There is more of it behind what was read. */
class CutOff extends Error {}
/** There is a type of values that nobody knows. */
class Unreadable extends Error {}

function widthOf(type: number): number {
  const width = WIDTH[type]
  if (width === undefined) throw new Unreadable()
  return width
}

function createReader(bytes: Buffer) {
  let at = 0
  const take = (length: number) => {
    const start = at
    if (!(length >= 0) || start + length > bytes.length) throw new CutOff()
    at += length
    return start
  }
  const long = () => {
    const start = take(8)
    // Much faster than a BigInt, which matters for a vocabulary.
    return bytes.readUInt32LE(start) + bytes.readUInt32LE(start + 4) * 2 ** 32
  }
  const reader = {
    int: () => bytes.readUInt32LE(take(4)),
    long,
    text(): string {
      const length = long()
      const start = take(length)
      return bytes.toString('utf8', start, start + Math.min(length, MAX_TEXT))
    },
    scalar(type: number): number | boolean {
      const start = take(widthOf(type))
      switch (type) {
        case 0:
          return bytes.readUInt8(start)
        case 1:
          return bytes.readInt8(start)
        case 2:
          return bytes.readUInt16LE(start)
        case 3:
          return bytes.readInt16LE(start)
        case 4:
          return bytes.readUInt32LE(start)
        case 5:
          return bytes.readInt32LE(start)
        case 6:
          return bytes.readFloatLE(start)
        case 7:
          return bytes.readUInt8(start) !== 0
        case 10:
          return Number(bytes.readBigUInt64LE(start))
        case 11:
          return Number(bytes.readBigInt64LE(start))
        default:
          return bytes.readDoubleLE(start)
      }
    },
    value(type: number): unknown {
      if (type === STRING) return reader.text()
      if (type !== ARRAY) return reader.scalar(type)
      const of = reader.int()
      const length = long()
      if (of === STRING) {
        // Lists of texts are vocabularies: hundreds of thousands of them are stepped over.
        for (let left = length; left > 0; left--) take(long())
        return length
      }
      if (length > MAX_LIST) return take(length * widthOf(of)) && length
      return Array.from({ length }, () => reader.scalar(of))
    }
  }
  return reader
}

function parse(bytes: Buffer): GgufHeader | undefined {
  const reader = createReader(bytes)
  if (reader.int() !== 0x46554747 || reader.int() < 2) return undefined
  const tensorCount = reader.long()
  const keyCount = reader.long()
  const keys: GgufHeader['keys'] = {}
  for (let left = keyCount; left > 0; left--) {
    const name = reader.text()
    keys[name] = reader.value(reader.int())
  }
  const tensors: GgufHeader['tensors'] = []
  for (let left = tensorCount; left > 0; left--) {
    const name = reader.text()
    const shape = Array.from({ length: Math.min(reader.int(), 4) }, reader.long)
    const type = reader.int()
    reader.long()
    const weights = shape.reduce((product, length) => product * length, 1)
    tensors.push({ name, shape, bytes: tensorSize(type, weights) })
  }
  return { keys, tensors }
}

/**
 * Reads the header of a GGUF file, which takes some milliseconds whatever its vocabulary (storage's own reader builds
 * all of it, which holds everything else up). Undefined where it is not one, or is damaged; throws as the disk does.
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */
export async function readGgufHeader(path: string): Promise<GgufHeader | undefined> {
  const file = await open(path, 'r')
  try {
    const { size } = await file.stat()
    for (let length = FIRST_READ; ; length *= 4) {
      const { buffer, bytesRead } = await file.read(Buffer.alloc(Math.min(length, size)), 0, Math.min(length, size), 0)
      try {
        return parse(buffer.subarray(0, bytesRead))
      } catch (error) {
        if (error instanceof Unreadable) return undefined
        if (!(error instanceof CutOff)) throw error
        if (length >= size || length >= MAX_HEADER) return undefined
      }
    }
  } finally {
    await file.close()
  }
}
