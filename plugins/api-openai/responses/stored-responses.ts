import { CorralError } from '../../../core/errors.ts'
import type { Item } from './items.ts'
import type { ResponseObject } from './response-writer.ts'

/** A response that can be asked for, and gone on from. */
interface StoredResponse {
  response: ResponseObject
  /** What the model was given, all of the conversation before included; without instructions. */
  input: readonly Item[]
}

/** However small they are. */
const MOST_RESPONSES = 10_000
/** What it takes that a response has an item, beside the item. */
const BYTES_OF_REFERENCE = 16

const sizeOf = (value: unknown) => Buffer.byteLength(JSON.stringify(value))

/**
 * Responses kept in memory, the oldest of which go when there is no more room. The items of a conversation are shared by
 * all of its responses, and counted once: a later response holds what an earlier one had that has gone.
 */
export class StoredResponses {
  readonly #entries = new Map<string, StoredResponse & { size: number }>()
  readonly #items = new Map<Item, { size: number; holders: number }>()
  readonly #mostBytes: number
  #bytes = 0

  /** @param mostBytes of JSON text; 0 keeps nothing */
  constructor(mostBytes: number) {
    this.#mostBytes = mostBytes
  }

  /** Bytes of JSON text that are held. */
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
    const alone = items.reduce((sum, item) => sum + this.#hold(item), size)
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
  #hold(item: Item): number {
    const held = this.#items.get(item) ?? { size: sizeOf(item), holders: 0 }
    if (held.holders === 0) {
      this.#items.set(item, held)
      this.#bytes += held.size
    }
    held.holders++
    return held.size
  }

  #drop(id: string): boolean {
    const entry = this.#entries.get(id)
    if (!entry) return false
    this.#entries.delete(id)
    this.#bytes -= entry.size
    for (const item of [...entry.input, ...entry.response.output]) {
      const held = this.#items.get(item)!
      held.holders--
      if (held.holders > 0) continue
      this.#items.delete(item)
      this.#bytes -= held.size
    }
    return true
  }
}

function notFound(param: string): CorralError {
  return new CorralError(
    'response_not_found',
    'There is no response with this id here. Responses are kept in memory only: it was asked not to be stored, has been deleted, was among the oldest when room was needed, or came before a restart. Send the conversation as "input" instead.',
    { param }
  )
}

/** Which part of a list a client asks for. */
interface PageQuery {
  limit?: number
  order?: 'asc' | 'desc'
  after?: string
}

/** A page of a list of items, as OpenAI's lists are read. */
export function pageOf(items: readonly Item[], { limit = 20, order = 'desc', after }: PageQuery) {
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
