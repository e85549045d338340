import { open } from 'node:fs/promises'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { type Static, Type } from 'typebox'
import { CorralError, errorMessage, invalidRequest } from '../../../core/errors.ts'
import { arriving, endUpload, paced } from '../../../core/http/arriving-body.ts'
import { clientSignal, isDisconnect } from '../../../core/http/client-disconnect.ts'
import { sendErrors } from '../../../core/http/error-format.ts'
import { PageOf, pageAfter } from '../../../core/http/list-page.ts'
import { removeUploadTimeout } from '../../../core/http/long-upload.ts'
import { openaiErrorBody, openaiRouter } from '../../../core/http/openai-error.ts'
import { Given, Integer, Loose, OrNull, Text, Titled } from '../../../core/http/request-fields.ts'
import { DISK_ERRORS, json } from '../../../core/http/response-schemas.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { batchObject, STATUSES } from './batch-record.ts'
import type { Batches } from './batches.ts'
import { ENDPOINTS, LineErrorSchema } from './json-lines.ts'
import { type ArrivingFile, type FileRecord, PURPOSES, type UserFiles } from './user-files.ts'

const TAG = 'OpenAI batches'
const FORM = 'multipart/form-data'

const Seconds = Integer('Seconds since the epoch')
const FileObject = Titled('File', {
  id: Type.String(),
  object: Type.Literal('file'),
  bytes: Type.Integer(),
  created_at: Seconds,
  expires_at: Type.Optional(Seconds),
  filename: Type.String(),
  purpose: Type.String(),
  status: Type.Literal('processed')
})
const BatchObject = Titled('Batch', {
  id: Type.String(),
  object: Type.Literal('batch'),
  endpoint: Type.Enum([...ENDPOINTS]),
  errors: OrNull(Loose({ object: Type.Literal('list'), data: Type.Array(LineErrorSchema) })),
  input_file_id: Type.String(),
  completion_window: Type.String(),
  status: Type.Enum([...STATUSES]),
  output_file_id: OrNull(Text('The answers, one JSON value per line, once the batch has ended')),
  error_file_id: OrNull(Text('The errors, in the same format')),
  created_at: Seconds,
  expires_at: Seconds,
  request_counts: Loose({ total: Type.Integer(), completed: Type.Integer(), failed: Type.Integer() }),
  metadata: OrNull(Type.Record(Type.String(), Type.String()))
})
const FileForm = Loose({
  file: Type.String({ format: 'binary' }),
  purpose: Type.Enum([...PURPOSES]),
  'expires_after[anchor]': Type.Optional(Type.Literal('created_at')),
  'expires_after[seconds]': Type.Optional(Type.Integer({ minimum: 60 }))
})
const BatchRequest = Loose({
  input_file_id: Text('A file that was uploaded with the purpose "batch"'),
  endpoint: Type.Enum([...ENDPOINTS]),
  completion_window: Text('How long the batch may take, for example 24h; requests without an answer then expire'),
  metadata: Given(
    Type.Record(Type.String({ maxLength: 64 }), Type.String({ maxLength: 512 }), {
      maxProperties: 16
    })
  )
})
const Page = {
  after: Type.Optional(Text('The last id of the previous page')),
  limit: Type.Optional(Type.String({ pattern: '^\\d{1,5}$', description: 'Maximum number of entries on the page' }))
}
const fileId = Type.Object({ id: Text('Id of the file') })
const batchId = Type.Object({ id: Text('Id of the batch') })

