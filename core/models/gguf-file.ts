import { type FileHandle, open } from 'node:fs/promises'
import { invalidRequest } from '../errors.ts'
import { printable } from '../system/printable.ts'
import { isWebPage, pageTitle } from '../system/web-page.ts'

/** Bytes at the beginning of a file that `foreignStart` reads. */
export const START_SIZE = 4096

/** Explains why a file is not a model if it is something that is often saved as one. @param start its first bytes */
export function foreignStart(path: string, start: Buffer): string | undefined {
  const text = start.toString('utf8', 0, START_SIZE)
  const name = JSON.stringify(printable(path))
  if (/^version https:\/\/(?:git-lfs|hawser)\.github\.com\/spec\//.test(text)) {
    return `${name} is a Git LFS pointer, not the model itself: run "git lfs pull" in its folder, or download the file.`
  }
  if (!isWebPage(text)) return undefined
  return `${name} is a web page${pageTitle(text, 'its title:')}, not a model: its server may ask for a login first. Download the file again.`
}

/** The header of a GGUF file. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
export interface GgufHeader {
  /** Metadata. A long list, such as the vocabulary, is `{ length }`. A very long text is left out. */
  keys: Record<string, unknown>
  /** Whether the vocabulary has one of the requested tokens. */
  hasToken: boolean
  /** `bytes` is 0 for an unknown type. */
  tensors: { name: string; shape: number[]; bytes: number }[]
  /** Minimum file size in bytes to contain all tensors. */
  fileSize: number
}

/** The number of items of a list in `GgufHeader.keys`; undefined for anything else. */
export function listLength(value: unknown): number | undefined {
  return typeof value === 'object' && value !== null && 'length' in value ? Number(value.length) : undefined
}

export interface GgufFile {
  metadata: Record<string, unknown>
  hasToken: boolean
  tensorCount: number
  /** Weights in this file. */
  parameters: number
  /** Whether it has the classification layer that rerankers use for scores. */
  classifies: boolean
}

/** Bytes that are read and parsed before other requests get their turn. */
const READ_SIZE = 1 << 20
/** Bytes; the vocabularies of large models take about 20 MB. */
const MAX_HEADER = 1 << 28
const MAX_KEYS = 10_000
/** Models with hundreds of experts with separate weights have about 50,000. */
const MAX_TENSORS = 200_000
/** Maximum items of a list that is read. No model has more layers, which such lists describe one by one. */
const MAX_LIST = 4096
/** Bytes of the name of a key or tensor, and of a text in a list. */
const MAX_NAME = 1024
/** Bytes of a text: chat templates have at most about 100 kB. */
const MAX_TEXT = 1 << 20
/** Bytes of all texts together. */
const MAX_TEXTS = 1 << 24
const MAX_DIMENSIONS = 4
const MAX_DIMENSION = 2 ** 36
const DEFAULT_ALIGNMENT = 32
const VOCABULARY = 'tokenizer.ggml.tokens'

const UINT32 = 4
const STRING = 8
const ARRAY = 9
/** Width in bytes and reader of each scalar type, by GGUF's number. */
const SCALARS: Record<number, [width: number, read: (bytes: Buffer, at: number) => number | boolean]> = {
  0: [1, (bytes, at) => bytes.readUInt8(at)],
  1: [1, (bytes, at) => bytes.readInt8(at)],
  2: [2, (bytes, at) => bytes.readUInt16LE(at)],
  3: [2, (bytes, at) => bytes.readInt16LE(at)],
  [UINT32]: [4, (bytes, at) => bytes.readUInt32LE(at)],
  5: [4, (bytes, at) => bytes.readInt32LE(at)],
  6: [4, (bytes, at) => bytes.readFloatLE(at)],
  7: [1, (bytes, at) => bytes.readUInt8(at) !== 0],
  10: [8, (bytes, at) => Number(bytes.readBigUInt64LE(at))],
  11: [8, (bytes, at) => Number(bytes.readBigInt64LE(at))],
  12: [8, (bytes, at) => bytes.readDoubleLE(at)]
}

/** llama.cpp's names of the layers of a classification head. The second layer may be absent. */
const CLASSIFIER = /^cls(\.output)?\.weight$/

/** The header cannot be used. The message is a clause that explains why. */
class Unreadable extends Error {}

function scalarOf(type: number) {
  if (!SCALARS[type]) throw new Unreadable(`its header has a value of the unknown type ${type}`)
  return SCALARS[type]
}

/** A file, or a fetched part of a file. */
type Source = { read(into: Buffer, offset: number, length: number, at: number): Promise<{ bytesRead: number }> }

