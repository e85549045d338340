import { createReadStream } from 'node:fs'
import { type FileHandle, open, rm, stat, writeFile } from 'node:fs/promises'
import { crc32 } from 'node:zlib'

/*
 * Files that llama-server writes for a slot (`llama_context::state_seq_save_file`, `server_tokens::serialize`,
 * `llama_kv_cache::state_write`), in little-endian 32-bit words:
 *
 *   magic "ggsq", version, count of token words, token words, then one part for each cache
 *
 *   a part: count of streams, then for each stream its count of cells and, unless that is 0, the cells
 *   cells:  for each its position, 1, for models with places in images an extension (two words for the place, then the
 *           token), and a sequence; whether values are transposed; count of layers; for each layer the type, the bytes of a row (64
 *           bits) and the rows of the keys, then the same for the values
 *   recurrent part, without streams: 1, a position, 0, 0, count of layers, then type, bytes of a row and the row of
 *           each state
 *
 * An engine has a stream for each of its slots, and a slot's cells are in one of them. llama-server refuses a file
 * whose count of streams differs from its own, and aborts on a truncated file. It does not notice a flipped bit in the
 * cells. So corral verifies a file's checksum before llama-server reads it.
 */

const MAGIC = 0x67677371
/** Lists of tokens were plain in version 2. */
const VERSIONS = [2, 3]
const HEADER = 12
const MAX_STREAMS = 1024
const MAX_LAYERS = 4096
const CHUNK = 4 * 2 ** 20
/** Words of a cell: without extension, with its place in an image, and with its token too. */
const CELLS = [3, 5, 6]
/** Bytes before the rows of a layer: type and bytes of a row. */
const ROWS_HEAD = 12

/** The kinds of memory of a model. They decide what a file contains and where it can be continued. */
export type StateKind =
  /** A cell for every token. A restored state can be continued from any of its tokens. */
  | 'full'
  /** Some layers store only the last tokens. There are two caches. */
  | 'windowed'
  /** Some layers have a state instead of cells, after the cells of the others. */
  | 'recurrent'

/** The part of a file that belongs to one cache. Offsets are bytes from the beginning of the file. */
interface CachePart {
  streamsAt: number
  streams: number
  /** The stream's count of cells, and the cells. */
  cellsAt: number
  cellsEnd: number
  end: number
}

interface Edit {
  from: number
  to: number
  insert: Buffer
}

/** Reads the parts of a file that have streams. Returns undefined if the format is not known completely. */
export async function readParts(path: string, kind: StateKind): Promise<CachePart[] | undefined> {
  return await withFile(path, async (file, size) => {
    const header = await wordsAt(file, 0, 3)
    if (!header || header[0] !== MAGIC || !VERSIONS.includes(header[1]!)) return undefined
    const at = HEADER + 4 * header[2]!
    if (kind === 'full') {
      const part = await readLastPart(file, at, size)
      return part && [part]
    }
    if (kind === 'recurrent' && (await endOfStates(file, at, size)) === size) return []
    const all = (await readPart(file, at))?.part
    if (kind === 'recurrent') return all && (await endOfStates(file, all.end, size)) === size ? [all] : undefined
    const window = all && (await readPart(file, all.end))?.part
    return window?.end === size ? [all!, window] : undefined
  })
}

/** Returns the offset after the states of recurrent layers, or undefined if there are none. */
async function endOfStates(file: FileHandle, from: number, size: number): Promise<number | undefined> {
  const [count, , sequences, transposed, layers] = (await wordsAt(file, from, 5)) ?? []
  if (count !== 1 || sequences !== 0 || transposed !== 0 || !layers || layers > MAX_LAYERS) return undefined
  let at = from + 20
  for (let state = 0; state < 2 * layers && at < size; state++) {
    const [, bytes, high] = (await wordsAt(file, at, 3)) ?? []
    if (bytes === undefined || high !== 0) return undefined
    at += ROWS_HEAD + bytes
  }
  return at
}

/** Reads the part at the end of a file, regardless of its cells. */
async function readLastPart(file: FileHandle, streamsAt: number, size: number): Promise<CachePart | undefined> {
  const found = await findStream(file, streamsAt)
  if (!found) return undefined
  const { streams, stream, cellsAt } = found
  const after = streams - 1 - stream
  const rest = await wordsAt(file, size - 4 * after, after)
  if (!rest || rest.some(count => count > 0)) return undefined
  return { streamsAt, streams, cellsAt, cellsEnd: size - 4 * after, end: size }
}

async function findStream(file: FileHandle, streamsAt: number) {
  const streams = (await wordsAt(file, streamsAt, 1))?.[0]
  if (!streams || streams > MAX_STREAMS) return undefined
  const counts = await wordsAt(file, streamsAt + 4, streams)
  const stream = counts?.findIndex(count => count > 0) ?? -1
  if (stream < 0) return undefined
  return { streams, stream, count: counts![stream]!, cellsAt: streamsAt + 4 + 4 * stream }
}

