import { type FileHandle, open } from 'node:fs/promises'
import { join } from 'node:path'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import { type Static, Type } from 'typebox'
import type { Catalog } from '../../core/contracts/models.ts'
import { Format, Sha256, ShownModelSchema } from '../../core/contracts/native-records.ts'
import { requireFiles, type Storage, type StoredFile, type StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError, isSystemError } from '../../core/errors.ts'
import { nativeErrorBody } from '../../core/http/native-error.ts'
import { Titled } from '../../core/http/request-fields.ts'
import { FILE_ERRORS, json, nativeErrors, nativeRoute } from '../../core/http/response-schemas.ts'
import { catalogFor } from '../../core/models/allowed-models.ts'
import { bareName, parseModelName } from '../../core/models/model-name.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'

export default definePlugin({
  name: 'api-files',
  api: 1,
  description: "The models' files under /api/files, from which other corrals pull",
  optional: true,
  needs: ['storage', 'catalog'],
  options: Type.Object({}, { additionalProperties: false, restart: true }),
  setup(context) {
    const routes = fileRoutes(context.service('storage'), context.service('catalog'))
    return { routes: async app => void (await app.register(routes, { prefix: '/api/files' })) }
  }
})

/** Few, large reads: a file is sent as fast as the network takes it. */
const PIECE = 512 * 1024

const FileVariantSchema = Titled('FileVariant', {
  label: Type.String({ description: 'Such as Q8_0' }),
  isDefault: Type.Boolean(),
  revision: Type.String({ description: 'Identifies exactly these files' }),
  format: Format,
  digest: Sha256(),
  files: ShownModelSchema.properties.files
})
type FileVariant = Static<typeof FileVariantSchema>

const model = {
  owner: Type.String({ description: "The model's owner" }),
  name: Type.String({ description: "The model's name" })
}
const bytes = { 'application/octet-stream': { schema: Type.Unsafe<Buffer>({}) } }
const header = (description: string) => ({ description, schema: Type.String() })
const fileHeaders = {
  etag: header("The file's SHA-256, in quotes"),
  'accept-ranges': header('bytes'),
  'repr-digest': header("The file's SHA-256, as RFC 9530 has it")
}

const listFiles = nativeRoute('Files of models', 'listFiles', 'List the files of a model', {
  role: 'operator',
  params: Type.Object(model),
  response: {
    200: json('Its variants', Titled('ModelFiles', { name: Type.String(), variants: Type.Array(FileVariantSchema) }))
  },
  errors: FILE_ERRORS
})
const getFile = nativeRoute('Files of models', 'getFile', 'Download a file of a model', {
  role: 'operator',
  description: 'Only files that the model has in that revision. One range at a time.',
  params: Type.Object({
    ...model,
    label: Type.String({ description: 'Variant, such as Q8_0' }),
    revision: Type.String({ description: 'As in the list of files' }),
    '*': Type.String({ title: 'path', description: 'As in the list of files' })
  }),
  headers: Type.Object({
    range: Type.Optional(Type.String({ description: 'Such as bytes=0-1023' })),
    'if-range': Type.Optional(Type.String({ description: 'The etag that the range refers to' })),
    'if-none-match': Type.Optional(Type.String({ description: 'An etag that the client has' }))
  }),
  response: {
    200: { description: 'The whole file', headers: fileHeaders, content: bytes },
    206: {
      description: 'The range',
      headers: { ...fileHeaders, 'content-range': header('Such as bytes 0-1023/4096') },
      content: bytes
    },
    304: { description: 'Not modified', headers: fileHeaders },
    416: json('The range starts beyond the end of the file', nativeErrors(['invalid_request']))
  },
  errors: FILE_ERRORS
})

/** Files of stored models, with ranges and digests. Only what a manifest names can be had. */
function fileRoutes(storage: Storage, catalog: Catalog): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    app.get('/:owner/:name', listFiles, async ({ params, caller }) => {
      const name = parseModelName(`${params.owner}/${params.name}`)
      // A colon in an address would make a variant's name of it.
      const { model } = requireFiles(catalogFor(catalog, caller).get({ owner: name.owner, name: name.name }))
      return { name: bareName(model), variants: storage.variants(model).map(variantRecord) }
    })

    app.route({
      method: ['GET', 'HEAD'],
      url: '/:owner/:name/:label/:revision/*',
      ...getFile,
      handler: async (request, reply) => {
        const { owner, name, label, revision, '*': path } = request.params
        const variant = requireFiles(
          catalogFor(catalog, request.caller).get(parseModelName(`${owner}/${name}:${label}`))
        )
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

function notFound({ publicName, revision }: StoredVariant, requested: string, path: string): CorralError {
  const shown = JSON.stringify(path.length > 200 ? `${path.slice(0, 200)}…` : path)
  return new CorralError(
    'model_not_found',
    revision === requested
      ? `The model "${publicName}" has no file ${shown}. List its files, then ask for one of them.`
      : `The model "${publicName}" is no longer there in that revision. List its files again.`,
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

  // From here on the files stay, even if the model is deleted, until the last byte is sent or the client has gone.
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
    new CorralError(
      'internal',
      `A file of this model ${what} on the server that has it. Store the model there again.`,
      {
        cause: cause ?? new Error(`${path} ${what}`)
      }
    )
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
  const error = new CorralError('invalid_request', `${path} has ${size} bytes; the range starts beyond the end.`)
  return reply
    .code(416)
    .header('content-range', `bytes */${size}`)
    .send({ ...nativeErrorBody(error, request), errorCode: 416 })
}

/** Which bytes of a file a request gets. */
type RangeAnswer =
  | { status: 200 }
  /** Both positions are part of the range. */
  | { status: 206; start: number; end: number }
  | { status: 416 }

/**
 * The part of a file that a `Range` header requests (RFC 9110, 14.2). Several ranges at once, other units and what cannot be read
 * get the whole file, as does a client whose `If-Range` names another content.
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
  // Only the last bytes are requested.
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
