import type { FastifyPluginAsync, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import { ClientGone } from '../../../core/http/client-signal.ts'
import { takeAnyTime } from '../../../core/http/long-upload.ts'
import { errorResponses, nativeErrors } from '../../../core/http/response-schemas.ts'
import { type BlobStore, parseDigest } from './blob-store.ts'

const params = Type.Object({ digest: Type.String({ description: 'sha256:<64 hex digits>' }) })
const tags = ['Models']
const empty = (description: string) => ({ description, content: {} })

/** Files that models are to be made of: asked for, and sent. */
export function blobRoutes(blobs: BlobStore): FastifyPluginAsync {
  return async app => {
    // Bodies of any size and type, as they arrive.
    app.removeAllContentTypeParsers()
    app.addContentTypeParser('*', (_request, _payload, done) => done(null))

    const find = {
      summary: 'Ask whether a file is here',
      tags,
      operationId: 'findBlob',
      params,
      response: {
        200: empty('It is here'),
        404: empty('It is to be sent'),
        ...errorResponses(nativeErrors, ['invalid_request'], { body: false })
      }
    }
    app.head<{ Params: { digest: string } }>('/blobs/:digest', { schema: find }, async ({ params }, reply) => {
      return await reply.code((await blobs.has(parseDigest(params.digest, 'digest'))) ? 200 : 404).send()
    })

    const store = {
      summary: 'Send a file that a model is to be made of',
      description: 'The body is the file itself. Files that no model was made of are deleted after a day.',
      tags,
      operationId: 'storeBlob',
      consumes: ['application/octet-stream'],
      params,
      response: {
        200: empty('It was here already'),
        201: empty('It is here now'),
        ...errorResponses(nativeErrors, ['invalid_request', 'insufficient_storage'], { body: false })
      }
    }
    app.post<{ Params: { digest: string } }>('/blobs/:digest', { schema: store }, async (request, reply) => {
      const sha256 = parseDigest(request.params.digest, 'digest')
      if (await blobs.has(sha256)) return await reply.code(200).send()
      takeAnyTime(request.raw)
      await blobs.write(sha256, arriving(request), lengthOf(request))
      return await reply.code(201).send()
    })
  }
}

/** A request's body, whose connection outlives it: a refusal is to be read by the client. */
async function* arriving({ raw }: FastifyRequest): AsyncIterable<Buffer> {
  try {
    yield* raw.iterator({ destroyOnReturn: false })
  } catch (error) {
    throw isSystemError(error, 'ECONNRESET', 'ERR_STREAM_PREMATURE_CLOSE') ? new ClientGone() : error
  }
}

function lengthOf({ headers }: FastifyRequest): number | undefined {
  const length = Number(headers['content-length'])
  if (headers['content-length'] === undefined) return undefined
  if (Number.isSafeInteger(length)) return length
  throw new CorralError('invalid_request', 'The header content-length is no length.')
}