/** Reads a header from a file piece by piece. Skipped parts are not read. */
class HeaderReader {
  readonly #file: Source
  readonly #size: number
  /** A part of the file, its offset, and the position in it. */
  #bytes: Buffer = Buffer.alloc(0)
  #start = 0
  #at = 0
  #textBytes = 0

  constructor(file: Source, size: number) {
    this.#file = file
    this.#size = size
  }

  get position(): number {
    return this.#start + this.#at
  }

  /** Makes this many bytes available. @returns undefined if they already are: most are, and awaiting is slow */
  #need(length: number): Promise<void> | undefined {
    return this.#at + length <= this.#bytes.length ? undefined : this.#load(length)
  }

  async #load(length: number): Promise<void> {
    const { position } = this
    this.#check(length)
    const wanted = Math.min(Math.max(READ_SIZE, length), this.#size - position)
    const buffer = Buffer.allocUnsafe(wanted)
    const { bytesRead } = await this.#file.read(buffer, 0, wanted, position)
    if (bytesRead < length) throw new Unreadable(`its header continues after its ${this.#size} bytes`)
    this.#bytes = buffer.subarray(0, bytesRead)
    this.#start = position
    this.#at = 0
  }

  #check(length: number): void {
    const end = this.position + length
    if (end > this.#size) throw new Unreadable(`its header continues after its ${this.#size} bytes`)
    if (end > MAX_HEADER) throw new Unreadable(`its header has more than ${MAX_HEADER} bytes`)
  }

  skip(length: number): void {
    this.#check(length)
    this.#at += length
    if (this.#at <= this.#bytes.length) return
    this.#start += this.#at
    this.#at = 0
    this.#bytes = Buffer.alloc(0)
  }

  #take(length: number): number {
    this.#at += length
    return this.#at - length
  }

  async int(): Promise<number> {
    await this.#need(4)
    return this.#bytes.readUInt32LE(this.#take(4))
  }

  async long(): Promise<number> {
    await this.#need(8)
    return this.#long()
  }

  /** Much faster than a BigInt, which matters for a vocabulary. */
  #long(): number {
    const at = this.#take(8)
    return this.#bytes.readUInt32LE(at) + this.#bytes.readUInt32LE(at + 4) * 2 ** 32
  }

  async #text(length: number): Promise<string> {
    this.#textBytes += length
    if (this.#textBytes > MAX_TEXTS) throw new Unreadable(`its header has more than ${MAX_TEXTS} bytes of texts`)
    await this.#need(length)
    return this.#bytes.toString('utf8', this.#take(length), this.#at)
  }

  async name(): Promise<string> {
    const length = await this.long()
    if (length > MAX_NAME) throw new Unreadable(`its header has a name of ${length} bytes`)
    return await this.#text(length)
  }

  async scalar(type: number): Promise<number | boolean> {
    const [width, read] = scalarOf(type)
    await this.#need(width)
    return read(this.#bytes, this.#take(width))
  }

  /** Reads a value. Returns undefined for a text that is too long. */
  async value(type: number): Promise<unknown> {
    if (type !== STRING && type !== ARRAY) return await this.scalar(type)
    if (type === ARRAY) return await this.#list(await this.int(), await this.long())
    const length = await this.long()
    if (length <= MAX_TEXT) return await this.#text(length)
    this.skip(length)
    return undefined
  }

  async #list(type: number, length: number): Promise<unknown> {
    if (type === STRING) {
      const texts = await this.texts(length, length <= MAX_LIST ? undefined : [])
      return length <= MAX_LIST ? texts : { length }
    }
    if (length > MAX_LIST) {
      this.skip(length * scalarOf(type)[0])
      return { length }
    }
    const items: unknown[] = []
    while (items.length < length) items.push(await this.scalar(type))
    return items
  }

  /** Reads a list of texts. @param wanted the only texts to decode; undefined for all that are not too long */
  async texts(length: number, wanted?: readonly Buffer[]): Promise<string[]> {
    const texts: string[] = []
    for (let left = length; left > 0; left--) {
      const loading = this.#need(8)
      if (loading) await loading
      const size = this.#long()
      const fits = wanted ? wanted.some(token => token.length === size) : size <= MAX_NAME
      if (!fits) {
        this.skip(size)
        continue
      }
      await this.#need(size)
      const isWanted = wanted?.some(token => token.equals(this.#bytes.subarray(this.#at, this.#at + size))) ?? true
      if (isWanted) texts.push(await this.#text(size))
      else this.#at += size
    }
    return texts
  }
}

/** Adds the keys of a header to a map. @returns whether the vocabulary has one of the wanted tokens */
async function readKeys(reader: HeaderReader, keys: Map<string, unknown>, wanted: readonly string[] = []) {
  const count = await reader.long()
  if (count > MAX_KEYS) throw new Unreadable(`its header has ${count} keys, more than ${MAX_KEYS}`)
  const sought = wanted.map(token => Buffer.from(token))
  let hasToken = false
  for (let left = count; left > 0; left--) {
    const name = await reader.name()
    if (keys.has(name)) throw new Unreadable(`its header has the key ${quoted(name)} twice`)
    const type = await reader.int()
    if (name === 'general.alignment' && type !== UINT32) throw new Unreadable('its general.alignment is not a uint32')
    if (name !== VOCABULARY || type !== ARRAY) {
      keys.set(name, await reader.value(type))
      continue
    }
    if ((await reader.int()) !== STRING) throw new Unreadable(`its ${VOCABULARY} is not a list of texts`)
    const length = await reader.long()
    hasToken = (await reader.texts(length, sought)).length > 0
    keys.set(name, { length })
  }
  return hasToken
}

async function parse(reader: HeaderReader, wanted: readonly string[]): Promise<GgufHeader> {
  await reader.long() // the four letters and the version
  const tensorCount = await reader.long()
  if (tensorCount > MAX_TENSORS) throw new Unreadable(`its header has ${tensorCount} tensors, more than ${MAX_TENSORS}`)
  const keys = new Map<string, unknown>()
  const hasToken = await readKeys(reader, keys, wanted)
  const alignment = (keys.get('general.alignment') ?? DEFAULT_ALIGNMENT) as number
  if (!Number.isInteger(Math.log2(alignment))) {
    throw new Unreadable(`its general.alignment is ${alignment}, which is not a power of two`)
  }
  const tensors: GgufHeader['tensors'] = []
  const names = new Set<string>()
  let dataSize = 0
  for (let left = tensorCount; left > 0; left--) {
    const name = await reader.name()
    if (names.has(name)) throw new Unreadable(`its header has the tensor ${quoted(name)} twice`)
    names.add(name)
    const dimensions = await reader.int()
    if (dimensions > MAX_DIMENSIONS) throw new Unreadable(`its tensor ${quoted(name)} has ${dimensions} dimensions`)
    const shape: number[] = []
    while (shape.length < dimensions) shape.push(await reader.long())
    if (shape.some(length => length > MAX_DIMENSION) || !Number.isSafeInteger(weightsIn(shape))) {
      throw new Unreadable(`its tensor ${quoted(name)} has the impossible shape ${shape.join(' × ')}`)
    }
    const type = await reader.int()
    const offset = await reader.long()
    const bytes = tensorSize(type, weightsIn(shape))
    if (!Number.isSafeInteger(offset + bytes)) {
      throw new Unreadable(`its tensor ${quoted(name)} begins at the impossible offset ${offset}`)
    }
    dataSize = Math.max(dataSize, offset + bytes)
    tensors.push({ name, shape, bytes })
  }
  const end = reader.position
  const fileSize = dataSize > 0 ? Math.ceil(end / alignment) * alignment + dataSize : end
  return { keys: Object.fromEntries(keys), hasToken, tensors, fileSize }
}

const weightsIn = (shape: readonly number[]) => shape.reduce((product, length) => product * length, 1)
const quoted = (name: string) => JSON.stringify(printable(name, 80))

const damagedFile = (path: string, what: string) =>
  invalidRequest('path', `${path} ${what}. Download or convert it again, then repeat the import.`)

/** Refuses a file whose first bytes (`START_SIZE`) show that it is not a GGUF file for this machine. */
function checkStart(path: string, start: Buffer, size: number): void {
  if (start.toString('latin1', 0, 4) !== 'GGUF') {
    const other = `${path} is not a GGUF file: it does not begin with the four letters "GGUF". Name a GGUF file, or the folder of a SafeTensors model.`
    throw invalidRequest('path', foreignStart(path, start) ?? other)
  }
  if (start.length < 24) {
    throw damagedFile(path, `is truncated: a GGUF header has 24 bytes or more, this file has ${size}`)
  }
  const version = start.readUInt32LE(4)
  if (!(version & 0xffff)) {
    throw damagedFile(path, 'is a GGUF file for big-endian machines, which llama.cpp does not load here')
  }
  if (version < 2 || version > 3) {
    throw damagedFile(path, `is a GGUF file of version ${version}; llama.cpp loads versions 2 and 3`)
  }
  // Checks the counts before they are used: a key takes at least 13 bytes, a tensor 24.
  if (start.readBigUInt64LE(16) * 13n + start.readBigUInt64LE(8) * 24n > BigInt(size)) {
    const what = `its header names more keys and tensors than fit into its ${size} bytes`
    throw damagedFile(path, `is damaged or truncated: ${what}`)
  }
}

/**
 * Reads a GGUF file's header, in slices between which other requests are answered.
 * @param opened the file, if it is open already; it stays open
 * @param tokens texts to search for in the vocabulary
 * @throws CorralError `invalid_request` that says what is wrong with the file; errors of the disk unchanged
 */
export async function readGgufHeader(
  path: string,
  opened?: FileHandle,
  tokens: readonly string[] = []
): Promise<GgufHeader & { size: number }> {
  const file = opened ?? (await open(path, 'r'))
  try {
    const { size } = await file.stat()
    const { buffer, bytesRead } = await file.read(Buffer.alloc(START_SIZE), 0, START_SIZE, 0)
    checkStart(path, buffer.subarray(0, bytesRead), size)
    return { ...(await parse(new HeaderReader(file, size), tokens)), size }
  } catch (error) {
    throw error instanceof Unreadable ? damagedFile(path, `is damaged or truncated: ${error.message}`) : error
  } finally {
    if (!opened) await file.close()
  }
}

/** The keys in the first bytes of a GGUF file. Keys that describe the model come before the vocabulary. */
export async function ggufStart(bytes: Buffer): Promise<GgufHeader['keys']> {
  const keys = new Map<string, unknown>()
  if (bytes.toString('latin1', 0, 4) !== 'GGUF') return {}
  const read: Source['read'] = async (into, _, length, position) => {
    return { bytesRead: bytes.copy(into, 0, position, position + length) }
  }
  const reader = new HeaderReader({ read }, bytes.length)
  try {
    await reader.long()
    await reader.long()
    await readKeys(reader, keys)
  } catch (error) {
    if (!(error instanceof Unreadable)) throw error
  }
  return Object.fromEntries(keys)
}

/** Reads facts about a file that contains all the data of its header. @throws as `readGgufHeader` */
export async function readGguf(path: string, opened?: FileHandle, tokens: readonly string[] = []): Promise<GgufFile> {
  const { keys, hasToken, tensors, fileSize, size } = await readGgufHeader(path, opened, tokens)
  if (fileSize > size) throw damagedFile(path, `is truncated: its tensors need ${fileSize} bytes, the file has ${size}`)
  return {
    metadata: keys,
    hasToken,
    tensorCount: tensors.length,
    parameters: tensors.reduce((sum, { shape }) => sum + weightsIn(shape), 0),
    classifies: tensors.some(({ name }) => CLASSIFIER.test(name))
  }
}

/** ggml's types: number, name, weights in a block and bytes of a block (gguf-py's GGML_QUANT_SIZES). */
const TYPES = `0 F32 1 4, 1 F16 1 2, 2 Q4_0 32 18, 3 Q4_1 32 20, 6 Q5_0 32 22, 7 Q5_1 32 24, 8 Q8_0 32 34, 9 Q8_1 32 36,
  10 Q2_K 256 84, 11 Q3_K 256 110, 12 Q4_K 256 144, 13 Q5_K 256 176, 14 Q6_K 256 210, 15 Q8_K 256 292,
  16 IQ2_XXS 256 66, 17 IQ2_XS 256 74, 18 IQ3_XXS 256 98, 19 IQ1_S 256 50, 20 IQ4_NL 32 18, 21 IQ3_S 256 110,
  22 IQ2_S 256 82, 23 IQ4_XS 256 136, 24 I8 1 1, 25 I16 1 2, 26 I32 1 4, 27 I64 1 8, 28 F64 1 8, 29 IQ1_M 256 56,
  30 BF16 1 2, 34 TQ1_0 256 54, 35 TQ2_0 256 66, 39 MXFP4 32 17, 40 NVFP4 64 36, 41 Q1_0 128 18, 42 Q2_0 64 18`
const BLOCKS = new Map(
  TYPES.split(/,\s+/).map(type => {
    const [number, , weights, bytes] = type.split(' ').map(Number)
    return [number!, { weights: weights!, bytes: bytes! }]
  })
)

/** Bytes of a tensor's data; 0 for an unknown type. */
export function tensorSize(type: number, weights: number): number {
  const block = BLOCKS.get(type)
  return block ? Math.ceil(weights / block.weights) * block.bytes : 0
}
