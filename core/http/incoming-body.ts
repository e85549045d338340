import { Transform } from 'node:stream'
import * as zlib from 'node:zlib'
import type { FastifyReply, FastifyRequest, RequestPayload } from 'fastify'
import { CorralError } from '../errors.ts'
import { formatBytes } from '../system/bytes.ts'
import { ClientDisconnected } from './client-disconnect.ts'
import { sendContinue } from './long-upload.ts'

/** Maximum window of a zstd stream, as a power of two, from RFC 9659. The default would be 128 MiB. */
const MAX_ZSTD_WINDOW_LOG = 23

const DECODERS: Record<string, () => Transform> = {
  gzip: zlib.createGunzip,
  'x-gzip': zlib.createGunzip,
  deflate: zlib.createInflate,
  br: zlib.createBrotliDecompress,
  // Since Node.js 22.15.
  ...('createZstdDecompress' in zlib && { zstd: zstdDecoder })
}
const ACCEPTED = Object.keys(DECODERS).filter(name => name !== 'x-gzip')

function zstdDecoder(): Transform {
  const { createZstdDecompress, constants } = zlib as unknown as {
    createZstdDecompress(options: { params: Record<number, number> }): Transform
    constants: { ZSTD_d_windowLogMax: number }
  }
  return createZstdDecompress({ params: { [constants.ZSTD_d_windowLogMax]: MAX_ZSTD_WINDOW_LOG } })
}

/** Memory of a decoder before it returns anything, in bytes. */
const DECODER_BYTES = 64 * 1024
/** Maximum ratio of a body to its compressed form, for bodies beyond a minimum length. */
const MAX_EXPANSION = 100
const EXPANSION_COUNTS_FROM_BYTES = 2 ** 20

/**
 * The body of a request for the parsers: decoded, within the limit of the route and counted in the memory for bodies. A
 * body is refused before the client is asked to send it, or as soon as too much of it has arrived.
 * @throws CorralError `body_too_large`, `too_busy` or `unsupported_encoding`
 */
export function incomingBody(request: FastifyRequest, reply: FastifyReply, payload: RequestPayload): RequestPayload {
  const { headers, raw, method } = request
  const { 'content-length': length, 'transfer-encoding': transferEncoding } = headers
  if ((length === undefined && transferEncoding === undefined) || method === 'GET' || method === 'HEAD') return payload
  const { bodyLimit, config } = request.routeOptions
  const isStreamed = config.bodySize === 'streamed'
  const encoding = headers['content-encoding']?.trim().toLowerCase() ?? ''
  const isEncoded = encoding !== '' && encoding !== 'identity'
  const decoder = isEncoded && !isStreamed && Object.hasOwn(DECODERS, encoding) ? DECODERS[encoding]! : undefined
  if (isEncoded && !decoder) throw unsupportedEncoding(reply, isStreamed ? [] : ACCEPTED)
  // Code that reads a streamed body asks the client for it.
  if (isStreamed) return payload
  if (Number(length) > bodyLimit) throw tooLarge(request)
  const isCounted = decoder !== undefined || length === undefined
  request.server.bodyMemory.take(request, decoder ? DECODER_BYTES : Number(length ?? 0))
  sendContinue(raw)
  return isCounted ? counted(request, reply, payload, decoder?.()) : payload
}

/** Reads a body of unknown length, with a decoder if it needs one. It fails as soon as the body is too long. */
function counted(
  request: FastifyRequest,
  reply: FastifyReply,
  payload: RequestPayload,
  decoder: Transform | undefined
): RequestPayload {
  const { bodyLimit } = request.routeOptions
  let received = 0
  let decoded = 0
  payload.on('data', chunk => {
    received += chunk.length
  })
  const body = new Transform({
    transform(chunk, _encoding, done) {
      decoded += chunk.length
      try {
        if (decoded > bodyLimit || received > bodyLimit) throw tooLarge(request)
        if (decoded > EXPANSION_COUNTS_FROM_BYTES && decoded > received * MAX_EXPANSION) {
          const message = `The request body is more than ${MAX_EXPANSION} times as long as its compressed form. Send it without a Content-Encoding.`
          throw new CorralError('body_too_large', message)
        }
        request.server.bodyMemory.take(request, chunk.length)
        done(null, chunk)
      } catch (error) {
        done(error as CorralError)
      }
    }
  })
  // Fastify compares the body's Content-Length with this.
  Object.defineProperty(body, 'receivedEncodedLength', { get: () => received })
  const fail = (error: Error) => body.destroy(error)
  // The parser may no longer listen.
  body.on('error', () => {})
  payload.once('error', fail)
  decoder?.once('error', fail)
  // The rest of a refused body is not read.
  body.once('close', () => decoder?.destroy())
  reply.raw.once('close', () => fail(new ClientDisconnected()))
  return (decoder ? payload.pipe(decoder) : payload).pipe(body)
}

function unsupportedEncoding(reply: FastifyReply, accepted: readonly string[]): CorralError {
  reply.header('accept-encoding', accepted.join(', ') || 'identity')
  const advice = accepted.length === 0 ? 'Send it without one.' : `Send it as ${accepted.join(', ')}, or without one.`
  const message = `The request body has a Content-Encoding that this server does not support here. ${advice}`
  return new CorralError('unsupported_encoding', message, { details: { accepted } })
}

function tooLarge({ routeOptions, server }: FastifyRequest): CorralError {
  const { bodyLimit } = routeOptions
  const isServers = bodyLimit === server.initialConfig.bodyLimit
  const message = `The request body is larger than ${isServers ? 'body_limit in config.yaml allows, which is ' : ''}${formatBytes(bodyLimit)}${isServers ? '' : ', the maximum of this route'}. Send a smaller one.`
  return new CorralError('body_too_large', message)
}
