import { type FileHandle, open } from 'node:fs/promises'
import { join } from 'node:path'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import type { Catalog } from '../../core/contracts/models.ts'
import { requireFiles, type Storage, type StoredFile, type StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError, isSystemError } from '../../core/errors.ts'
import { bareName, parseModelName } from '../../core/models/model-name.ts'
import { byteRange, isKnown } from './byte-range.ts'
import { type FileVariant, fileOperations } from './operations.ts'

/** Few, large reads: a file is sent as fast as the network takes it. */
const PIECE = 512 * 1024

/** Files of stored models, with ranges and digests. Only what a manifest names can be had. */
export function fileRoutes(storage: Storage, catalog: Catalog): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    app.get('/:owner/:name', { schema: fileOperations.list }, async ({ params }) => {
      const name = parseModelName(`${params.owner}/${params.name}`)
      // A colon in an address would make a variant's name of it.
      const { model } = requireFiles(catalog.get({ owner: name.owner, name: name.name }))
      return { name: bareName(model), variants: storage.variants(model).map(variantRecord) }
    })

    app.route({
      method: ['GET', 'HEAD'],
      url: '/:owner/:name/:label/:revision/*',
      schema: fileOperations.get,
      handler: async (request, reply) => {
        const { owner, name, label, revision, '*': path } = request.params
        const variant = requireFiles(catalog.get(parseModelName(`${owner}/${name}:${label}`)))
        const file = variant.files.find(file => file.path === path)
        if (variant.revision !== revision || !file) throw notFound(variant, revision, path)
        return await sendFile(request, reply, storage, variant, file)
      }
    })
  }
}

function variantRecord({ label, isDefault, revision, format, digest, files }: StoredVariant): FileVariant {
  return {
    label,
    isDefault,
    revision,
    format,
    digest,
    files: files.map(({ path, size, sha256, role }) => ({ path, size, sha256, role }))
  }
}

function notFound({ publicName, revision }: StoredVariant, asked: string, path: string): CorralError {
  const shown = JSON.stringify(path.length > 200 ? `${path.slice(0, 200)}…` : path)
  return new CorralError(
    'model_not_found',
    revision === asked
      ? `The model "${publicName}" has no file ${shown}. List its files, then ask for one of them.`
      : `The model "${publicName}" is not there in that revision any longer. List its files again.`,
    { param: 'path' }
  )
}

async function sendFile(
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

  // From here on the files stay, whoever deletes the model, until the last byte is sent or the client has gone.
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

/** Opens a file of the store. @throws CorralError `internal` when it is not as the manifest says */
async function openWhole(path: string, size: number): Promise<FileHandle> {
  const damaged = (what: string, cause?: unknown) =>
    new CorralError('internal', `A file of this model ${what} on the server that has it. Store the model there anew.`, {
      cause: cause ?? new Error(`${path} ${what}`)
    })
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
  // No error code has this status: it belongs to ranges alone.
  return reply
    .code(416)
    .header('content-range', `bytes */${size}`)
    .send({
      error: `${path} has ${size} bytes; the range begins behind them.`,
      errorCode: 416,
      code: 'invalid_request',
      requestId: request.id
    })
}
