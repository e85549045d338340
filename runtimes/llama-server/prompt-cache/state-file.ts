import { createReadStream } from 'node:fs'
import { type FileHandle, open, stat, writeFile } from 'node:fs/promises'
import { crc32 } from 'node:zlib'

/*
 * Files that llama-server writes for a slot (`llama_context::state_seq_save_file`, `server_tokens::serialize`,
 * `llama_kv_cache::state_write`), in little-endian 32-bit words:
 *
 *   magic "ggsq", version, count of token words, token words,
 *   count of streams, then for each stream its count of cells and, unless that is 0, the cells
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
const CHUNK = 4 * 2 ** 20

export interface StateLayout {
  /** Offset of the count of streams. */
  streamsAt: number
  streams: number
  /** Which stream has the cells. */
  stream: number
  /** Whether images or sounds are among the tokens. */
  media: boolean
  /** The tokens and llama-server's notes about them. */
  tokenWords: Uint32Array
}

/** Reads the layout of a file. Returns undefined if its format is unknown. */
export async function readLayout(path: string): Promise<StateLayout | undefined> {
  const file = await open(path)
  try {
    const { size } = await file.stat()
    const header = await wordsAt(file, 0, 3)
    if (!header || header[0] !== MAGIC || !VERSIONS.includes(header[1]!) || 4 * header[2]! > size) return undefined
    const tokens = await wordsAt(file, HEADER, header[2]!)
    if (!tokens) return undefined
    const streamsAt = HEADER + 4 * header[2]!
    const streams = (await wordsAt(file, streamsAt, 1))?.[0]
    if (!streams || streams > MAX_STREAMS) return undefined
    const counts = await wordsAt(file, streamsAt + 4, streams)
    const stream = counts?.findIndex(count => count > 0) ?? -1
    if (stream < 0) return undefined
    const after = streams - 1 - stream
    const rest = await wordsAt(file, size - 4 * after, after)
    if (!rest || rest.some(count => count > 0)) return undefined
    return { streamsAt, streams, stream, media: hasMedia(tokens), tokenWords: tokens }
  } finally {
    await file.close()
  }
}

/**
 * Token words are a mark, a version, a list of tokens and a list of the positions of media. Each list follows its
 * length.
 */
function hasMedia(words: Uint32Array): boolean {
  if (words[0] !== 0xffffffff) return false
  return words[1] !== 1 || words[3 + words[2]!] !== 0
}

/** Words of a list of tokens before its first token: the mark, the version and the length. */
const LIST_HEAD = 3
/** The chat template may render the last tokens of an earlier state of a conversation differently. */
const SAME_SHARE = 0.9

/** Whether one file's conversation continues the other's. */
export function continues(later: StateLayout, earlier: StateLayout): boolean {
  // The length of a list differs, and after it only tokens matter.
  const from = earlier.tokenWords[0] === 0xffffffff ? LIST_HEAD : 0
  const length = earlier.tokenWords.length - from
  let same = 0
  while (same < length && earlier.tokenWords[from + same] === later.tokenWords[from + same]) same++
  return same >= SAME_SHARE * length
}

async function wordsAt(file: FileHandle, offset: number, count: number): Promise<Uint32Array | undefined> {
  const bytes = Buffer.alloc(4 * count)
  const { bytesRead } = await file.read(bytes, 0, bytes.length, offset)
  if (bytesRead < bytes.length) return undefined
  return Uint32Array.from({ length: count }, (_, i) => bytes.readUInt32LE(4 * i))
}

/** Returns the CRC-32 of a whole file, and its size. @throws the signal's reason */
export async function computeChecksum(path: string, signal: AbortSignal): Promise<{ size: number; crc32: number }> {
  let size = 0
  let sum = 0
  for await (const chunk of toBytes(path, 0, Number.POSITIVE_INFINITY, signal)) {
    sum = crc32(chunk, sum)
    size += chunk.length
  }
  return { size, crc32: sum }
}

/** Yields the bytes of a file from one offset up to another. @throws the signal's reason */
async function* toBytes(path: string, start: number, end: number, signal: AbortSignal): AsyncGenerator<Buffer> {
  signal.throwIfAborted()
  for await (const chunk of createReadStream(path, { start, end: end - 1, highWaterMark: CHUNK })) {
    yield chunk
    signal.throwIfAborted()
  }
}

/** Writes the same cache for an engine with another count of slots. @throws the signal's reason */
export async function rewriteForStreams(
  source: string,
  target: string,
  layout: StateLayout,
  streams: number,
  signal: AbortSignal
): Promise<void> {
  const { size } = await stat(source)
  const count = Buffer.alloc(4)
  count.writeUInt32LE(streams)
  async function* parts() {
    yield* toBytes(source, 0, layout.streamsAt, signal)
    yield count
    const cellsAt = layout.streamsAt + 4 + 4 * layout.stream
    yield* toBytes(source, cellsAt, size - 4 * (layout.streams - 1 - layout.stream), signal)
    yield Buffer.alloc(4 * (streams - 1))
  }
  await writeFile(target, parts(), { flag: 'wx', mode: 0o600 })
}
