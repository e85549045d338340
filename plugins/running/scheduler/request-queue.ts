import type { LoadOptions } from '../../../core/models/load-options.ts'
import { OpenMap, OpenSet } from '../../../core/system/open-tables.ts'

export interface QueuedRequest {
  id: number
  clientId: string
  options: Partial<LoadOptions>
  /** As `LeaseRequest.fewerSlots`. */
  fewerSlots?: boolean | undefined
  /** Takes no slot: it is granted when the engine is ready. */
  loadOnly: boolean
  /** Number of slots to take together, or all slots if the engine has fewer. */
  slots: number
  arrivedAt: number
  /** Its number in order of arrival. It keeps the number when it is queued again. */
  place: number
  /** Whether it has already been charged as a reload of its client. */
  isCounted: boolean
  /** Runs only on slots that no client wants, and loses them as soon as a client does (a line of a batch). */
  background: boolean
  /** As `LeaseRequest.continues`. */
  continues?: boolean | undefined
}

/**
 * The requests that wait for one engine. The first of all, the first of each client and the next client are found in
 * constant time, and a change takes logarithmic time apart from moving pointers in memory.
 */
export class RequestQueue {
  readonly #byId = new OpenMap<number, QueuedRequest>()
  readonly #byClientId = new OpenMap<string, ClientLine>()
  readonly #usedBy: (clientId: string) => number
  /** Clients in the order of their turns. Those whose first request does not fit the running engine are kept apart. */
  readonly #fitting = new SortedList(byShare)
  readonly #misfits = new SortedList(byShare)
  #fits: (request: QueuedRequest) => boolean = () => true
  #places = 0

  /** Requests of clients, in order of arrival. */
  readonly clients = new Line()
  readonly background = new Line()
  /** Requests that take no slot, of clients and in the background. */
  readonly loadOnly = new OpenSet<QueuedRequest>()

  /** @param usedBy a client's use of the engine (`Client.used`); call `reorder` after changing it */
  constructor(usedBy: (clientId: string) => number) {
    this.#usedBy = usedBy
  }

  get length(): number {
    return this.#byId.size
  }

  get(id: number): QueuedRequest | undefined {
    return this.#byId.get(id)
  }

  byClient(clientId: string): Line | undefined {
    return this.#byClientId.get(clientId)
  }

  clientIds(): Iterable<string> {
    return this.#byClientId.keys()
  }

  /** Adds a request. One that is queued again becomes the first of its client. */
  add(request: Omit<QueuedRequest, 'place'> & { place?: number }): void {
    const queued = request as QueuedRequest
    queued.place ??= ++this.#places
    this.#byId.set(queued.id, queued)
    if (queued.loadOnly) this.loadOnly.add(queued)
    if (queued.background) {
      this.background.add(queued)
      return
    }
    this.clients.add(queued)
    let line = this.#byClientId.get(queued.clientId)
    if (!line) {
      line = new ClientLine(queued.clientId)
      this.#byClientId.set(queued.clientId, line)
    }
    line.add(queued)
    this.#settle(line)
  }

  remove(request: QueuedRequest): void {
    if (this.#byId.get(request.id) !== request) return
    this.#byId.delete(request.id)
    this.loadOnly.delete(request)
    if (request.background) {
      this.background.remove(request)
      return
    }
    this.clients.remove(request)
    const line = this.#byClientId.get(request.clientId)!
    line.remove(request)
    this.#settle(line)
  }

  /** Moves a client after its use of the engine has changed. */
  reorder(clientId: string): void {
    const line = this.#byClientId.get(clientId)
    if (line) this.#settle(line)
  }

  /** Sets which requests fit the running engine. */
  judge(fits: (request: QueuedRequest) => boolean): void {
    this.#fits = fits
    for (const line of this.#byClientId.values()) this.#settle(line)
  }

  /** Returns the first meant client whose request fits, and the first whose request does not. */
  firstByShare(isMeant: (clientId: string) => boolean): string[] {
    const first = [this.#fitting, this.#misfits].map(({ items }) => items.find(({ clientId }) => isMeant(clientId)))
    return first.flatMap(line => (line ? [line.clientId] : []))
  }

  /** The client with the most requests. Ties go to the client that has waited longest. Looks at all clients. */
  get mostCrowded(): Line | undefined {
    let most: Line | undefined
    for (const line of this.#byClientId.values()) {
      const isFirst = !most || line.length > most.length
      if (isFirst || (line.length === most!.length && line.first!.place < most!.first!.place)) most = line
    }
    return most
  }

  /** All requests, in order of arrival. */
  [Symbol.iterator](): Iterator<QueuedRequest> {
    return [...this.#byId.values()].sort((a, b) => a.place - b.place)[Symbol.iterator]()
  }

  #settle(line: ClientLine): void {
    line.turns?.remove(line)
    const { first, clientId } = line
    if (!first) {
      this.#byClientId.delete(clientId)
      return
    }
    line.used = this.#usedBy(clientId)
    line.arrivedAt = first.arrivedAt
    line.id = first.id
    line.turns = this.#fits(first) ? this.#fitting : this.#misfits
    line.turns.add(line)
  }
}

/** Compares use of the engine, then arrival. `fair-share.ts` compares clients with running requests or reloads. */
function byShare(a: ClientLine, b: ClientLine): number {
  return a.used - b.used || a.arrivedAt - b.arrivedAt || a.id - b.id
}

/** A sorted list. While an item is in it, its place in the order must not change. */
class SortedList<Item> {
  readonly items: Item[] = []
  readonly #compare: (a: Item, b: Item) => number

  /** @param compare returns 0 only for the same item */
  constructor(compare: (a: Item, b: Item) => number) {
    this.#compare = compare
  }

  add(item: Item): void {
    this.items.splice(this.#findPlace(item), 0, item)
  }

  remove(item: Item): void {
    this.items.splice(this.#findPlace(item), 1)
  }

  #findPlace(item: Item): number {
    const { items } = this
    let low = 0
    for (let high = items.length; low < high; ) {
      const middle = (low + high) >> 1
      if (this.#compare(items[middle]!, item) < 0) low = middle + 1
      else high = middle
    }
    return low
  }
}

export class Line extends SortedList<QueuedRequest> {
  constructor() {
    super((a, b) => a.place - b.place)
  }

  get length(): number {
    return this.items.length
  }

  get first(): QueuedRequest | undefined {
    return this.items[0]
  }

  get last(): QueuedRequest | undefined {
    return this.items.at(-1)
  }

  [Symbol.iterator](): Iterator<QueuedRequest> {
    return this.items[Symbol.iterator]()
  }

  /** Requests that came after this place, newest first. */
  *after(place: number): Generator<QueuedRequest> {
    for (let at = this.items.length - 1; at >= 0 && this.items[at]!.place > place; at--) yield this.items[at]!
  }
}

class ClientLine extends Line {
  readonly clientId: string
  used = 0
  arrivedAt = 0
  id = 0
  turns: SortedList<ClientLine> | undefined

  constructor(clientId: string) {
    super()
    this.clientId = clientId
  }
}
