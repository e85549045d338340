import { createHash, randomBytes } from 'node:crypto'
import { mkdir, open, rename, rm, stat, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger, FastifyPluginAsync, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import type { Storage } from '../../../core/contracts/storage.ts'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import { ClientGone } from '../../../core/http/client-gone.ts'
import { takeAnyTime } from '../../../core/http/long-upload.ts'
import { nativeRoute } from '../../../core/http/response-schemas.ts'
import { requireSpace } from '../../../core/system/disk-space.ts'
import { fileSize, namesIn } from '../../../core/system/folder-names.ts'

const DAY = 24 * 3_600_000
const PART = /^[0-9a-f]{32}\.part$/
const BLOB = /^sha256-([0-9a-f]{64})$/

interface Blob {
  /** Absolute. */
  path: string
  release(): void
}

/** Files that clients sent so that models are made of them, by their SHA-256 (64 hex digits). */
export class BlobStore {
  readonly #folder: string
  readonly #storage: Storage
  readonly #log: FastifyBaseLogger
  /** How often each blob is in use. */
  readonly #users = new Map<string, number>()
  /** Uploads that are going on. */
  readonly #parts = new Set<string>()

  /** @param folder on the disk of the models, so that blobs become models without being copied */
  constructor(folder: string, storage: Storage, log: FastifyBaseLogger) {
    this.#folder = folder
    this.#storage = storage
    this.#log = log
  }

  async has(sha256: string): Promise<boolean> {
    // The client is about to use the blob: its day starts again.
    const now = new Date()
    await utimes(this.#pathOf(sha256), now, now).catch(error => {
      if (!isSystemError(error, 'ENOENT')) throw error
    })
    const found = await this.#find(sha256)
    found?.release()
    return found !== undefined
  }

  /**
   * Stores what arrives under its digest, or nothing.
   * @param size bytes to come, where that is known
   * @throws CorralError `invalid_request` when it is something else, `insufficient_storage`; whatever the body throws
   */
  async write(sha256: string, body: AsyncIterable<Buffer>, size: number | undefined): Promise<void> {
    const folder = this.#folder
    const name = `${randomBytes(16).toString('hex')}.part`
    const part = join(folder, name)
    this.#parts.add(name)
    try {
      await mkdir(folder, { recursive: true })
      if (size !== undefined) await requireSpace(folder, size, 'The file needs')
      const digest = await receive(part, body)
      if (digest !== sha256) {
        throw invalid(
          `The file that arrived has the digest sha256:${digest}, not sha256:${sha256}; nothing of it was kept. ` +
            'Send the file that the digest was computed of.'
        )
      }
      await rename(part, this.#pathOf(sha256))
    } catch (error) {
      await rm(part, { force: true })
      if (!isSystemError(error, 'ENOSPC', 'EDQUOT')) throw error
      throw new CorralError(
        'insufficient_storage',
        `The disk of ${folder} became full while the file arrived; nothing of it was kept. ` +
          'Remove models that are not needed, or choose another disk with CORRAL_MODELS.',
        { cause: error }
      )
    } finally {
      this.#parts.delete(name)
    }
  }

  /**
   * Gives the absolute paths of blobs, in their order, and keeps them until the work is done. Blobs are deleted after
   * work that succeeds: what was made of them has the same content, and is found in their place.
   * @throws CorralError `invalid_request` naming the digest that was not sent
   */
  async use<T>(digests: readonly string[], work: (paths: string[]) => Promise<T>): Promise<T> {
    const users = this.#users
    for (const sha256 of digests) users.set(sha256, (users.get(sha256) ?? 0) + 1)
    const found: Blob[] = []
    let succeeded = false
    try {
      for (const sha256 of digests) {
        const blob = await this.#find(sha256)
        if (!blob) {
          throw invalid(
            `The file sha256:${sha256} is not here. Send it first with POST blobs/sha256:${sha256}, then create the model.`,
            'files'
          )
        }
        found.push(blob)
      }
      const result = await work(found.map(({ path }) => path))
      succeeded = true
      return result
    } finally {
      for (const { release } of found) release()
      for (const sha256 of digests) {
        const rest = users.get(sha256)! - 1
        if (rest > 0) users.set(sha256, rest)
        else users.delete(sha256)
        // Another user of it may fail and try again: then it is found in the model that was made.
        if (rest === 0 && succeeded) await rm(this.#pathOf(sha256), { force: true })
      }
    }
  }

  /** Removes unfinished uploads of an earlier process, and blobs that nobody used for a day. */
  async sweep(): Promise<void> {
    for (const name of await namesIn(this.#folder)) {
      const sha256 = BLOB.exec(name)?.[1]
      const isLeft = PART.test(name) && !this.#parts.has(name)
      if (!isLeft && (sha256 === undefined || this.#users.has(sha256))) continue
      const path = join(this.#folder, name)
      try {
        if (isLeft || Date.now() - (await stat(path)).mtimeMs > DAY) await rm(path, { force: true })
      } catch (error) {
        this.#log.warn(error, `${path}, which no model needs, cannot be deleted`)
      }
    }
  }

  #pathOf(sha256: string): string {
    return join(this.#folder, `sha256-${sha256}`)
  }

  async #find(sha256: string): Promise<Blob | undefined> {
    // Stored models come first: a used blob is about to be deleted, and is part of a model by then.
    for (const variant of this.#storage.list()) {
      const file = variant.files.find(file => file.sha256 === sha256)
      if (!file) continue
      const path = join(variant.directory, ...file.path.split('/'))
      const release = this.#storage.hold(variant)
      if ((await fileSize(path)) !== undefined) return { path, release }
      release()
      break
    }
    const path = this.#pathOf(sha256)
    return (await fileSize(path)) === undefined ? undefined : { path, release: () => {} }
  }
}

/** Writes a body to a new file, durably. @returns its SHA-256 */
async function receive(path: string, body: AsyncIterable<Buffer>): Promise<string> {
  const hash = createHash('sha256')
  const file = await open(path, 'wx', 0o600)
  try {
    for await (const chunk of body) {
      hash.update(chunk)
      for (let at = 0; at < chunk.length; ) at += (await file.write(chunk, at)).bytesWritten
    }
    await file.sync()
  } finally {
    await file.close()
  }
  return hash.digest('hex')
}

/**
 * The 64 hex digits of a digest as Ollama's clients write it: `sha256:<64 hex digits>`, older ones with a dash.
 * @throws CorralError `invalid_request`
 */
export function parseDigest(text: string, param: string): string {
  const digits = /^sha256[:-]([0-9a-f]{64})$/i.exec(text)?.[1]
  if (digits !== undefined) return digits.toLowerCase()
  throw invalid(`${JSON.stringify(text.slice(0, 100))} is not a digest. Write sha256:<64 hex digits>.`, param)
}

const invalid = (message: string, param = 'digest') => new CorralError('invalid_request', message, { param })

const params = Type.Object({ digest: Type.String({ description: 'sha256:<64 hex digits>' }) })
const empty = (description: string) => ({ description, content: {} })

const findBlob = nativeRoute('Models', 'findBlob', 'Check whether a file is here', {
  role: 'operator',
  params,
  response: { 200: empty('It is here'), 404: empty('It is not here') },
  errors: ['invalid_request']
})
const storeBlob = nativeRoute('Models', 'storeBlob', 'Send a file for a model that will be created', {
  role: 'operator',
  description: 'The body is the file itself. Files that no model was created from are deleted after a day.',
  consumes: ['application/octet-stream'],
  params,
  response: { 200: empty('It was here already'), 201: empty('Stored') },
  errors: ['invalid_request', 'insufficient_storage']
})

/** Routes that look for blobs and receive them. */
export function blobRoutes(blobs: BlobStore): FastifyPluginAsync {
  return async app => {
    // Bodies of any size and type, as they arrive.
    app.removeAllContentTypeParsers()
    app.addContentTypeParser('*', (_request, _payload, done) => done(null))
    app.head<{ Params: { digest: string } }>('/blobs/:digest', findBlob, async ({ params }, reply) => {
      return await reply.code((await blobs.has(parseDigest(params.digest, 'digest'))) ? 200 : 404).send()
    })
    app.post<{ Params: { digest: string } }>('/blobs/:digest', storeBlob, async (request, reply) => {
      const sha256 = parseDigest(request.params.digest, 'digest')
      if (await blobs.has(sha256)) return await reply.code(200).send()
      takeAnyTime(request.raw)
      const length = request.headers['content-length']
      await blobs.write(sha256, arriving(request), length === undefined ? undefined : Number(length))
      return await reply.code(201).send()
    })
  }
}

/** A request's body, whose connection outlives it: the client is to read a refusal. */
async function* arriving({ raw }: FastifyRequest): AsyncIterable<Buffer> {
  try {
    yield* raw.iterator({ destroyOnReturn: false })
  } catch (error) {
    throw isSystemError(error, 'ECONNRESET', 'ERR_STREAM_PREMATURE_CLOSE') ? new ClientGone() : error
  }
}
