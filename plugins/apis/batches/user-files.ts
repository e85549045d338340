import { randomBytes } from 'node:crypto'
import { mkdir, rename, rm, stat, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from 'typebox'
import type { Caller } from '../../../core/contracts/callers.ts'
import { CorralError, errorMessage, whenMissing } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { diskRefusal, requireSpace } from '../../../core/system/disk-space.ts'
import { fileSize, namesIn } from '../../../core/system/folder-names.ts'
import { readJsonFile, readJsonFileSync, writeJsonFile } from '../../../core/system/json-file.ts'
import { plural } from '../../../core/system/plural.ts'

/** Purposes of files that clients send: requests of a batch, or documents in messages. */
export const PURPOSES = ['batch', 'user_data', 'assistants'] as const
type Purpose = (typeof PURPOSES)[number]

const FileRecordSchema = Type.Object({
  version: Type.Literal(1),
  id: Type.String(),
  owner: Type.String(),
  filename: Type.String(),
  purpose: Type.Enum([...PURPOSES, 'batch_output']),
  bytes: Type.Integer(),
  createdAt: Type.Integer({ description: 'Seconds since the epoch' }),
  expiresAt: Type.Optional(Type.Integer())
})
/** A stored file. Its content is next to the record, under the same id. */
export type FileRecord = Static<typeof FileRecordSchema>

export interface FileLimits {
  fileSize: number
  files: number
  bytes: number
  keep: number
}

/** Age of a file that no server can be receiving any more. */
const MAX_UPLOAD_MS = 24 * 3_600_000
const MAX_UPLOADS_PER_OWNER = 4
const ID = /^file-[0-9a-f]{32}$/

export const newFileId = () => `file-${randomBytes(16).toString('hex')}`
export const secondsNow = () => Math.floor(Date.now() / 1000)

export interface ArrivingFile {
  filename: string
  content: AsyncIterable<Buffer>
}

/** Stores uploaded files and the results of batches. A file is visible only to its owner (`Caller.owner`). */
export class UserFiles {
  readonly #folder: string
  readonly #limits: () => FileLimits
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  readonly #files = new Map<string, FileRecord>()
  /** Bytes received so far of running uploads, by the name of the partial file. */
  readonly #arriving = new Map<string, { owner: string; bytes: number }>()

  constructor(folder: string, limits: () => FileLimits, log: Pick<FastifyBaseLogger, 'warn'>) {
    this.#folder = folder
    this.#limits = limits
    this.#log = log
  }

  /** Loads stored files, and deletes contents without a record that no open batch will create (`isExpected`). */
  async load(isExpected: (id: string) => boolean, isShared = false): Promise<void> {
    const names = await this.refresh()
    // Other servers may be receiving files now.
    const before = isShared ? Date.now() - MAX_UPLOAD_MS : Number.POSITIVE_INFINITY
    for (const name of names.filter(each => /\.(jsonl|part)$/.test(each))) {
      const id = basename(name, '.jsonl')
      const path = join(this.#folder, name)
      if (this.#files.has(id) || isExpected(id)) continue
      const { mtimeMs = Number.POSITIVE_INFINITY } = (await stat(path).catch(whenMissing)) ?? {}
      if (mtimeMs < before) await rm(path, { force: true })
    }
  }

  /** Reads the records that have been added or removed, also by other servers. @returns the names in the folder */
  async refresh(): Promise<string[]> {
    const known = [...this.#files.keys()]
    const names = await namesIn(this.#folder)
    const there = new Set(names)
    for (const id of known) if (!there.has(`${id}.json`)) this.#files.delete(id)
    for (const name of names) {
      if (!name.endsWith('.json') || this.#files.has(basename(name, '.json'))) continue
      const path = join(this.#folder, name)
      const { value, fault } = (await readJsonFile(path, FileRecordSchema)) ?? { fault: 'the file is gone' }
      if (value && ID.test(value.id)) this.#files.set(value.id, value)
      else this.#log.warn(`${path} cannot be used: ${fault ?? 'it has no valid id'}`)
    }
    return names
  }

  list(owner: string): FileRecord[] {
    return [...this.#files.values()].filter(file => file.owner === owner)
  }

  /** Returns undefined for files that do not exist, and for files of other owners. */
  find(owner: string, id: string): (FileRecord & { path: string }) | undefined {
    // Another server may have received it a moment ago.
    const read = () =>
      ID.test(id) ? readJsonFileSync(join(this.#folder, `${id}.json`), FileRecordSchema)?.value : undefined
    const file = this.#files.get(id) ?? read()
    return file?.owner === owner ? { ...file, path: this.pathOf(id) } : undefined
  }

  /** @throws CorralError `file_not_found`, also for files of other owners */
  get(owner: string, id: string, param = 'file_id'): FileRecord {
    const file = this.#files.get(id)
    if (file?.owner === owner) return file
    throw new CorralError(
      'file_not_found',
      `You have no file ${JSON.stringify(id.slice(0, 100))}. List your files with GET /v1/files.`,
      { param }
    )
  }

  /** Returns the path of a file's content. @param id an id that corral generated, not a client's */
  pathOf(id: string): string {
    return join(this.#folder, `${id}.jsonl`)
  }

  /**
   * Stores an upload. Nothing of it remains if it fails.
   * @param length expected bytes, if known
   * @param form resolves with the number of seconds to store the file, once the whole form is valid
   * @throws CorralError `body_too_large`, `over_limit`, `rate_limited`, `insufficient_storage`, or the error of the
   * form
   */
  async receive(
    { owner }: Pick<Caller, 'owner'>,
    { filename, content }: ArrivingFile,
    { length = 0, form }: { length?: number | undefined; form: Promise<{ keep: number | undefined; purpose: Purpose }> }
  ): Promise<FileRecord> {
    const id = newFileId()
    const part = join(this.#folder, `${id}.part`)
    const own = [...this.#arriving.values()].filter(each => each.owner === owner)
    if (own.length >= MAX_UPLOADS_PER_OWNER) {
      const message = `You are already uploading ${plural(own.length, 'file')}. Send this one when one of them is complete.`
      throw new CorralError('rate_limited', message, { retryAfter: 5 })
    }
    const arriving = { owner, bytes: 0 }
    this.#arriving.set(part, arriving)
    try {
      await mkdir(this.#folder, { recursive: true, mode: 0o700 })
      this.#requireRoom(owner, 0)
      await requireSpace(this.#folder, length, 'The file needs', 'home')
      await writeFile(part, this.#counted(arriving, content), { flag: 'wx', mode: 0o600, flush: true })
      const { keep, purpose } = await form
      await rename(part, this.pathOf(id))
      const expiresAt = keep === undefined ? {} : { expiresAt: secondsNow() + keep }
      return await this.#record({
        id,
        owner,
        filename: displayName(filename),
        purpose,
        bytes: arriving.bytes,
        ...expiresAt
      })
    } catch (error) {
      await rm(part, { force: true })
      await rm(this.pathOf(id), { force: true })
      throw diskRefusal(error, 'The file was not stored', 'home') ?? error
    } finally {
      this.#arriving.delete(part)
    }
  }

  async *#counted(arriving: { owner: string; bytes: number }, content: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    for await (const piece of content) {
      arriving.bytes += piece.length
      this.#requireRoom(arriving.owner, arriving.bytes)
      yield piece
    }
  }

  /** Lists the content that a batch wrote as a file, unless it is empty. Does nothing if that was done already. */
  async addResults(id: string, owner: string, filename: string): Promise<void> {
    if (this.#files.has(id)) return
    const bytes = (await fileSize(this.pathOf(id))) ?? 0
    if (bytes > 0) await this.#record({ id, owner, filename, purpose: 'batch_output', bytes })
    else await rm(this.pathOf(id), { force: true })
  }

  async remove(id: string): Promise<void> {
    // The record is deleted first. Content without a record is deleted at the next start.
    await rm(join(this.#folder, `${id}.json`), { force: true })
    this.#files.delete(id)
    await rm(this.pathOf(id), { force: true })
  }

  async sweep(isUsed: (id: string) => boolean): Promise<void> {
    const now = secondsNow()
    const oldest = now - this.#limits().keep / 1000
    for (const { id, createdAt, expiresAt = Number.POSITIVE_INFINITY } of [...this.#files.values()]) {
      if ((createdAt >= oldest && expiresAt > now) || isUsed(id)) continue
      await this.remove(id).catch(error => this.#log.warn(`The file ${id} cannot be removed: ${errorMessage(error)}`))
    }
  }

  async #record(file: Omit<FileRecord, 'version' | 'createdAt'>): Promise<FileRecord> {
    const record: FileRecord = { version: 1, ...file, createdAt: secondsNow() }
    await writeJsonFile(join(this.#folder, `${file.id}.json`), record, { mode: 0o600 })
    this.#files.set(file.id, record)
    return record
  }

  /** @throws CorralError if a file of this size exceeds a limit */
  #requireRoom(owner: string, bytes: number): void {
    const limits = this.#limits()
    if (bytes > limits.fileSize) {
      const sentence = `A file may have at most ${formatBytes(limits.fileSize)} (api-batches.file_size). Split it into several files.`
      throw new CorralError('body_too_large', sentence, { param: 'file' })
    }
    const own = this.list(owner)
    let all = 0
    for (const file of own) all += file.bytes
    for (const each of this.#arriving.values()) if (each.owner === owner) all += each.bytes
    if (own.length >= limits.files) throw limitExceeded('files', own.length + 1, limits.files, `${limits.files} files`)
    if (all > limits.bytes) throw limitExceeded('bytes', all, limits.bytes, `${formatBytes(limits.bytes)} of files`)
  }
}

function limitExceeded(limit: string, value: number, maximum: number, text: string): CorralError {
  const message = `You may store ${text} (api-batches.${limit}), and this file would exceed that. Delete files with DELETE /v1/files/<id>.`
  return new CorralError('over_limit', message, { details: { limit: `api-batches.${limit}`, value, maximum } })
}

/** Returns the file name without folders and control characters. It is only displayed, never used as a path. */
function displayName(text: string): string {
  const name = text
    .split(/[/\\]/)
    .at(-1)!
    .replace(/\p{Cc}/gu, '')
  // Splits by code points, because half a surrogate pair cannot be sent in a header.
  return [...name].slice(0, 255).join('') || 'file.jsonl'
}
