import { randomBytes } from 'node:crypto'
import { mkdir, open, rename, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import type { Readable } from 'node:stream'
import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from 'typebox'
import type { Caller } from '../../../core/contracts/callers.ts'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { diskRefusal, requireSpace } from '../../../core/system/disk-space.ts'
import { fileSize, namesIn } from '../../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { plural } from '../../../core/system/plural.ts'

const FileRecordSchema = Type.Object({
  version: Type.Literal(1),
  id: Type.String(),
  owner: Type.String(),
  filename: Type.String(),
  purpose: Type.Enum(['batch', 'batch_output']),
  bytes: Type.Integer(),
  createdAt: Type.Integer({ description: 'Seconds since the epoch' }),
  expiresAt: Type.Optional(Type.Integer())
})
/** A file as it is kept: its content is beside it, under its id. */
export type FileRecord = Static<typeof FileRecordSchema>

export interface FileLimits {
  /** Bytes of one file. */
  fileSize: number
  /** Files of one owner … */
  files: number
  /** … and their bytes together. */
  bytes: number
  /** Milliseconds that a file is kept. */
  keep: number
}

/** Uploads of one owner at the same time. */
const MAX_UPLOADS = 4
const ID = /^file-[0-9a-f]{32}$/

export const newFileId = () => `file-${randomBytes(16).toString('hex')}`
export const secondsNow = () => Math.floor(Date.now() / 1000)

/** What arrives of a form. */
export interface ArrivingFile {
  filename: string
  content: AsyncIterable<Buffer>
}

/** Files that clients sent, and results of their batches. Each belongs to its owner (`Caller.owner`) alone. */
export class UserFiles {
  readonly #folder: string
  readonly #limits: () => FileLimits
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  readonly #files = new Map<string, FileRecord>()
  /** Bytes so far of what is arriving, by the names of the parts. */
  readonly #arriving = new Map<string, { owner: string; bytes: number }>()

  constructor(folder: string, limits: () => FileLimits, log: Pick<FastifyBaseLogger, 'warn'>) {
    this.#folder = folder
    this.#limits = limits
    this.#log = log
  }

  /**
   * Finds what earlier servers kept, and removes what no record names.
   * @param isExpected whether a batch that has not ended will make a record of it
   */
  async load(isExpected: (id: string) => boolean): Promise<void> {
    const names = await namesIn(this.#folder)
    for (const name of names.filter(each => each.endsWith('.json'))) {
      const path = join(this.#folder, name)
      const { value, fault } = (await readJsonFile(path, FileRecordSchema)) ?? { fault: 'it has gone' }
      if (value && ID.test(value.id)) this.#files.set(value.id, value)
      else this.#log.warn(`${path} cannot be used: ${fault ?? 'its id is none'}`)
    }
    for (const name of names.filter(each => /\.(jsonl|part)$/.test(each))) {
      const id = basename(name, '.jsonl')
      if (!this.#files.has(id) && !isExpected(id)) await rm(join(this.#folder, name), { force: true })
    }
  }

  list(owner: string): FileRecord[] {
    return [...this.#files.values()].filter(file => file.owner === owner)
  }

  /** @throws CorralError `file_not_found`, for files of others too */
  get(owner: string, id: string, param = 'file_id'): FileRecord {
    const file = this.#files.get(id)
    if (file?.owner === owner) return file
    throw new CorralError(
      'file_not_found',
      `You have no file ${JSON.stringify(id.slice(0, 100))}. List yours with GET /v1/files.`,
      {
        param
      }
    )
  }

  /** Whether the content of a file is there, with a record or without. */
  async holds(id: string): Promise<boolean> {
    return (await fileSize(this.pathOf(id))) !== undefined
  }

  /** Where the content of a file is. @param id one that corral made */
  pathOf(id: string): string {
    return join(this.#folder, `${id}.jsonl`)
  }

  /** The content. @throws CorralError `file_not_found` where somebody has removed it */
  async read({ id, owner }: FileRecord): Promise<Readable> {
    try {
      const handle = await open(this.pathOf(id))
      return handle.createReadStream()
    } catch (error) {
      if (!isSystemError(error, 'ENOENT')) throw error
      await this.remove(id)
      this.get(owner, id)
      throw error
    }
  }

  /**
   * Keeps a file that arrives, or nothing of it.
   * @param length bytes to come, where that is known
   * @param form resolves with the seconds that the file is to be kept, once the whole form has come and is as it must be
   * @throws CorralError `body_too_large`, `over_limit`, `rate_limited`, `insufficient_storage`; what the form throws
   */
  async receive(
    { owner }: Pick<Caller, 'owner'>,
    { filename, content }: ArrivingFile,
    { length = 0, form }: { length?: number | undefined; form: Promise<{ keep: number | undefined }> }
  ): Promise<FileRecord> {
    const id = newFileId()
    const part = join(this.#folder, `${id}.part`)
    const own = [...this.#arriving.values()].filter(each => each.owner === owner)
    if (own.length >= MAX_UPLOADS) {
      throw new CorralError(
        'rate_limited',
        `You send ${plural(own.length, 'file')} already. Send this one when one is complete.`,
        {
          retryAfter: 5
        }
      )
    }
    const arriving = { owner, bytes: 0 }
    this.#arriving.set(part, arriving)
    try {
      await mkdir(this.#folder, { recursive: true, mode: 0o700 })
      this.#requireRoom(owner, 0)
      await requireSpace(this.#folder, length, 'The file needs', 'home')
      const handle = await open(part, 'wx', 0o600)
      try {
        for await (const piece of content) {
          arriving.bytes += piece.length
          this.#requireRoom(owner, arriving.bytes)
          for (let at = 0; at < piece.length; ) at += (await handle.write(piece, at)).bytesWritten
        }
        await handle.sync()
      } finally {
        await handle.close()
      }
      const { keep } = await form
      await rename(part, this.pathOf(id))
      const expiresAt = keep === undefined ? {} : { expiresAt: secondsNow() + keep }
      return await this.#record({
        id,
        owner,
        filename: plainName(filename),
        purpose: 'batch',
        bytes: arriving.bytes,
        ...expiresAt
      })
    } catch (error) {
      await rm(part, { force: true })
      await rm(this.pathOf(id), { force: true })
      throw diskRefusal(error, 'The file was not kept', 'home') ?? error
    } finally {
      this.#arriving.delete(part)
    }
  }

  /** Makes a file of a batch's results; does nothing where that was done already. */
  async adopt(id: string, owner: string, filename: string, from: string): Promise<void> {
    if (this.#files.has(id)) return
    await mkdir(this.#folder, { recursive: true, mode: 0o700 })
    await rename(from, this.pathOf(id)).catch(error => {
      // A kill came between this step and the next one.
      if (!isSystemError(error, 'ENOENT')) throw error
    })
    const bytes = (await fileSize(this.pathOf(id))) ?? 0
    await this.#record({ id, owner, filename, purpose: 'batch_output', bytes })
  }

  async remove(id: string): Promise<void> {
    // The record first: without one, what is left is removed at the next start.
    await rm(join(this.#folder, `${id}.json`), { force: true })
    this.#files.delete(id)
    await rm(this.pathOf(id), { force: true })
  }

  /** Removes what has been kept for long enough. @param isUsed whether a batch that has not ended reads it */
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

  /** @throws CorralError where a file of this size is too much */
  #requireRoom(owner: string, bytes: number): void {
    const limits = this.#limits()
    if (bytes > limits.fileSize) {
      throw new CorralError(
        'body_too_large',
        `A file may have ${formatBytes(limits.fileSize)} (api-batches.file_size). Send several files.`,
        { param: 'file' }
      )
    }
    const own = this.list(owner)
    let all = 0
    for (const file of own) all += file.bytes
    for (const each of this.#arriving.values()) if (each.owner === owner) all += each.bytes
    if (own.length >= limits.files) throw tooMuch('files', own.length + 1, limits.files, `${limits.files} files`)
    if (all > limits.bytes) throw tooMuch('bytes', all, limits.bytes, `${formatBytes(limits.bytes)} of files`)
  }
}

function tooMuch(limit: string, value: number, maximum: number, text: string): CorralError {
  return new CorralError(
    'over_limit',
    `You may have ${text} here (api-batches.${limit}), and it would be more with this one. Delete some with DELETE /v1/files/<id>.`,
    { details: { limit: `api-batches.${limit}`, value, maximum } }
  )
}

/** A file's name without folders and control characters; it is shown, and names nothing on this disk. */
function plainName(text: string): string {
  const name = text
    .split(/[/\\]/)
    .at(-1)!
    .replace(/\p{Cc}/gu, '')
  // By characters: half of one could not be sent in a header.
  return [...name].slice(0, 255).join('') || 'file.jsonl'
}
