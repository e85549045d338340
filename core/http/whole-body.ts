import type { Readable } from 'node:stream'

/** Bytes of a body that are kept in the chunks in which they arrived. */
const MAX_PIECES_BYTES = 256 * 1024
/** Increment of the memory for longer bodies, in bytes. */
const GROWTH_BYTES = 2 ** 20

/**
 * Reads a whole body. Long ones are copied into memory that `freeBody` returns to the system: thousands of buffers the
 * size of network packets would fragment the C library's heap.
 * @param most maximum bytes
 * @param done called once, with the bytes (then call `freeBody`) or with the stream's error
 */
export function readWholeBody(
  body: Readable,
  most: number,
  done: (error: Error | null, bytes?: Buffer<ArrayBuffer>) => void
): void {
  const pieces: Buffer[] = []
  let long: Uint8Array<ArrayBuffer> | undefined
  let length = 0
  const add = (piece: Buffer) => {
    const end = length + piece.length
    if (!long && end <= MAX_PIECES_BYTES) pieces.push(piece)
    else {
      long ??= longBody(pieces.splice(0), Math.max(most, end))
      if (end > long.length) long.buffer.resize(Math.min(Math.max(most, end), end + GROWTH_BYTES))
      long.set(piece, length)
    }
    length = end
  }
  const finish = (error?: Error) => {
    body.off('data', add).off('end', finish).off('error', finish)
    if (error) {
      long?.buffer.resize(0)
      done(error)
    } else done(null, long ? Buffer.from(long.buffer, 0, length) : Buffer.concat(pieces, length))
  }
  body.on('data', add).on('end', finish).on('error', finish)
}

/** Frees the memory of a body that `readWholeBody` read. Its bytes must no longer be used. */
export function freeBody({ buffer }: Buffer<ArrayBuffer>): void {
  // V8 does not count memory that a buffer has grown by, and might not free it for minutes.
  if (buffer.resizable) buffer.resize(0)
}

/** The chunks, in memory that grows in place. */
function longBody(pieces: readonly Buffer[], most: number): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(new ArrayBuffer(MAX_PIECES_BYTES, { maxByteLength: most }))
  let at = 0
  for (const piece of pieces) {
    bytes.set(piece, at)
    at += piece.length
  }
  return bytes
}
