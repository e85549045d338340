import { CorralError } from '../../../../core/errors.ts'
import { pageAfter } from '../../../../core/http/list-page.ts'
import { engineMessages, readInput } from './response-request.ts'
import type { ResponseObject } from './response-writer.ts'
import type { Item, ItemsQuery } from './schemas.ts'

interface StoredResponse {
  response: ResponseObject
  /** The whole conversation before the response, without instructions. */
  input: readonly Item[]
}

const REFERENCE_BYTES = 16

const jsonBytes = (value: unknown) => Buffer.byteLength(JSON.stringify(value))

/**
 * Stores responses in memory. Each is visible only to its owner (`Caller.owner`). If memory runs out, the owner with
 * the largest share loses the oldest response, so no one can evict the responses of others.
 */
export class StoredResponses {
  readonly #owners = new Map<string, OwnResponses>()
  readonly #maxBytes: number
  readonly #maxPerOwner: number

  constructor(maxBytes: number, maxPerOwner: number) {
    this.#maxBytes = maxBytes
    this.#maxPerOwner = maxPerOwner
  }

  get bytes(): number {
    return [...this.#owners.values()].reduce((sum, { bytes }) => sum + bytes, 0)
  }

  /** Stores a response, unless it is larger than the limit on its own. */
  add(owner: string, stored: StoredResponse): void {
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
    const entry = this.#owners.get(owner)?.get(id)
    if (entry) return entry
    throw notFound(param)
  }

  /** @throws CorralError `response_not_found` */
  delete(owner: string, id: string): void {
    if (!this.#owners.get(owner)?.drop(id)) throw notFound('response_id')
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
