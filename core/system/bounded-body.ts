import { promisify } from 'node:util'
import { brotliDecompress, unzip } from 'node:zlib'
import { isSystemError } from '../errors.ts'

/**
 * Reads the body of a response, also a compressed one, up to a maximum size.
 * @returns the bytes, and whether they are the whole body
 */
export async function readBody(
  body: AsyncIterable<Buffer>,
  encoding: string | undefined,
  limit: number
): Promise<{ bytes: Buffer; isWhole: boolean }> {
  const unpack = { gzip: unzip, deflate: unzip, br: brotliDecompress }[encoding ?? '']
  const pieces: Buffer[] = []
  let size = 0
  for await (const piece of body) {
    size += piece.length
    if (size > limit) return { bytes: unpack ? Buffer.alloc(0) : Buffer.concat(pieces), isWhole: false }
    pieces.push(piece)
  }
  const bytes = Buffer.concat(pieces)
  if (!unpack || size === 0) return { bytes, isWhole: true }
  try {
    const whole = await promisify<Buffer, object, Buffer>(unpack)(bytes, { maxOutputLength: limit })
    return { bytes: whole, isWhole: true }
  } catch (error) {
    if (isSystemError(error, 'ERR_BUFFER_TOO_LARGE')) return { bytes: Buffer.alloc(0), isWhole: false }
    throw error
  }
}
