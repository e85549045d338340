import { createHash, randomBytes } from 'node:crypto'
import { mkdir, rename, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import type { Caller } from '../../../../core/contracts/callers.ts'
import type { Storage } from '../../../../core/contracts/storage.ts'
import { CorralError, invalidRequest, isSystemError } from '../../../../core/errors.ts'
import { type ArrivingUpload, arriving, endUpload, paced } from '../../../../core/http/arriving-body.ts'
import { clientSignal } from '../../../../core/http/client-disconnect.ts'
import { removeUploadTimeout } from '../../../../core/http/long-upload.ts'
import { DISK_ERRORS, nativeRouter } from '../../../../core/http/response-schemas.ts'
import { formatBytes } from '../../../../core/system/bytes.ts'
import { diskRefusal, requireSpace } from '../../../../core/system/disk-space.ts'
import { fileSize, namesIn } from '../../../../core/system/folder-names.ts'

const DAY = 24 * 3_600_000
const PART = /^[0-9a-f]{32}\.(?:part|work)$/
const BLOB = /^sha256-([0-9a-f]{64})$/

interface Blob {
  path: string
  release(): void
}

export class BlobStore {
  readonly #folder: string
  readonly #storage: Storage
  readonly #log: FastifyBaseLogger
  readonly #users = new Map<string, number>()
  readonly #parts = new Set<string>()
  readonly #most: number
  /** Size and client of files that are not part of a model yet, by digest or by the name of a running upload. */
  readonly #taken = new Map<string, { bytes: number; turn?: string }>()
  #counted: Promise<void> | undefined

  /** @param folder must be on the same disk as the models, so that blobs can be linked instead of copied */
  constructor(folder: string, storage: Storage, log: FastifyBaseLogger, most = Number.POSITIVE_INFINITY) {
    this.#folder = folder
    this.#storage = storage
    this.#log = log
    this.#most = most
  }

  async has(sha256: string): Promise<boolean> {
    // The client is about to use the blob, so its retention starts again.
    const now = new Date()
    await utimes(this.#pathFor(sha256), now, now).catch(error => {
      if (!isSystemError(error, 'ENOENT')) throw error
    })
    const found = await this.#find(sha256)
    found?.release()
    return found !== undefined
  }

  /**
   * Stores an upload if its digest is correct.
   * @param size expected bytes, if known
   * @param turn the client that uploads
   * @throws CorralError `invalid_request` if the digest differs, `insufficient_storage`, `over_limit`, or the error of
   * the body
   */
  async write(sha256: string, body: AsyncIterable<Buffer>, size: number | undefined, turn = ''): Promise<void> {
    const folder = this.#folder
    const name = `${randomBytes(16).toString('hex')}.part`
    const part = join(folder, name)
    this.#parts.add(name)
    try {
      await mkdir(folder, { recursive: true })
      await this.#countBlobs()
      if (size !== undefined) await requireSpace(folder, size, 'The file needs', 'models')
      this.#take(name, size ?? 0, turn)
      const digest = await receive(part, body, bytes => {
        if (bytes > (size ?? 0)) this.#take(name, bytes, turn)
      })
      if (digest !== sha256) {
        throw invalid(
          `The uploaded file has the digest sha256:${digest}, not sha256:${sha256}, and was discarded. ` +
            'Send the file that the digest belongs to.'
        )
      }
      await rename(part, this.#pathFor(sha256))
      this.#taken.set(sha256, this.#taken.get(name)!)
    } catch (error) {
      await rm(part, { force: true })
      throw diskRefusal(error, 'The file was not stored', 'models') ?? error
    } finally {
      this.#taken.delete(name)
      this.#parts.delete(name)
    }
  }

  /**
   * Runs `work` with the absolute paths of blobs, and keeps the blobs until it ends. If the work succeeds, the blobs
   * are deleted, because the new model contains the same files.
   * @throws CorralError `invalid_request` naming the digest that was not uploaded
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
        // Another user of the blob may fail and retry. It then finds the file in the new model.
        if (rest === 0 && succeeded) await this.#remove(sha256)
      }
    }
  }

  async withFolder<T>(work: (folder: string) => Promise<T>): Promise<T> {
    const name = `${randomBytes(16).toString('hex')}.work`
    const folder = join(this.#folder, name)
    this.#parts.add(name)
    try {
      await mkdir(folder, { recursive: true })
      return await work(folder)
    } finally {
      await rm(folder, { recursive: true, force: true })
      this.#parts.delete(name)
    }
  }

  /** Counts a file, half of the space at most for one client. @throws CorralError `over_limit` if it does not fit */
  #take(key: string, bytes: number, turn: string): void {
    const others = [...this.#taken].filter(([other]) => other !== key).map(([, taken]) => taken)
    const sum = (files: typeof others) => files.reduce((total, file) => total + file.bytes, bytes)
    const own = sum(others.filter(file => file.turn === turn))
    const half = Math.floor(this.#most / 2)
    if (own > half) throw spaceExceeded(`one client may use ${formatBytes(half)} of it`, this.#most, own)
    if (sum(others) > this.#most) throw spaceExceeded('other clients use the rest', this.#most, sum(others))
    this.#taken.set(key, { bytes, turn })
  }

  #countBlobs(): Promise<void> {
    this.#counted ??= (async () => {
      for (const name of await namesIn(this.#folder)) {
        const sha256 = BLOB.exec(name)?.[1]
        if (sha256 === undefined || this.#taken.has(sha256)) continue
        this.#taken.set(sha256, { bytes: (await fileSize(this.#pathFor(sha256))) ?? 0 })
      }
    })()
    return this.#counted
  }

  async #remove(sha256: string): Promise<void> {
    await rm(this.#pathFor(sha256), { force: true })
    this.#taken.delete(sha256)
  }

  async sweep(): Promise<void> {
    for (const name of await namesIn(this.#folder)) {
      const sha256 = BLOB.exec(name)?.[1]
      const isLeft = PART.test(name) && !this.#parts.has(name)
      if (!isLeft && (sha256 === undefined || this.#users.has(sha256))) continue
      const path = join(this.#folder, name)
      try {
        if (isLeft) await rm(path, { recursive: true, force: true })
        else if (Date.now() - (await stat(path)).mtimeMs > DAY) await this.#remove(sha256!)
      } catch (error) {
        this.#log.warn(error, `${path}, which no model needs, cannot be deleted`)
      }
    }
  }

  #pathFor(sha256: string): string {
    return join(this.#folder, `sha256-${sha256}`)
  }

  async #find(sha256: string): Promise<Blob | undefined> {
    // Stored models come first: a blob that was used is about to be deleted, but its model has the same file.
    for (const variant of this.#storage.list()) {
      const file = variant.files.find(file => file.sha256 === sha256)
      if (!file) continue
      const path = join(variant.directory, ...file.path.split('/'))
      const release = this.#storage.hold(variant)
      if ((await fileSize(path)) !== undefined) return { path, release }
      release()
      break
    }
    const path = this.#pathFor(sha256)
    return (await fileSize(path)) === undefined ? undefined : { path, release: () => {} }
  }
}

/** Writes a body to a new file. @param onBytes called with the bytes so far before a write @returns the SHA-256 */
async function receive(path: string, body: AsyncIterable<Buffer>, onBytes: (bytes: number) => void): Promise<string> {
  const hash = createHash('sha256')
  let bytes = 0
  async function* pieces() {
    for await (const chunk of body) {
      bytes += chunk.length
      onBytes(bytes)
      hash.update(chunk)
      yield chunk
    }
  }
  await writeFile(path, pieces(), { flag: 'wx', mode: 0o600, flush: true })
  return hash.digest('hex')
}

/** Parses `sha256:<64 hex digits>`, also with a dash as in older clients. @throws CorralError `invalid_request` */
export function parseDigest(text: string, param: string): string {
  const digits = /^sha256[:-]([0-9a-f]{64})$/i.exec(text)?.[1]
  if (digits !== undefined) return digits.toLowerCase()
  throw invalid(`${JSON.stringify(text.slice(0, 100))} is not a digest. Write sha256:<64 hex digits>.`, param)
}

const invalid = (message: string, param = 'digest') => invalidRequest(param, message)

const params = Type.Object({ digest: Type.String({ description: 'sha256:<64 hex digits>' }) })
const empty = (description: string) => ({ description, content: {} })

export function blobRoutes(app: FastifyInstance, blobs: BlobStore, turns: UploadSlots, stall: number): void {
  const route = nativeRouter(app, 'Models')
  // Accepts bodies of any size and type, and reads them as they arrive.
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (_request, _payload, done) => done(null))
  route('HEAD /blobs/:digest', 'findBlob', 'Check whether a file is stored here', {
    role: 'operator',
    params,
    description:
      'Reveals whether any client uploaded this file or a model contains it, to anyone who knows its digest.',
    response: { 200: empty('The file is here'), 404: empty('The file is not here') },
    errors: ['invalid_request'],
    handler: async ({ params }, reply) => {
      return await reply.code((await blobs.has(parseDigest(params.digest, 'digest'))) ? 200 : 404).send()
    }
  })
  route('POST /blobs/:digest', 'storeBlob', 'Upload a file to create a model from', {
    role: 'operator',
    description: 'The body is the file itself. Files that no model was created from are deleted after a day.',
    consumes: ['application/octet-stream'],
    bodySize: 'streamed',
    params,
    response: { 200: empty('The file was here already'), 201: empty('Stored') },
    errors: ['invalid_request', ...DISK_ERRORS, 'over_limit', 'rate_limited'],
    handler: async (request, reply) => {
      const sha256 = parseDigest(request.params.digest, 'digest')
      if (await blobs.has(sha256)) return await reply.code(200).send()
      removeUploadTimeout(request.raw)
      reply.raw.once('finish', () => endUpload(request.raw))
      const upload = await turns.take(request.caller, clientSignal(reply))
      try {
        const length = request.headers['content-length']
        const body = paced(arriving(request), stall, upload)
        await blobs.write(sha256, body, length === undefined ? undefined : Number(length), upload.turn)
      } finally {
        upload.release()
      }
      return await reply.code(201).send()
    }
  })
}

/** Maximum number of waiting uploads, per client and in total. Ollama's command line sends one per processor core. */
const MAX_QUEUED = { ofClient: 64, all: 256 }
/** Bytes per second. A slower upload may be ended to free its slot for a client without one. */
const SLOW_BYTES_PER_SECOND = 64_000

interface Upload extends ArrivingUpload {
  readonly turn: string
  readonly begun: number
  /** Must be called exactly once, when the upload ends. */
  release(): void
}

interface RunningUpload extends Upload {
  end(error: CorralError): void
}

/**
 * Decides which uploads run, at most `limits.uploads` at a time:
 *
 * 1. A client gets at most half of the slots.
 * 2. A free slot goes to the waiting client with the fewest uploads. Ties go to the request that waited longest.
 * 3. If no slot is free and a client without an upload waits, the slowest upload of the busiest client is ended,
 *    provided it is so slow that it may only be holding the slot.
 * 4. A client with too many waiting uploads is refused.
 */
export class UploadSlots {
  readonly #most: number
  readonly #now: () => number
  readonly #running = new Set<RunningUpload>()
  readonly #waiting: { turn: string; start: () => void }[] = []

  constructor(most: number, now = () => performance.now()) {
    this.#most = most
    this.#now = now
  }

  /** Resolves when the upload may start. @throws CorralError `rate_limited`, or the signal's reason */
  async take({ turn }: Pick<Caller, 'turn'>, signal: AbortSignal): Promise<Upload> {
    signal.throwIfAborted()
    if (this.#mayRun(turn)) return this.#begin(turn)
    const ofClient = this.#waiting.filter(other => other.turn === turn).length
    if (ofClient >= MAX_QUEUED.ofClient || this.#waiting.length >= MAX_QUEUED.all) throw tooMany(this.#most)
    return await new Promise<Upload>((resolve, reject) => {
      const start = () => {
        signal.removeEventListener('abort', leave)
        resolve(this.#begin(turn))
      }
      const entry = { turn, start }
      const leave = () => {
        this.#waiting.splice(this.#waiting.indexOf(entry), 1)
        reject(signal.reason)
      }
      this.#waiting.push(entry)
      signal.addEventListener('abort', leave, { once: true })
      this.#makeRoom(turn)
    })
  }

  #begin(turn: string): Upload {
    const controller = new AbortController()
    const upload: RunningUpload = {
      turn,
      received: 0,
      begun: this.#now(),
      ended: controller.signal,
      end: error => controller.abort(error),
      release: () => {
        if (this.#running.delete(upload)) this.#next()
      }
    }
    this.#running.add(upload)
    return upload
  }

  #countFor(turn: string): number {
    let count = 0
    for (const upload of this.#running) if (upload.turn === turn) count++
    return count
  }

  #mayRun(turn: string): boolean {
    return this.#running.size < this.#most && this.#countFor(turn) < Math.ceil(this.#most / 2)
  }

  #next(): void {
    const able = this.#waiting.filter(({ turn }) => this.#mayRun(turn))
    const [first] = able.sort((a, b) => this.#countFor(a.turn) - this.#countFor(b.turn))
    if (!first) return
    this.#waiting.splice(this.#waiting.indexOf(first), 1)
    first.start()
  }

  #makeRoom(turn: string): void {
    if (this.#running.size < this.#most || this.#countFor(turn) > 0) return
    const pace = ({ received, begun }: Upload) => received / Math.max(1, (this.#now() - begun) / 1000)
    const slow = [...this.#running].filter(
      upload => !upload.ended.aborted && this.#countFor(upload.turn) > 1 && pace(upload) < SLOW_BYTES_PER_SECOND
    )
    const [slowest] = slow.sort((a, b) => this.#countFor(b.turn) - this.#countFor(a.turn) || pace(a) - pace(b))
    slowest?.end(
      new CorralError('rate_limited', 'This slow upload ended so that another client can send a file. Send it again.', {
        retryAfter: 30
      })
    )
  }
}

function tooMany(most: number): CorralError {
  return new CorralError(
    'rate_limited',
    `Too many files are being uploaded: corral receives ${most} at a time (limits.uploads), and the queue is full. ` +
      'Send this file again when others are complete.',
    { retryAfter: 30, details: { limit: 'limits.uploads', maximum: most } }
  )
}

function spaceExceeded(why: string, most: number, wanted: number): CorralError {
  return new CorralError(
    'over_limit',
    `Uploaded files that are not part of a model may take ${formatBytes(most)} (limits.uploads_size), and this one would make it ` +
      `${formatBytes(wanted)}; ${why}. Create models from the uploaded files, or wait: unused files are deleted ` +
      'after a day.',
    { details: { limit: 'limits.uploads_size', value: wanted, maximum: most } }
  )
}