/** @param stall returns the stall timeout in milliseconds, see `paced` */
export async function batchRoutes(app: FastifyInstance, files: UserFiles, batches: Batches, stall: () => number) {
  const route = openaiRouter(app, TAG)
  sendErrors(app, openaiErrorBody)
  app.addHook('preHandler', async () => await batches.refresh())
  await app.register(async scope => uploadRoute(scope, files, stall))

  route('GET /files', 'listUserFiles', 'List your files', {
    querystring: Type.Object({
      ...Page,
      order: Type.Optional(Type.Enum(['asc', 'desc'], { description: 'Newest first by default' })),
      purpose: Type.Optional(Type.String())
    }),
    response: json('The files', PageOf(FileObject)),
    errors: ['invalid_request', 'file_not_found'],
    handler: ({ caller, query }) => {
      const { after, limit, order, purpose } = query
      const own = files.list(caller.owner).filter(file => purpose === undefined || file.purpose === purpose)
      if (after !== undefined) files.get(caller.owner, after, 'after')
      return pageAfter(sorted(own, order).map(fileObject), after, readLimit(limit, 10_000))
    }
  })
  route('GET /files/:id', 'getUserFile', 'Show a file', {
    params: fileId,
    response: json('The file', FileObject),
    errors: ['file_not_found'],
    handler: ({ caller, params }) => fileObject(files.get(caller.owner, params.id))
  })
  route('GET /files/:id/content', 'getUserFileContent', 'Download a file', {
    audited: true,
    params: fileId,
    response: {
      description: 'The content',
      content: { 'application/octet-stream': { schema: Type.Unsafe<Readable>({}) } }
    },
    errors: ['file_not_found'],
    handler: async ({ caller, params }, reply) => {
      const file = files.get(caller.owner, params.id)
      const content = (await open(files.pathOf(file.id))).createReadStream()
      return await reply
        .headers({
          'content-type': 'application/octet-stream',
          'content-length': file.bytes,
          'content-disposition': `attachment; filename*=UTF-8''${encodeURIComponent(file.filename)}`,
          'x-content-type-options': 'nosniff',
          'cache-control': 'no-store'
        })
        .send(content)
    }
  })
  route('DELETE /files/:id', 'deleteUserFile', 'Delete a file', {
    params: fileId,
    response: json('Deleted', Loose({ id: Type.String(), object: Type.Literal('file'), deleted: Type.Literal(true) })),
    errors: ['file_not_found', 'file_in_use'],
    handler: async ({ caller, params }) => {
      const { id } = files.get(caller.owner, params.id)
      if (batches.needs(id)) {
        const message = 'A batch that has not ended uses this file. Cancel the batch first, or wait until it has ended.'
        throw new CorralError('file_in_use', message, { param: 'file_id' })
      }
      await files.remove(id)
      return { id, object: 'file' as const, deleted: true as const }
    }
  })

  route('POST /batches', 'createBatch', 'Create a batch from a file of requests', {
    body: BatchRequest,
    response: json('The batch', BatchObject),
    errors: ['file_not_found', 'over_limit', ...DISK_ERRORS],
    handler: async ({ caller, body }) => {
      const { input_file_id: inputFile, endpoint, completion_window: window, metadata = null } = body
      const given = { inputFile, endpoint, window, metadata }
      return batchObject(await batches.create(caller, given, windowSeconds(window)))
    }
  })
  route('GET /batches', 'listBatches', 'List your batches', {
    querystring: Type.Object(Page),
    response: json('The batches', PageOf(BatchObject)),
    errors: ['invalid_request', 'batch_not_found'],
    handler: ({ caller, query: { after, limit } }) => {
      if (after !== undefined) batches.get(caller.owner, after, 'after')
      return pageAfter(sorted(batches.list(caller.owner)).map(batchObject), after, readLimit(limit, 20))
    }
  })
  route('GET /batches/:id', 'getBatch', 'Show the progress of a batch', {
    params: batchId,
    response: json('The batch', BatchObject),
    errors: ['batch_not_found'],
    handler: ({ caller, params }) => batchObject(batches.get(caller.owner, params.id))
  })
  route('POST /batches/:id/cancel', 'cancelBatch', 'Cancel a batch', {
    params: batchId,
    response: json('The batch', BatchObject),
    errors: ['batch_not_found', 'batch_ended'],
    handler: async ({ caller, params }) => batchObject(await batches.cancel(caller.owner, params.id))
  })
}

/** The upload route is in a scope of its own because it reads the body as it arrives. */
function uploadRoute(app: FastifyInstance, files: UserFiles, stall: () => number): void {
  const route = openaiRouter(app, TAG)
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (_request, _payload, done) => done(null))
  route('POST /files', 'createUserFile', 'Send a file', {
    consumes: [FORM],
    bodySize: 'streamed',
    body: Type.Optional(Type.Unknown({ documented: FileForm })),
    response: json('The file', FileObject),
    errors: ['body_too_large', 'over_limit', 'rate_limited', ...DISK_ERRORS],
    handler: async (request, reply) => {
      removeUploadTimeout(request.raw)
      reply.raw.once('finish', () => endUpload(request.raw))
      return fileObject(await receiveForm(files, reply, stall()))
    }
  })
}

const FORM_LIMITS = { files: 1, fields: 20, parts: 25, fieldSize: 1000 }

