import type { Transform } from 'node:stream'
import * as zlib from 'node:zlib'
import type { FastifyReply, FastifyRequest, RequestPayload } from 'fastify'
import { CorralError } from '../errors.ts'

const DECODERS: Record<string, () => Transform> = {
  gzip: zlib.createGunzip,
  'x-gzip': zlib.createGunzip,
  deflate: zlib.createInflate,
  br: zlib.createBrotliDecompress,
  // Node.js 22.15 and later have it.
  ...('createZstdDecompress' in zlib && { zstd: zlib.createZstdDecompress as () => Transform })
}
const ACCEPTED = Object.keys(DECODERS).filter(name => name !== 'x-gzip')

/**
 * The body of a request as it was before its `Content-Encoding`. The limits of bodies hold for what comes out, so that a
 * small body that grows without end is refused while it grows.
 * @throws CorralError `unsupported_encoding`
 */
export function decodedBody(request: FastifyRequest, reply: FastifyReply, payload: RequestPayload): RequestPayload {
  const encoding = request.headers['content-encoding']?.trim().toLowerCase() ?? ''
  if (encoding === '' || encoding === 'identity') return payload
  const create = Object.hasOwn(DECODERS, encoding) ? DECODERS[encoding] : undefined
  if (!create) {
    reply.header('accept-encoding', ACCEPTED.join(', '))
    throw new CorralError(
      'unsupported_encoding',
      `The request body has a Content-Encoding that this server does not read. Send it as ${ACCEPTED.join(', ')}, or without one.`,
      { details: { accepted: ACCEPTED } }
    )
  }
  const decoder = create()
  let received = 0
  payload.on('data', chunk => {
    received += chunk.length
  })
  // The framework compares the body's Content-Length with this.
  Object.defineProperty(decoder, 'receivedEncodedLength', { get: () => received })
  payload.once('error', error => decoder.destroy(error))
  // A body that is refused halfway is not read any further.
  reply.raw.once('close', () => decoder.destroy())
  return payload.pipe(decoder)
}
