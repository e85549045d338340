import { type FileHandle, open } from 'node:fs/promises'
import { CorralError } from '../errors.ts'

/** What stands at the beginning of a GGUF file. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
export interface GgufHeader {
  /**
   * Metadata: texts, numbers, booleans and lists. Unless the header was read `whole`, long texts are cut off, and a list
   * of texts or a very long list is given as its length.
   */
  keys: Record<string, unknown>
  /** `bytes` is 0 for a type that is newer than corral. */
  tensors: { name: string; shape: number[]; bytes: number }[]
  /** Bytes that the file must have to hold all of its tensors. */
  fileSize: number
}

/** What an import keeps of a GGUF file's header. */
export interface GgufFile {
  metadata: Record<string, unknown>
  tensorCount: number
  /** Weights in this file. */
  parameters: number
  /** It has the layer that classifies texts, by which rerankers score. */
  classifies: boolean
}

/** How much is read at first; a vocabulary makes most headers longer. */
const FIRST_READ = 1 << 20
const MAX_HEADER = 1 << 28
/** No model has more layers, which such lists describe one by one. */
const MAX_LIST = 4096
const MAX_TEXT = 1024
const MAX_DIMENSIONS = 4
const MAX_DIMENSION = 2 ** 36
const DEFAULT_ALIGNMENT = 32

const STRING = 8
const ARRAY = 9
/** Bytes of a value and how it is read, by GGUF's number of its type. */
const SCALARS: Record<number, [width: number, read: (bytes: Buffer, at: number) => number | boolean]> = {
  0: [1, (bytes, at) => bytes.readUInt8(at)],
  1: [1, (bytes, at) => bytes.readInt8(at)],
  2: [2, (bytes, at) => bytes.readUInt16LE(at)],
  3: [2, (bytes, at) => bytes.readInt16LE(at)],
  4: [4, (bytes, at) => bytes.readUInt32LE(at)],
  5: [4, (bytes, at) => bytes.readInt32LE(at)],
  6: [4, (bytes, at) => bytes.readFloatLE(at)],
  7: [1, (bytes, at) => bytes.readUInt8(at) !== 0],
  10: [8, (bytes, at) => Number(bytes.readBigUInt64LE(at))],
  11: [8, (bytes, at) => Number(bytes.readBigInt64LE(at))],
  12: [8, (bytes, at) => bytes.readDoubleLE(at)]
}

/** llama.cpp's names of a classification head's layers; the second may be absent. */
const CLASSIFIER = /^cls(\.output)?\.weight$/

/** The header goes on behind the bytes that were read. */
class CutOff extends Error {}
/** The header cannot be what it says. */
class Unreadable extends Error {}

function scalarOf(type: number) {
  const scalar = SCALARS[type]
  if (scalar === undefined) throw new Unreadable(`values of type ${type} do not exist`)
  return scalar
}

function createReader(bytes: Buffer, whole: boolean) {
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
    position: () => at,
    int: () => bytes.readUInt32LE(take(4)),
    long,
    text(): string {
      const length = long()
      const start = take(length)
      return bytes.toString('utf8', start, start + (whole ? length : Math.min(length, MAX_TEXT)))
    },
    scalar(type: number): number | boolean {
      const [width, read] = scalarOf(type)
      return read(bytes, take(width))
    },
    value(type: number): unknown {
      if (type === STRING) return reader.text()
      if (type !== ARRAY) return reader.scalar(type)
      const itemType = reader.int()
      const length = long()
      if (itemType === STRING) {
        const texts: string[] = []
        // Lists of texts are vocabularies: hundreds of thousands of texts, which are skipped where nobody needs them.
        for (let left = length; left > 0; left--) {
          if (whole) texts.push(reader.text())
          else take(long())
        }
        return whole ? texts : length
      }
      if (length > MAX_LIST && !whole) {
        take(length * scalarOf(itemType)[0])
        return length
      }
      return Array.from({ length }, () => reader.scalar(itemType))
    }
  }
  return reader
}

function parse(bytes: Buffer, whole: boolean): GgufHeader {
  const reader = createReader(bytes, whole)
  reader.long() // the four letters and the version
  const tensorCount = reader.long()
  const keyCount = reader.long()
  const keys: GgufHeader['keys'] = {}
  for (let left = keyCount; left > 0; left--) {
    const name = reader.text()
    keys[name] = reader.value(reader.int())
  }
  const tensors: GgufHeader['tensors'] = []
  let dataSize = 0
  for (let left = tensorCount; left > 0; left--) {
    const name = reader.text()
    const dimensions = reader.int()
    if (dimensions > MAX_DIMENSIONS) throw new Unreadable(`a tensor has ${dimensions} dimensions`)
    const shape = Array.from({ length: dimensions }, reader.long)
    if (shape.some(length => length > MAX_DIMENSION)) throw new Unreadable(`a tensor has the dimensions ${shape}`)
    const type = reader.int()
    const offset = reader.long()
    const bytes = tensorSize(type, weightsIn(shape))
    dataSize = Math.max(dataSize, offset + bytes)
    tensors.push({ name, shape, bytes })
  }
  const alignment = Number(keys['general.alignment'] ?? DEFAULT_ALIGNMENT) || DEFAULT_ALIGNMENT
  const end = reader.position()
  return { keys, tensors, fileSize: dataSize > 0 ? Math.ceil(end / alignment) * alignment + dataSize : end }
}

const weightsIn = (shape: readonly number[]) => shape.reduce((product, length) => product * length, 1)

const damagedFile = (path: string, what: string) =>
  new CorralError('invalid_request', `${path} ${what}. Download or convert it again, then repeat the import.`, {
    param: 'path'
  })