/** Reads a form as it arrives. Its file is written to disk, in whatever order the fields come. */
async function receiveForm(files: UserFiles, reply: FastifyReply, stall: number): Promise<FileRecord> {
  const { request } = reply
  const { 'content-type': contentType = '', 'content-length': length } = request.headers
  if (!/^multipart\/form-data\b/i.test(contentType)) {
    throw new CorralError('invalid_request', `Send the file as a form (${FORM}) with the fields "file" and "purpose".`)
  }
  // Forms are rare, so the parser is imported on demand.
  const { Busboy } = await import('@fastify/busboy')
  const failed = new AbortController()
  const signal = AbortSignal.any([clientSignal(reply), failed.signal])
  const refuse = (message: string, param?: string) =>
    failed.abort(new CorralError('invalid_request', message, { ...(param && { param }) }))
  const fields = new Map<string, string>()
  let sent: Readable | undefined
  let kept: Promise<FileRecord> | undefined
  const read = async () => {
    const limits = { ...FORM_LIMITS, fileSize: Number.POSITIVE_INFINITY }
    const form = new Busboy({ headers: { 'content-type': contentType }, limits })
    form.once('partsLimit', () => refuse(`The form (${FORM}) cannot be read: it has too many parts.`))
    form.once('filesLimit', () => refuse(`The form (${FORM}) cannot be read: it has more than one file.`))
    form.on('field', (name: string | undefined, value: string) => void (name !== undefined && fields.set(name, value)))
    form.on('file', (name: string | undefined, content: Readable, filename: string | undefined) => {
      // The form reports the error.
      sent = content.on('error', () => {})
      if (name !== 'file') {
        content.resume()
        return refuse('The file must be in the field "file".', 'file')
      }
      const file: ArrivingFile = { filename: filename ?? '', content }
      const settings = whole.then(() => readFields(fields))
      // The form may fail before its file has arrived.
      settings.catch(() => {})
      kept = files.receive(request.caller, file, { length: Number(length ?? 0), form: settings })
      kept.catch(error => failed.abort(error))
    })
    await pipeline(paced(arriving(request), stall, { received: 0, ended: signal }), form, { signal })
  }
  const whole = read().catch(error => {
    signal.throwIfAborted()
    if (error instanceof CorralError || isDisconnect(error, request)) throw error
    throw new CorralError('invalid_request', `The form (${FORM}) cannot be read: ${errorMessage(error)}.`)
  })
  try {
    await whole
    if (kept) return await kept
    readFields(fields)
    throw invalidRequest('file', 'The form has no "file".')
  } catch (error) {
    // Also ends the file that is being stored.
    sent?.destroy(error as Error)
    await kept?.catch(() => {})
    throw error
  }
}

/** Validates the fields. @returns the number of seconds to store the file @throws CorralError `invalid_request` */
function readFields(fields: ReadonlyMap<string, string>) {
  const purpose = PURPOSES.find(each => each === fields.get('purpose'))
  if (!purpose) {
    throw invalidRequest(
      'purpose',
      '"purpose" must be "batch" for a batch, or "user_data" for a document in a message.'
    )
  }
  const seconds = fields.get('expires_after[seconds]')
  if (seconds === undefined) return { purpose, keep: undefined }
  if (!/^\d{1,9}$/.test(seconds) || Number(seconds) < 60) {
    throw invalidRequest('expires_after', '"expires_after[seconds]" must be a number of at least 60.')
  }
  return { purpose, keep: Number(seconds) }
}

const MAX_WINDOW_SECONDS = 30 * 24 * 3600

function windowSeconds(text: string): number {
  const seconds = /^\d+[a-z]/.test(text) ? (parseDuration(text) ?? 0) / 1000 : 0
  if (seconds >= 1 && seconds <= MAX_WINDOW_SECONDS) return Math.floor(seconds)
  throw invalidRequest('completion_window', '"completion_window" must be a duration such as "24h", at most 720h.')
}

function fileObject({ id, bytes, createdAt, expiresAt, filename, purpose }: FileRecord): Static<typeof FileObject> {
  return {
    id,
    object: 'file',
    bytes,
    created_at: createdAt,
    ...(expiresAt !== undefined && { expires_at: expiresAt }),
    filename,
    purpose,
    status: 'processed'
  }
}

/** Sorts by age. Items of the same second stay in the order of creation. */
function sorted<Item extends { createdAt: number }>(items: readonly Item[], order: 'asc' | 'desc' = 'desc'): Item[] {
  const upward = [...items].sort((a, b) => a.createdAt - b.createdAt)
  return order === 'asc' ? upward : upward.reverse()
}

const readLimit = (limit: string | undefined, usual: number) =>
  Math.min(10_000, Math.max(1, limit === undefined ? usual : Number(limit)))
