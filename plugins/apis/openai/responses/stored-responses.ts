import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, rmSync } from 'node:fs'
import { rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { Type } from 'typebox'
import writeFileAtomic from 'write-file-atomic'
import { CorralError, errorMessage, whenMissing } from '../../../../core/errors.ts'
import { pageAfter } from '../../../../core/http/list-page.ts'
import { namesIn } from '../../../../core/system/folder-names.ts'
import { readJsonFileSync } from '../../../../core/system/json-file.ts'
import { engineMessages, readInput } from './response-request.ts'
import type { ResponseObject } from './response-writer.ts'
import type { Item, ItemsQuery } from './schemas.ts'

const ID = /^resp_[\w-]{1,100}$/
const StoredSchema = Type.Object({
  response: Type.Object({ id: Type.String(), output: Type.Array(Type.Object({})) }),
  input: Type.Array(Type.Object({}))
})

interface StoredResponse {
  response: ResponseObject
  /** The whole conversation before the response, without instructions. */
  input: readonly Item[]
}

const REFERENCE_BYTES = 16

const jsonBytes = (value: unknown) => Buffer.byteLength(JSON.stringify(value))

/**
 * Stores responses in memory, and in a folder if there is one. Each is visible only to its owner (`Caller.owner`). If memory runs out, the owner with
 * the largest share loses the oldest response, so no one can evict the responses of others.
 */
export class StoredResponses {
  readonly #owners = new Map<string, OwnResponses>()
  readonly #maxBytes: number
  readonly #maxPerOwner: number
  /** Empty if they are only in memory. */
  readonly #folder: string
  readonly #log: Pick<FastifyBaseLogger, 'warn'> | undefined

  constructor(maxBytes: number, maxPerOwner: number, folder = '', log?: Pick<FastifyBaseLogger, 'warn'>) {
    this.#maxBytes = maxBytes
    this.#maxPerOwner = maxPerOwner
    this.#folder = folder
    this.#log = log
  }

  get bytes(): number {
    return [...this.#owners.values()].reduce((sum, { bytes }) => sum + bytes, 0)
  }

  /** Stores a response, unless it is larger than the limit on its own. */
  add(owner: string, stored: StoredResponse): void {
    if (this.#folder !== '' && this.#maxPerOwner > 0) this.#write(owner, stored)
    this.#keep(owner, stored)
  }

  #pathOf(owner: string, id = ''): string {
    const folder = join(this.#folder, createHash('sha256').update(owner).digest('hex').slice(0, 32))
    return id === '' ? folder : join(folder, `${id}.json`)
  }

  #write(owner: string, stored: StoredResponse): void {
    const text = JSON.stringify(stored)
    if (Buffer.byteLength(text) > this.#maxBytes) return
    const folder = this.#pathOf(owner)
    // Before the client knows the id: it may use it at another server next.
    try {
      mkdirSync(folder, { recursive: true, mode: 0o700 })
      writeFileAtomic.sync(this.#pathOf(owner, stored.response.id), text, { mode: 0o600, fsync: false })
    } catch (error) {
      this.#log?.warn(`A response is stored only in memory: ${errorMessage(error)}`)
    }
    void this.#sweep(folder).catch(error => this.#log?.warn(`Old responses cannot be removed: ${errorMessage(error)}`))
  }

  /** Removes the oldest responses of an owner beyond the limits. */
  async #sweep(folder: string): Promise<void> {
    const names = await namesIn(folder)
    const files = await Promise.all(
      names.map(async name => ({ path: join(folder, name), ...(await stat(join(folder, name)).catch(whenMissing)) }))
    )
    let bytes = 0
    for (const [at, { path, size = 0 }] of files.sort((a, b) => (b.mtimeMs ?? 0) - (a.mtimeMs ?? 0)).entries()) {
      bytes += size
      if (at >= this.#maxPerOwner || bytes > this.#maxBytes) await rm(path, { force: true })
    }
  }

  /** Reads a response that another server has stored, or this one before it was started. */
  #read(owner: string, id: string): StoredResponse | undefined {
    if (this.#folder === '' || !ID.test(id)) return undefined
    const found = readJsonFileSync(this.#pathOf(owner, id), StoredSchema)
    if (found?.fault) this.#log?.warn(`${this.#pathOf(owner, id)} cannot be used: ${found.fault}`)
    return found?.value as StoredResponse | undefined
  }

  #keep(owner: string, stored: StoredResponse): void {
    const own = this.#owners.get(owner) ?? new OwnResponses()
    this.#owners.set(owner, own)
    if (own.add(stored) > this.#maxBytes) own.drop(stored.response.id)
    while (own.count > this.#maxPerOwner) own.dropOldest()
    let bytes = this.bytes
    while (bytes > this.#maxBytes) {
      const most = [...this.#owners.values()].reduce((a, b) => (b.bytes > a.bytes ? b : a))
      const before = most.bytes
      most.dropOldest()
      bytes -= before - most.bytes
    }
    this.#forgetEmpty()
  }

  /** @throws CorralError `response_not_found` */
  get(owner: string, id: string, param = 'response_id'): StoredResponse {
    const isShared = this.#folder !== ''
    const known = this.#owners.get(owner)?.get(id)
    // Another server may have deleted it.
    if (known && !(isShared && !existsSync(this.#pathOf(owner, id)))) return known
    const stored = this.#read(owner, id)
    if (!stored) throw notFound(param)
    this.#keep(owner, stored)
    return stored
  }

  /** @throws CorralError `response_not_found` */
  delete(owner: string, id: string): void {
    const isStored = this.#read(owner, id) !== undefined
    if (isStored) rmSync(this.#pathOf(owner, id), { force: true })
    if (!this.#owners.get(owner)?.drop(id) && !isStored) throw notFound('response_id')
    this.#forgetEmpty()
  }

  toItems(input: readonly object[]): Item[] {
    return readInput(input, () => undefined)
  }

  toMessages(items: readonly Item[]) {
    return engineMessages(items.map(item => ({ item }))).messages
  }

  itemsById(owner: string): Map<string, Item> {
    return new Map(this.#owners.get(owner)?.items.map(item => [item.id, item]))
  }

  #forgetEmpty(): void {
    for (const [owner, { count }] of this.#owners) if (count === 0) this.#owners.delete(owner)
  }
}

/** The responses of one owner. They share the items of their conversation, which are counted once. */
class OwnResponses {
  readonly #entries = new Map<string, StoredResponse & { size: number }>()
  readonly #items = new Map<Item, { size: number; users: number }>()
  bytes = 0

  get count(): number {
    return this.#entries.size
  }

  get items(): Item[] {
    return [...this.#items.keys()]
  }

  get(id: string): StoredResponse | undefined {
    return this.#entries.get(id)
  }

  /** @returns the size of the response without sharing */
  add({ response, input }: StoredResponse): number {
    const { output, ...fields } = response
    const items = [...input, ...output]
    const size = jsonBytes(fields) + items.length * REFERENCE_BYTES
    this.#entries.set(response.id, { response, input, size })
    this.bytes += size
    return items.reduce((sum, item) => sum + this.#retain(item), size)
  }

  dropOldest(): void {
    const [oldest] = this.#entries.keys()
    if (oldest !== undefined) this.drop(oldest)
  }

  drop(id: string): boolean {
    const entry = this.#entries.get(id)
    if (!entry) return false
    this.#entries.delete(id)
    this.bytes -= entry.size
    for (const item of [...entry.input, ...entry.response.output]) {
      const shared = this.#items.get(item)!
      shared.users--
      if (shared.users > 0) continue
      this.#items.delete(item)
      this.bytes -= shared.size
    }
    return true
  }

  #retain(item: Item): number {
    const entry = this.#items.get(item) ?? { size: jsonBytes(item), users: 0 }
    if (entry.users === 0) {
      this.#items.set(item, entry)
      this.bytes += entry.size
    }
    entry.users++
    return entry.size
  }
}

function notFound(param: string): CorralError {
  const message =
    'There is no stored response with this id. Responses are stored only in memory: it may not have been stored, may have been deleted or removed to free memory, may be older than the last restart, or may belong to another API key. Send the conversation as "input" instead.'
  return new CorralError('response_not_found', message, { param })
}

export function itemPage(items: readonly Item[], { limit = 20, order = 'desc', after }: ItemsQuery) {
  return pageAfter(order === 'asc' ? items : items.toReversed(), after, limit)
}
