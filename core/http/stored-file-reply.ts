import { type FileHandle, open } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import type { Storage, StoredFile, StoredVariant } from '../contracts/storage.ts'
import { CorralError, isSystemError } from '../errors.ts'
import { nativeErrorBody } from './native-error.ts'
import { json, nativeErrors } from './response-schemas.ts'

/** Large reads, for throughput. */
const PIECE = 512 * 1024

const bytes = { 'application/octet-stream': { schema: Type.Unsafe<Buffer>({}) } }
const header = (description: string) => ({ description, schema: Type.String() })
const fileHeaders = {
  etag: header("The file's SHA-256, in quotes"),
  'accept-ranges': header('bytes'),
  'repr-digest': header("The file's SHA-256, as RFC 9530 has it")
}

/** The replies of a route that sends a stored file, for its schema. */
export const FILE_REPLIES = {
  200: { description: 'The whole file', headers: fileHeaders, content: bytes },
  206: {
    description: 'The range',
    headers: { ...fileHeaders, 'content-range': header('Such as bytes 0-1023/4096') },
    content: bytes
  },
  304: { description: 'Not modified', headers: fileHeaders },
  416: json('The range starts beyond the end of the file', nativeErrors(['invalid_request']))
}

/** Sends a file of a stored variant, or the requested range of it. @throws CorralError `internal` if it is damaged */
export async function sendStoredFile(
  request: FastifyRequest,
  reply: FastifyReply,
  storage: Storage,
  variant: StoredVariant,
  file: StoredFile
): Promise<FastifyReply> {
  const { sha256, size } = file
  const etag = `"${sha256}"`
  reply.headers({
    'accept-ranges': 'bytes',
    etag,
    'repr-digest': `sha-256=:${Buffer.from(sha256, 'hex').toString('base64')}:`
  })
  const { 'if-none-match': ifNoneMatch, 'if-range': ifRange, range } = request.headers
  if (isKnown(ifNoneMatch, etag)) return reply.code(304).send()
  // Ranges are defined for GET only.
  const answer = byteRange(request.method === 'GET' ? { range, 'if-range': String(ifRange ?? etag) } : {}, size, etag)
  if (answer.status === 416) return refuseRange(request, reply, file)
  const { start, end } = answer.status === 206 ? answer : { start: 0, end: size - 1 }
  reply
    .code(answer.status)
    .type('application/octet-stream')
    .header('content-length', String(end - start + 1))
  if (answer.status === 206) reply.header('content-range', `bytes ${start}-${end}/${size}`)
  if (request.method === 'HEAD') return reply.send()

  // Keeps the files, even if the model is deleted, until the last byte is sent or the client disconnects.
  const release = storage.hold(variant)
  let handle: FileHandle | undefined
  try {
    handle = await openWhole(join(variant.directory, ...file.path.split('/')), size)
    if (size === 0) {
      await handle.close()
      release()
      return reply.send('')
    }
    const stream = handle.createReadStream({ start, end, highWaterMark: PIECE })
    stream.once('close', release)
    return reply.send(stream)
  } catch (error) {
    await handle?.close()
    release()
    throw error
  }
}

/** Opens a file of the store. @throws CorralError `internal` if it does not match the manifest */
async function openWhole(path: string, size: number): Promise<FileHandle> {
  const damaged = (what: string, cause: unknown = new Error(`${path} ${what}`)) => {
    const message = `A file of this model ${what} on the server that has it. Store the model there again.`
    return new CorralError('internal', message, { cause })
  }
  let handle: FileHandle
  try {
    handle = await open(path, 'r')
  } catch (error) {
    throw isSystemError(error, 'ENOENT') ? damaged('is missing', error) : error
  }
  const found = await handle.stat()
  if (found.size === size) return handle
  await handle.close()
  throw damaged(`has ${found.size} bytes instead of ${size}`)
}

function refuseRange(request: FastifyRequest, reply: FastifyReply, { path, size }: StoredFile): FastifyReply {
  // No error code has this status, which exists only for ranges.
  const error = new CorralError('invalid_request', `${path} has ${size} bytes; the range starts beyond the end.`)
  return reply
    .code(416)
    .header('content-range', `bytes */${size}`)
    .send({ ...nativeErrorBody(error, request), errorCode: 416 })
}

/** The bytes of a file to send. Both positions are inclusive. */
type RangeAnswer = { status: 200 } | { status: 206; start: number; end: number } | { status: 416 }

/**
 * Evaluates a `Range` header (RFC 9110, 14.2). Several ranges, other units and malformed headers get the whole file,
 * and so does a client whose `If-Range` names another content.
 * @param size bytes of the file
 * @param etag the file's strong entity tag, in quotes
 */
export function byteRange(
  headers: { range?: string | undefined; 'if-range'?: string | undefined },
  size: number,
  etag: string
): RangeAnswer {
  const { range, 'if-range': ifRange } = headers
  if (range === undefined || (ifRange !== undefined && ifRange.trim() !== etag)) return { status: 200 }
  const match = /^bytes=[ \t]*(\d*)-(\d*)[ \t]*$/i.exec(range.trim())
  const [, first, last] = match ?? []
  if (!match || (!first && !last)) return { status: 200 }
  // A suffix range: the last bytes.
  if (!first) {
    const length = Math.min(Number(last), size)
    return length === 0 ? { status: 416 } : { status: 206, start: size - length, end: size - 1 }
  }
  const start = Number(first)
  if (last && Number(last) < start) return { status: 200 }
  if (start >= size) return { status: 416 }
  return { status: 206, start, end: last ? Math.min(Number(last), size - 1) : size - 1 }
}

/** Whether an `If-None-Match` header names this content, so that it need not be sent again. */
export function isKnown(ifNoneMatch: string | undefined, etag: string): boolean {
  if (ifNoneMatch === undefined) return false
  return ifNoneMatch.trim() === '*' || ifNoneMatch.split(',').some(tag => tag.trim().replace(/^W\//, '') === etag)
}
