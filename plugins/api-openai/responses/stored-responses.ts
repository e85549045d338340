import { CorralError } from '../../../core/errors.ts'
import type { ResponseObject } from './response-writer.ts'
import type { Item, ItemsQuery } from './schemas.ts'

/** A response that can be retrieved, and continued. */
interface StoredResponse {
  response: ResponseObject
  /** The whole conversation before it, without instructions. */
  input: readonly Item[]
}

/** However small they are, no more are kept. */
const MOST_RESPONSES = 10_000
/** What a response takes for each of its items, beside the item. */
const BYTES_OF_REFERENCE = 16

const sizeOf = (value: unknown) => Buffer.byteLength(JSON.stringify(value))

/**
 * Responses kept in memory, the oldest of which are dropped when there is no more room. The items of a conversation are
 * shared by all of its responses, and counted once: a later response keeps them when an earlier one has gone.
 */
export class StoredResponses {
  readonly #entries = new Map<string, StoredResponse & { size: number }>()
  readonly #items = new Map<Item, { size: number; users: number }>()
  readonly #mostBytes: number
  #bytes = 0

  /** @param mostBytes of JSON text; 0 keeps nothing */
  constructor(mostBytes: number) {
    this.#mostBytes = mostBytes
  }

  /** Bytes of JSON text that are kept. */
  get bytes(): number {
    return this.#bytes
  }

  /** Keeps a response, unless it alone is more than there is room for. */
  add({ response, input }: StoredResponse): void {
    const { output, ...fields } = response
    const items = [...input, ...output]
    const size = sizeOf(fields) + items.length * BYTES_OF_REFERENCE
    this.#entries.set(response.id, { response, input, size })
    this.#bytes += size
    const alone = items.reduce((sum, item) => sum + this.#retain(item), size)
    if (alone > this.#mostBytes) this.#drop(response.id)
    for (const id of this.#entries.keys()) {
      if (this.#bytes <= this.#mostBytes && this.#entries.size <= MOST_RESPONSES) break
      this.#drop(id)
    }
  }

  /** @throws CorralError `response_not_found` */
  get(id: string, param = 'response_id'): StoredResponse {
    const entry = this.#entries.get(id)
    if (entry) return entry
    throw notFound(param)
  }

  /** @throws CorralError `response_not_found` */
  delete(id: string): void {
    if (!this.#drop(id)) throw notFound('response_id')
  }

  /** All items, by their ids. */
  itemsById(): Map<string, Item> {
    return new Map([...this.#items.keys()].map(item => [item.id, item]))
  }

  /** @returns its bytes */
  #retain(item: Item): number {
    const entry = this.#items.get(item) ?? { size: sizeOf(item), users: 0 }
    if (entry.users === 0) {
      this.#items.set(item, entry)
      this.#bytes += entry.size
    }
    entry.users++
    return entry.size
  }

  #drop(id: string): boolean {
    const entry = this.#entries.get(id)
    if (!entry) return false
    this.#entries.delete(id)
    this.#bytes -= entry.size
    for (const item of [...entry.input, ...entry.response.output]) {
      const shared = this.#items.get(item)!
      shared.users--
      if (shared.users > 0) continue
      this.#items.delete(item)
      this.#bytes -= shared.size
    }
    return true
  }
}

function notFound(param: string): CorralError {
  return new CorralError(
    'response_not_found',
    'There is no response with this id here. Responses are kept in memory only: it was not to be stored, was deleted, was among the oldest when room was needed, or is from before a restart. Send the conversation as "input" instead.',
    { param }
  )
}

/** A page of a list of items, as OpenAI's lists are read. */
export function pageOf(items: readonly Item[], { limit = 20, order = 'desc', after }: ItemsQuery) {
  const ordered = order === 'asc' ? [...items] : items.toReversed()
  // Clients may give several items one id; the last one is taken, so that each page begins later than the one before.
  const start = after === undefined ? 0 : ordered.findLastIndex(item => item.id === after) + 1
  const data = ordered.slice(start, start + limit)
  return {
    object: 'list',
    data,
    first_id: data.at(0)?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: start + data.length < ordered.length
  }
}
