import { randomBytes } from 'node:crypto'
import { type FileHandle, mkdir, open, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from 'typebox'
import writeFileAtomic from 'write-file-atomic'
import type { ListedConversation } from '../../../core/contracts/native-records.ts'
import { CorralError, whenMissing } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { setNewest } from '../../../core/system/collections.ts'
import { fileSize, namesIn } from '../../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { KeyedQueue } from '../../../core/system/keyed-queue.ts'
import { plural } from '../../../core/system/plural.ts'
import { withShortLock } from '../../../core/system/short-lock.ts'
import { type ConversationHead, readHead } from './conversation-file.ts'

/** A conversation is rewritten as a whole. */
const MAX_CONVERSATION_BYTES = 16 * 2 ** 20
const MAX_TITLE_LENGTH = 500
/** Searches of one owner that may wait for another. */
const MAX_WAITING_SEARCHES = 4
/** Deleted conversations remembered for each owner, so that other browsers do not bring them back. */
const MAX_TOMBSTONES = 5000

export type NewConversation = Omit<ConversationHead, 'format' | 'id' | 'of' | 'version'> & { document: unknown }

/** A deleted conversation. The version is that of its deletion. */
const TombstoneSchema = Type.Object({ id: Type.String(), version: Type.Integer(), deleted_at: Type.String() })
const TombstonesSchema = Type.Object({ version: Type.Literal(1), deleted: Type.Array(TombstoneSchema) })
type Tombstone = Static<typeof TombstoneSchema>

interface Shelf {
  readonly folder: string
  readonly listed: Map<string, ListedConversation>
  readonly deleted: Map<string, Tombstone>
}

/**
 * The page's conversations, one file each that is replaced as a whole: the head on the first line, the document on the
 * second. Owners only see their own, and copies that others share, if they know the id.
 */
export class ConversationStore {
  readonly #home: string
  readonly #quota: () => { count: number; bytes: number }
  readonly #log: Pick<FastifyBaseLogger, 'error'>
  readonly #isShared: boolean
  readonly #shelves = new Map<string, Promise<Shelf>>()
  readonly #searches = new KeyedQueue()
  readonly #changes = new KeyedQueue()

  /**
   * @param home folder of all conversations
   * @param isShared whether other servers may use it too
   */
  constructor(
    home: string,
    quota: () => { count: number; bytes: number },
    log: Pick<FastifyBaseLogger, 'error'>,
    isShared = false
  ) {
    this.#home = home
    this.#quota = quota
    this.#log = log
    this.#isShared = isShared
  }

  /**
   * Lists an owner's conversations, or the shared copies of them. Pinned ones come first, then the newest.
   * @param wanted words that must all be in the title or text; empty for all conversations
   * @param signal stops the search
   * @throws CorralError `rate_limited` if too many searches of the owner are waiting
   */
  async list(owner: string, wanted: string, signal: AbortSignal, copies = false): Promise<ListedConversation[]> {
    const { folder, listed } = await this.#shelfOf(owner)
    const all = [...listed.values()]
      .filter(each => isCopy(each) === copies)
      .sort((a, b) => Number(b.pinned) - Number(a.pinned) || (a.updated_at < b.updated_at ? 1 : -1))
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean)
    if (words.length === 0) return all
    const waiting = this.#searches.count(owner)
    if (waiting > MAX_WAITING_SEARCHES) {
      throw new CorralError(
        'rate_limited',
        `${waiting} of your searches are already running or waiting. Try again when they have ended.`,
        { retryAfter: 2 }
      )
    }
    return await this.#searches.run(owner, async () => {
      const found: ListedConversation[] = []
      for (const each of all) if (await this.#hasWords(folder, each, words, signal)) found.push(each)
      return found
    })
  }

  async #hasWords(folder: string, { id, title }: ListedConversation, words: readonly string[], signal: AbortSignal) {
    const longest = Math.max(...words.map(({ length }) => length))
    const missing = new Set(words)
    let before = ''
    const look = (piece: string) => {
      const text = before + piece.toLowerCase()
      for (const word of missing) if (text.includes(word)) missing.delete(word)
      before = text.slice(-longest)
    }
    look(`${title}\n`)
    if (missing.size > 0) await this.#look(folder, id, look, signal)
    return missing.size === 0
  }

  /**
   * Reads a conversation.
   * @returns its head, and its document as a JSON stream that must be read or destroyed
   * @throws CorralError `conversation_not_found`
   */
  async get(owner: string, id: string): Promise<{ about: ListedConversation; document: Readable; length: number }> {
    const { folder, listed } = await this.#shelfOf(owner)
    const file = listed.has(id) ? await open(join(folder, fileOf(id)), 'r').catch(whenMissing) : undefined
    if (!file) throw notFound(id)
    try {
      const read = await this.#read(folder, id, file)
      if (!read) throw notFound(id)
      const { about, documentAt: start } = read
      // Without the final line break.
      const end = about.size - 2
      return { about, document: file.createReadStream({ start, end }), length: end + 1 - start }
    } catch (error) {
      await file.close()
      throw error
    }
  }

  /**
   * Reads a copy that somebody shares.
   * @param hasOwner whether the key of an owner exists
   * @throws CorralError `conversation_not_found`
   */
  async getShared(id: string, hasOwner: (owner: string) => boolean): ReturnType<ConversationStore['get']> {
    for (const name of await namesIn(this.#home)) {
      const owner = name.replace('-', ':')
      const isThere = hasOwner(owner) && (await fileSize(join(this.#home, name, fileOf(id)))) !== undefined
      const copy = isThere && (await this.#shelfOf(owner)).listed.get(id)
      if (copy && isCopy(copy)) return await this.get(owner, id)
    }
    throw notFound(id)
  }

  /**
   * Stores a conversation.
   * @param based the version it is based on: 0 for a new one, or the version of its deletion to restore it
   * @throws CorralError `conversation_changed` if there is another version or it was deleted; `conversation_not_found`;
   * `over_limit`
   */
  put(owner: string, id: string, based: number, next: NewConversation): Promise<ListedConversation> {
    return this.#change(owner, async shelf => {
      const there = shelf.listed.get(id) ?? shelf.deleted.get(id)
      if (there && there.version !== based) throw changed(there)
      if (!there && based !== 0) throw notFound(id)
      return await this.#write(shelf, { id, version: based + 1, ...next })
    })
  }

  /** Stores a copy for everybody who learns its id. @throws CorralError `conversation_not_found`; `over_limit` */
  share(owner: string, of: string, copy: NewConversation): Promise<ListedConversation> {
    return this.#change(owner, async shelf => {
      if (!shelf.listed.has(of)) throw notFound(of)
      return await this.#write(shelf, { id: randomBytes(16).toString('hex'), of, version: 1, ...copy })
    })
  }

  async #write(
    { folder, listed, deleted }: Shelf,
    { document, ...about }: Pick<ConversationHead, 'id' | 'of' | 'version'> & NewConversation
  ): Promise<ListedConversation> {
    const head: ConversationHead = { format: 1, ...about, title: about.title.slice(0, MAX_TITLE_LENGTH) }
    const content = `${JSON.stringify(head)}\n${JSON.stringify(document)}\n`
    const kept = listedOf(head, Buffer.byteLength(content))
    this.#requireRoom(listed, listed.get(kept.id), kept.size)
    await mkdir(folder, { recursive: true, mode: 0o700 })
    await writeFileAtomic(join(folder, fileOf(kept.id)), content, { mode: 0o600 })
    listed.set(kept.id, kept)
    deleted.delete(kept.id)
    return kept
  }

  /** @throws CorralError `conversation_not_found` */
  delete(owner: string, id: string): Promise<void> {
    return this.#change(owner, async shelf => {
      if (!shelf.listed.has(id)) throw notFound(id)
      await this.#delete(shelf, [id])
    })
  }

  /** Deletes all conversations of an owner. @returns how many there were, without copies */
  deleteAll(owner: string): Promise<number> {
    return this.#change(owner, async shelf => {
      const all = [...shelf.listed.values()]
      await this.#delete(
        shelf,
        all.map(({ id }) => id)
      )
      return all.filter(each => !isCopy(each)).length
    })
  }

  /** Delete the files first, so that a full disk has space for the note, and copies before their conversations. */
  async #delete({ folder, listed, deleted }: Shelf, ids: readonly string[]): Promise<void> {
    const deleted_at = new Date().toISOString()
    const copies = [...listed.values()].filter(({ of = '' }) => ids.includes(of))
    for (const id of new Set([...copies.map(({ id }) => id), ...ids])) {
      await rm(join(folder, fileOf(id)), { force: true })
      setNewest(deleted, id, { id, version: listed.get(id)!.version + 1, deleted_at }, MAX_TOMBSTONES)
      listed.delete(id)
    }
    if (ids.length > 0)
      await writeJsonFile(join(folder, TOMBSTONES), { version: 1, deleted: [...deleted.values()] }, { mode: 0o600 })
  }

  #requireRoom(listed: Shelf['listed'], known: ListedConversation | undefined, size: number): void {
    const { count, bytes } = this.#quota()
    const refuse = (message: string, limit: string, value: number) => {
      throw new CorralError('over_limit', message, { details: { limit, value } })
    }
    const advice = 'Delete some, or ask the admin of this server for a higher limit.'
    if (size > MAX_CONVERSATION_BYTES) {
      const message = `The conversation has ${formatBytes(size)}, and the limit is ${formatBytes(MAX_CONVERSATION_BYTES)}. Start a new one, or remove its largest files.`
      refuse(message, 'conversation size', MAX_CONVERSATION_BYTES)
    }
    if (!known && listed.size >= count) {
      const message = `You have ${plural(listed.size, 'conversation')} on this server, and the limit is ${count} (web.conversation_count). ${advice}`
      refuse(message, 'web.conversation_count', count)
    }
    const total = [...listed.values()].reduce((sum, each) => sum + (each === known ? 0 : each.size), size)
    // A conversation that shrinks is always stored, since it frees space.
    if (total > bytes && size > (known?.size ?? 0)) {
      const message = `Your conversations would have ${formatBytes(total)}, and the limit is ${formatBytes(bytes)} (web.conversation_bytes). ${advice}`
      refuse(message, 'web.conversation_bytes', bytes)
    }
  }

  #change<Result>(owner: string, change: (shelf: Shelf) => Promise<Result>): Promise<Result> {
    const changed = async () => change(await this.#shelfOf(owner))
    if (!this.#isShared) return this.#changes.run(owner, changed)
    return this.#changes.run(owner, async () => {
      await mkdir(this.#home, { recursive: true, mode: 0o700 })
      return await withShortLock(this.#folderOf(owner), changed)
    })
  }

  #folderOf(owner: string): string {
    return join(this.#home, owner.replace(':', '-'))
  }

  #shelfOf(owner: string): Promise<Shelf> {
    if (this.#isShared) return this.#open(owner)
    const known = this.#shelves.get(owner)
    if (known) return known
    const shelf = this.#open(owner)
    this.#shelves.set(owner, shelf)
    // Try again after a disk error.
    shelf.catch(() => this.#shelves.delete(owner))
    return shelf
  }

  async #open(owner: string): Promise<Shelf> {
    const folder = this.#folderOf(owner)
    const listed: Shelf['listed'] = new Map()
    for (const name of await namesIn(folder)) {
      const id = /^c-(.+)\.json$/.exec(name)?.[1]
      if (id !== undefined) {
        const read = await this.#look(folder, id)
        if (read) listed.set(id, read.about)
      }
      // A partly written file, left by a kill.
      else if (name !== TOMBSTONES && !this.#isShared) await rm(join(folder, name), { force: true, recursive: true })
    }
    const noted = await readJsonFile(join(folder, TOMBSTONES), TombstonesSchema)
    if (noted?.fault) this.#log.error({ folder }, `The list of deleted conversations cannot be used: ${noted.fault}.`)
    const deleted = new Map(noted?.value?.deleted.map(each => [each.id, each]))
    // A conversation that was restored.
    for (const id of listed.keys()) deleted.delete(id)
    return { folder, listed, deleted }
  }

  /** Returns the head of a conversation, or undefined if it is missing or unreadable, which is logged. */
  async #look(folder: string, id: string, onText?: (piece: string) => void, signal?: AbortSignal) {
    const file = await open(join(folder, fileOf(id)), 'r').catch(whenMissing)
    try {
      return file && (await this.#read(folder, id, file, onText, signal))
    } finally {
      await file?.close()
    }
  }

  async #read(folder: string, id: string, file: FileHandle, onText?: (piece: string) => void, signal?: AbortSignal) {
    const { value, fault } = await readHead(file, onText, signal)
    if (value?.head.id === id) {
      return { about: listedOf(value.head, (await file.stat()).size), documentAt: value.documentAt }
    }
    const reason = fault ?? 'it has another id'
    const path = join(folder, fileOf(id))
    this.#log.error({ path }, `A conversation cannot be used: ${reason}. Its file is left unchanged.`)
    return undefined
  }
}

const TOMBSTONES = 'deleted.json'

const isCopy = ({ of }: ListedConversation) => of !== undefined

const listedOf = ({ format: _, text: __, ...about }: ConversationHead, size: number): ListedConversation => ({
  ...about,
  size
})

/** With a prefix, because some names are devices on Windows. */
const fileOf = (id: string) => `c-${id}.json`

function notFound(id: string): CorralError {
  return new CorralError(
    'conversation_not_found',
    `There is no conversation "${id}" on this server. It may have been deleted, or is no longer shared.`
  )
}

function changed({ id, version, ...there }: ListedConversation | Tombstone): CorralError {
  const message =
    'deleted_at' in there
      ? `The conversation "${id}" was deleted elsewhere. Delete it here too, or send it with version ${version} to restore it.`
      : `The conversation "${id}" was changed elsewhere and now has version ${version}. Read it again, and send the merged conversation with that version.`
  const when = 'deleted_at' in there ? { deleted_at: there.deleted_at } : { updated_at: there.updated_at }
  return new CorralError('conversation_changed', message, { details: { version, ...when } })
}