/** Reads a part with all its rows. Returns undefined if it is not as described above. */
async function readPart(file: FileHandle, streamsAt: number) {
  const found = await findStream(file, streamsAt)
  if (!found) return undefined
  const { streams, stream, count, cellsAt } = found
  let size = 0
  let words: Uint32Array | undefined
  for (size of CELLS) {
    const read = await wordsAt(file, cellsAt + 4, size * count)
    if (read?.every((one, at) => at % size !== 1 || one === 1)) words = read
    if (words) break
  }
  if (!words) return undefined
  const positions = words.filter((_, at) => at % size === 0)
  let at = cellsAt + 4 + words.byteLength
  const [transposed, layers] = (await wordsAt(file, at, 2)) ?? []
  if (transposed !== 0 || !layers || layers > MAX_LAYERS) return undefined
  at += 8
  /** The first row of each layer's keys and values. */
  const rows: { at: number; bytes: number }[] = []
  for (let list = 0; list < 2 * layers; list++) {
    const [, bytes, high] = (await wordsAt(file, at, 3)) ?? []
    if (!bytes || high !== 0) return undefined
    rows.push({ at: at + ROWS_HEAD, bytes })
    at += ROWS_HEAD + bytes * count
  }
  const after = streams - 1 - stream
  const rest = await wordsAt(file, at, after)
  if (!rest || rest.some(other => other > 0)) return undefined
  const part: CachePart = { streamsAt, streams, cellsAt, cellsEnd: at, end: at + 4 * after }
  /** A cell like the others, at another position. */
  const cellAt = (position: number) => word(position, ...words.subarray(1, size))
  return { part, count, positions, rows, cellAt }
}

const word = (...values: number[]) => Buffer.from(Uint32Array.from(values).buffer)

/** Writes the same state for an engine with another count of streams. @throws the signal's reason */
export async function rewriteForStreams(
  source: string,
  target: string,
  parts: readonly CachePart[],
  streams: number,
  signal: AbortSignal
): Promise<void> {
  const edits = parts.flatMap(({ streamsAt, cellsAt, cellsEnd, end }): Edit[] => [
    { from: streamsAt, to: cellsAt, insert: word(streams) },
    { from: cellsEnd, to: end, insert: Buffer.alloc(4 * (streams - 1)) }
  ])
  await rewrite(source, target, edits, signal)
}

/**
 * Makes the state of a model with sliding windows restorable. Such a file has exactly the cells that the next token
 * attends to, but llama-server 0.5.0 accepts a restored state only if it has one more (`pos_min < n_past - n_swa` in
 * server-context.cpp). So an empty cell is added before the others. No token from the end of the state on attends to it.
 * If the next prompt differs anywhere in the state, llama-server still finds the window too short and processes the whole
 * prompt, because the state would have a gap.
 * @param window tokens
 * @returns false if the file cannot be used: the conversation is shorter than the window, or the format is unknown
 */
export async function addWindowCell(
  source: string,
  target: string,
  tokens: number,
  window: number,
  signal: AbortSignal
): Promise<boolean> {
  const edits = await withFile(source, async (file, size): Promise<Edit[] | undefined> => {
    const [, , tokenWords] = (await wordsAt(file, 0, 3)) ?? []
    const all = tokenWords === undefined ? undefined : await readPart(file, HEADER + 4 * tokenWords)
    const own = all && (await readPart(file, all.part.end))
    // If not, the engine's window differs from the metadata, and an added cell could hide a gap.
    if (
      !own ||
      own.part.end !== size ||
      own.positions.reduce((one, other) => Math.min(one, other)) !== tokens - window ||
      tokens <= window
    )
      return undefined
    const { cellsAt } = own.part
    return [
      { from: cellsAt, to: cellsAt + 4, insert: Buffer.concat([word(own.count + 1), own.cellAt(tokens - window - 1)]) },
      ...own.rows.map(({ at, bytes }) => ({ from: at, to: at, insert: Buffer.alloc(bytes) }))
    ]
  })
  if (edits) await rewrite(source, target, edits, signal)
  return edits !== undefined
}

/** Copies a file with edits, which are in order. Leaves no file if it fails. */
async function rewrite(source: string, target: string, edits: readonly Edit[], signal: AbortSignal): Promise<void> {
  const { size } = await stat(source)
  async function* pieces() {
    let at = 0
    for (const { from, to, insert } of edits) {
      yield* readBytes(source, at, from, signal)
      yield insert
      at = to
    }
    yield* readBytes(source, at, size, signal)
  }
  try {
    await writeFile(target, pieces(), { flag: 'wx', mode: 0o600 })
  } catch (error) {
    await rm(target, { force: true })
    throw error
  }
}

/** Returns the CRC-32 of a whole file, and its size. @throws the signal's reason */
export async function computeChecksum(path: string, signal: AbortSignal): Promise<{ size: number; crc32: number }> {
  let size = 0
  let sum = 0
  for await (const chunk of readBytes(path, 0, Number.POSITIVE_INFINITY, signal)) {
    sum = crc32(chunk, sum)
    size += chunk.length
  }
  return { size, crc32: sum }
}

/** Yields the bytes of a file from one offset up to another. @throws the signal's reason */
async function* readBytes(path: string, start: number, end: number, signal: AbortSignal): AsyncGenerator<Buffer> {
  signal.throwIfAborted()
  if (start >= end) return
  for await (const chunk of createReadStream(path, { start, end: end - 1, highWaterMark: CHUNK })) {
    yield chunk
    signal.throwIfAborted()
  }
}

async function withFile<T>(path: string, read: (file: FileHandle, size: number) => Promise<T>): Promise<T> {
  const file = await open(path)
  try {
    return await read(file, (await file.stat()).size)
  } finally {
    await file.close()
  }
}

async function wordsAt(file: FileHandle, offset: number, count: number): Promise<Uint32Array | undefined> {
  if (count < 0 || offset < 0 || offset + 4 * count > (await file.stat()).size) return undefined
  const words = new Uint32Array(count)
  const { bytesRead } = await file.read(words, 0, words.byteLength, offset)
  return bytesRead < words.byteLength ? undefined : words
}
