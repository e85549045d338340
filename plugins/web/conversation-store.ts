import { mkdir, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from 'typebox'
import writeFileAtomic from 'write-file-atomic'
import { CorralError, isSystemError } from '../../core/errors.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { namesIn } from '../../core/system/folder-names.ts'
import { parseJson } from '../../core/system/json-file.ts'

/** In lower case, so that no file system takes two ids for one. */
export const ID_PATTERN = '^[a-z0-9][a-z0-9_-]{0,63}$'
/** Bytes of one conversation: it is read and written as a whole. */
const LARGEST = 16 * 2 ** 20
const LONGEST_TITLE = 500

/** What is known of a conversation beside itself. */
const HeadSchema = Type.Object({
  format: Type.Literal(1),
  id: Type.String({ pattern: ID_PATTERN }),
  title: Type.String(),
  pinned: Type.Boolean(),
  updated_at: Type.String(),
  version: Type.Integer({ minimum: 1 }),
  text: Type.String()
})
type Head = Static<typeof HeadSchema>

export interface ListedConversation extends Omit<Head, 'format' | 'text'> {
  /** Bytes on disk. */
  size: number
}

export interface NewConversation {
  title: string
  pinned: boolean
  updated_at: string
  /** What searches look at, beside the title. */
  text: string
  document: unknown
}

/** What one owner may keep. */
export interface Quota {
  count: number
  bytes: number
}

interface Shelf {
  readonly folder: string
  readonly listed: Map<string, ListedConversation>
}

/**
 * Conversations of the page, each in a file that is replaced as a whole: what is known of it on the first line, itself on
 * the second one. Owners see their own only.
 */
export class ConversationStore {
  readonly #home: string
  readonly #quota: () => Quota
  readonly #log: Pick<FastifyBaseLogger, 'error'>
  readonly #shelves = new Map<string, Promise<Shelf>>()
  /** The last change of each owner: one after another. */
  readonly #changes = new Map<string, Promise<unknown>>()

  /** @param home the folder that all are kept in */
  constructor(home: string, quota: () => Quota, log: Pick<FastifyBaseLogger, 'error'>) {
    this.#home = home
    this.#quota = quota
    this.#log = log
  }

  /**
   * An owner's conversations, pinned ones first, then the newest.
   * @param wanted words that all must be in the title or text; all conversations where it is empty
   * @param signal ends the search
   */
  async list(owner: string, wanted: string, signal: AbortSignal): Promise<ListedConversation[]> {
    const { folder, listed } = await this.#shelfOf(owner)
    const all = [...listed.values()].sort(
      (a, b) => Number(b.pinned) - Number(a.pinned) || (a.updated_at < b.updated_at ? 1 : -1)
    )
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean)
    if (words.length === 0) return all
    const found: ListedConversation[] = []
    for (const each of all) {
      signal.throwIfAborted()
      const head = await this.#read(folder, each.id)
      const text = `${head?.head.title}\n${head?.head.text}`.toLowerCase()
      if (head && words.every(word => text.includes(word))) found.push(each)
    }
    return found
  }

  /** @throws CorralError `conversation_not_found` */
  async get(owner: string, id: string): Promise<ListedConversation & { document: unknown }> {
    const { folder, listed } = await this.#shelfOf(owner)
    const known = listed.get(id)
    const read = known && (await this.#read(folder, id))
    if (!read) throw notFound(id)
    // One and the same reading of the file.
    const { format: _, text: __, ...head } = read.head
    return { ...head, size: read.size, document: JSON.parse(read.document) }
  }

  /**
   * Keeps a conversation.
   * @param based the version that it was made of; 0 for one that is not there yet
   * @throws CorralError `conversation_changed` where there is another version; `conversation_not_found` where it is gone;
   *   `over_limit`
   */
  put(owner: string, id: string, based: number, next: NewConversation): Promise<ListedConversation> {
    return this.#change(owner, async ({ folder, listed }) => {
      const known = listed.get(id)
      if (known && known.version !== based) throw changed(known)
      if (!known && based !== 0) throw notFound(id)
      const { document, ...about } = next
      const head: Head = { format: 1, id, ...about, title: about.title.slice(0, LONGEST_TITLE), version: based + 1 }
      const content = `${JSON.stringify(head)}\n${JSON.stringify(document)}\n`
      const size = Buffer.byteLength(content)
      this.#requireRoom(listed, known, size)
      await mkdir(folder, { recursive: true, mode: 0o700 })
      await writeFileAtomic(join(folder, fileOf(id)), content, { mode: 0o600 })
      const { format: _, text: __, ...rest } = head
      const kept = { ...rest, size }
      listed.set(id, kept)
      return kept
    })
  }

  /** @throws CorralError `conversation_not_found` */
  delete(owner: string, id: string): Promise<void> {
    return this.#change(owner, async ({ folder, listed }) => {
      if (!listed.has(id)) throw notFound(id)
      await rm(join(folder, fileOf(id)), { force: true })
      listed.delete(id)
    })
  }

  /** Deletes all of an owner. @returns how many there were */
  deleteAll(owner: string): Promise<number> {
    return this.#change(owner, async ({ folder, listed }) => {
      const count = listed.size
      await rm(folder, { recursive: true, force: true })
      listed.clear()
      return count
    })
  }

  #requireRoom(listed: Shelf['listed'], known: ListedConversation | undefined, size: number): void {
    const quota = this.#quota()
    const refuse = (message: string, limit: string, value: number) =>
      new CorralError('over_limit', message, { details: { limit, value } })
    if (size > LARGEST) {
      throw refuse(
        `The conversation has ${formatBytes(size)}, and one may have ${formatBytes(LARGEST)}. Begin a new one, or leave out its largest files.`,
        'conversation size',
        LARGEST
      )
    }
    if (!known && listed.size >= quota.count) {
      throw refuse(
        `You keep ${listed.size} conversations, and may keep ${quota.count} (web.conversation_count). Delete some, or ask the admin of this server for more.`,
        'web.conversation_count',
        quota.count
      )
    }
    const others = [...listed.values()].reduce((sum, each) => sum + (each === known ? 0 : each.size), 0)
    // One that becomes smaller is always kept: it makes room.
    if (others + size > quota.bytes && size > (known?.size ?? 0)) {
      throw refuse(
        `Your conversations would have ${formatBytes(others + size)}, and may have ${formatBytes(quota.bytes)} (web.conversation_bytes). Delete some, or ask the admin of this server for more.`,
        'web.conversation_bytes',
        quota.bytes
      )
    }
  }

  async #change<Result>(owner: string, change: (shelf: Shelf) => Promise<Result>): Promise<Result> {
    const before = this.#changes.get(owner) ?? Promise.resolve()
    const result = before.then(async () => change(await this.#shelfOf(owner)))
    const settled = result.catch(() => undefined)
    this.#changes.set(owner, settled)
    try {
      return await result
    } finally {
      if (this.#changes.get(owner) === settled) this.#changes.delete(owner)
    }
  }

  #shelfOf(owner: string): Promise<Shelf> {
    const known = this.#shelves.get(owner)
    if (known) return known
    const shelf = this.#open(owner)
    this.#shelves.set(owner, shelf)
    // Where the disk failed, it is tried again.
    shelf.catch(() => this.#shelves.delete(owner))
    return shelf
  }

  async #open(owner: string): Promise<Shelf> {
    const folder = join(this.#home, owner.replace(':', '-'))
    const listed: Shelf['listed'] = new Map()
    for (const name of await namesIn(folder)) {
      const id = /^c-(.+)\.json$/.exec(name)?.[1]
      // What a kill left of a file that was being written.
      if (id === undefined) await rm(join(folder, name), { force: true, recursive: true })
      else {
        const read = await this.#read(folder, id)
        if (!read) continue
        const { format: _, text: __, ...head } = read.head
        listed.set(id, { ...head, size: read.size })
      }
    }
    return { folder, listed }
  }

  /** Undefined where it is not there, or cannot be read, which the log says. */
  async #read(folder: string, id: string): Promise<{ head: Head; document: string; size: number } | undefined> {
    const path = join(folder, fileOf(id))
    const content = await readFile(path, 'utf8').catch(error => {
      if (!isSystemError(error, 'ENOENT')) throw error
    })
    if (content === undefined) return undefined
    const end = content.indexOf('\n')
    const { value: head, fault } = parseJson(content.slice(0, end), HeadSchema)
    if (head && head.id === id) return { head, document: content.slice(end + 1), size: Buffer.byteLength(content) }
    this.#log.error({ path }, `A conversation cannot be used: ${fault ?? 'it has another id'}. Its file stays.`)
    return undefined
  }
}

/** With a beginning of its own: some names are devices on Windows. */
const fileOf = (id: string) => `c-${id}.json`

function notFound(id: string): CorralError {
  return new CorralError('conversation_not_found', `You keep no conversation "${id}" here; it may have been deleted.`)
}

function changed({ id, version, updated_at }: ListedConversation): CorralError {
  return new CorralError(
    'conversation_changed',
    `The conversation "${id}" was changed elsewhere meanwhile: it has version ${version} now. Read it again, and send what is to be kept with that version.`,
    { details: { version, updated_at } }
  )
}