/** Refuses what its first bytes show to be no GGUF file for this machine. @param start up to 24 bytes */
function checkStart(path: string, start: Buffer, size: number): void {
  if (start.length < 4 || start.toString('latin1', 0, 4) !== 'GGUF') {
    throw new CorralError(
      'invalid_request',
      `${path} is not a GGUF file: it does not begin with the four letters "GGUF". ` +
        'Name a GGUF file, or the folder of a SafeTensors model.',
      { param: 'path' }
    )
  }
  if (start.length < 24) {
    throw damagedFile(path, `is cut off: a GGUF header has 24 bytes or more, this file has ${size}`)
  }
  const version = start.readUInt32LE(4)
  if (!(version & 0xffff)) {
    throw damagedFile(path, 'is a GGUF file for big-endian machines, which llama.cpp does not load here')
  }
  if (version < 2 || version > 3) {
    throw damagedFile(path, `is a GGUF file of version ${version}; llama.cpp loads versions 2 and 3`)
  }
  // Before these counts are believed: the least that a key (13 bytes) and a tensor (24 bytes) take.
  if (start.readBigUInt64LE(16) * 13n + start.readBigUInt64LE(8) * 24n > BigInt(size)) {
    throw damagedFile(
      path,
      `is damaged or cut off: its header names more keys and tensors than fit into its ${size} bytes`
    )
  }
}

async function readHeader(
  path: string,
  whole: boolean,
  opened?: FileHandle
): Promise<{ header: GgufHeader; size: number }> {
  const file = opened ?? (await open(path, 'r'))
  try {
    const { size } = await file.stat()
    for (let length = FIRST_READ; ; length *= 4) {
      const wanted = Math.min(length, size)
      const { buffer, bytesRead } = await file.read(Buffer.alloc(wanted), 0, wanted, 0)
      const bytes = buffer.subarray(0, bytesRead)
      checkStart(path, bytes.subarray(0, 24), size)
      try {
        return { header: parse(bytes, whole), size }
      } catch (error) {
        if (error instanceof Unreadable) {
          throw damagedFile(path, `is damaged (${size} bytes): its header cannot be read: ${error.message}`)
        }
        if (!(error instanceof CutOff)) throw error
        if (length >= size)
          throw damagedFile(path, `is damaged or cut off: its header goes on behind its ${size} bytes`)
        if (length >= MAX_HEADER) throw damagedFile(path, `is damaged: its header goes on behind ${MAX_HEADER} bytes`)
      }
    }
  } finally {
    if (!opened) await file.close()
  }
}

/**
 * Reads a GGUF file's header, within milliseconds whatever its vocabulary.
 * @throws CorralError `invalid_request` saying what is wrong with the file; errors of the disk as they are
 */
export async function readGgufHeader(path: string): Promise<GgufHeader> {
  return (await readHeader(path, false)).header
}

/**
 * Reads all of a GGUF file's header and checks that the file holds the data that the header names.
 * @param opened the file, where it is open already; it stays so
 * @throws CorralError `invalid_request` saying what is wrong with the file
 */
export async function readGguf(path: string, opened?: FileHandle): Promise<GgufFile> {
  const { header, size } = await readHeader(path, true, opened)
  const { keys, tensors, fileSize } = header
  if (fileSize > size) throw damagedFile(path, `is cut off: its tensors need ${fileSize} bytes, the file has ${size}`)
  return {
    metadata: keys,
    tensorCount: tensors.length,
    parameters: tensors.reduce((sum, { shape }) => sum + weightsIn(shape), 0),
    classifies: tensors.some(({ name }) => CLASSIFIER.test(name))
  }
}

const QK_K = 256

/** Weights in a block and bytes of a block, by the number that ggml gives the type (gguf-py's GGML_QUANT_SIZES). */
const BLOCKS: Record<number, [weights: number, bytes: number]> = {
  0: [1, 4], // F32
  1: [1, 2], // F16
  2: [32, 18], // Q4_0
  3: [32, 20], // Q4_1
  6: [32, 22], // Q5_0
  7: [32, 24], // Q5_1
  8: [32, 34], // Q8_0
  9: [32, 36], // Q8_1
  10: [QK_K, 84], // Q2_K
  11: [QK_K, 110], // Q3_K
  12: [QK_K, 144], // Q4_K
  13: [QK_K, 176], // Q5_K
  14: [QK_K, 210], // Q6_K
  15: [QK_K, 292], // Q8_K
  16: [QK_K, 66], // IQ2_XXS
  17: [QK_K, 74], // IQ2_XS
  18: [QK_K, 98], // IQ3_XXS
  19: [QK_K, 50], // IQ1_S
  20: [32, 18], // IQ4_NL
  21: [QK_K, 110], // IQ3_S
  22: [QK_K, 82], // IQ2_S
  23: [QK_K, 136], // IQ4_XS
  24: [1, 1], // I8
  25: [1, 2], // I16
  26: [1, 4], // I32
  27: [1, 8], // I64
  28: [1, 8], // F64
  29: [QK_K, 56], // IQ1_M
  30: [1, 2], // BF16
  34: [QK_K, 54], // TQ1_0
  35: [QK_K, 66], // TQ2_0
  39: [32, 17], // MXFP4
  40: [64, 36], // NVFP4
  41: [128, 18], // Q1_0
  42: [64, 18] // Q2_0
}

/** Bytes of a tensor's data; 0 for a type that is newer than this table, of which nothing can be said. */
export function tensorSize(type: number, weights: number): number {
  const block = BLOCKS[type]
  return block ? Math.ceil(weights / block[0]) * block[1] : 0
}
