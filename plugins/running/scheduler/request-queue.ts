import type { LoadOptions } from '../../../core/models/load-options.ts'
import { OpenMap, OpenSet } from '../../../core/system/open-tables.ts'

export interface QueuedRequest {
  id: number
  /** The client that it belongs to. */
  clientId: string
  /** The options that the request itself asks for. */
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
}

/**
 * The requests that wait for one engine. Each operation that the scheduler needs per event takes at most logarithmic
 * time: the first of all, the first of each client, the next client, and the client with the most.
 */
export class RequestQueue {
  readonly #byId = new OpenMap<number, QueuedRequest>()
  readonly #byClientId = new OpenMap<string, ClientLine>()
  readonly #usedBy: (clientId: string) => number
  /**
   * Clients in the order of their turns. Clients whose first request does not fit the running engine are kept apart.
   */
  readonly #fitting = new Heap('atFitting', byShare)
  readonly #misfits = new Heap('atMisfits', byShare)
  readonly #crowded = new Heap('atCrowded', (a, b) => b.counted - a.counted || a.place - b.place)
  #fits: (request: QueuedRequest) => boolean = () => true
  #places = 0

  /** Requests of clients, in order of arrival. */
  readonly clients = new Line(request => this.#waits(request))
  readonly background = new Line(request => this.#waits(request))
  /** Requests that take no slot, of clients and in the background. */
  readonly loadOnly = new OpenSet<QueuedRequest>()

  /** @param hadBy a client's use of the engine (`Client.used`); call `reorder` after changing it */
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

  /** The clients that wait. */
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
      line = new ClientLine(queued.clientId, request => this.#waits(request))
      this.#byClientId.set(queued.clientId, line)
    }
    line.add(queued)
    this.#settle(line)
  }

  remove(request: QueuedRequest): void {
    if (!this.#waits(request)) return
    this.#byId.delete(request.id)
    this.loadOnly.delete(request)
    if (request.background) {
      this.background.remove()
      return
    }
    this.clients.remove()
    const line = this.#byClientId.get(request.clientId)!
    line.remove()
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

  /**
   * Among the clients that satisfy `isMeant`, returns the first whose request fits and the first whose request does
   * not.
   */
  firstByShare(isMeant: (clientId: string) => boolean): string[] {
    const first = [this.#fitting, this.#misfits].map(heap => heap.find(({ clientId }) => isMeant(clientId)))
    return first.flatMap(line => (line ? [line.clientId] : []))
  }

  /** The client with the most requests. Ties go to the client that has waited longest. */
  get mostCrowded(): Line | undefined {
    return this.#crowded.first
  }

  /** All requests, in order of arrival. */
  [Symbol.iterator](): Iterator<QueuedRequest> {
    return [...this.#byId.values()].sort((a, b) => a.place - b.place)[Symbol.iterator]()
  }

  #waits(request: QueuedRequest): boolean {
    return this.#byId.get(request.id) === request
  }

  /** Moves a client to its current place in the order. */
  #settle(line: ClientLine): void {
    const { first, clientId } = line
    if (!first) {
      for (const heap of [this.#fitting, this.#misfits, this.#crowded]) heap.remove(line)
      this.#byClientId.delete(clientId)
      return
    }
    line.used = this.#usedBy(clientId)
    line.arrivedAt = first.arrivedAt
    line.id = first.id
    line.place = first.place
    line.counted = line.length
    const [now, before] = this.#fits(first) ? [this.#fitting, this.#misfits] : [this.#misfits, this.#fitting]
    before.remove(line)
    now.put(line)
    this.#crowded.put(line)
  }
}

/**
 * Compares use of the engine, then arrival. Clients with running requests or recent reloads are compared elsewhere
 * (`fair-share.ts`).
 */
function byShare(a: ClientLine, b: ClientLine): number {
  return a.used - b.used || a.arrivedAt - b.arrivedAt || a.id - b.id
}

/** Requests in order of arrival. Removed requests stay in the list until there are many. */
class Line {
  readonly #waits: (request: QueuedRequest) => boolean
  #requests: QueuedRequest[] = []
  /** No request before this index waits. */
  #start = 0
  length = 0

  /** @param waits whether a request is still in the queue */
  constructor(waits: (request: QueuedRequest) => boolean) {
    this.#waits = waits
  }

  add(request: QueuedRequest): void {
    this.length++
    const requests = this.#requests
    const newest = requests.at(-1)
    if (newest === undefined || newest.place < request.place) {
      requests.push(request)
      return
    }
    let low = 0
    for (let high = requests.length; low < high; ) {
      const middle = (low + high) >> 1
      if (requests[middle]!.place < request.place) low = middle + 1
      else high = middle
    }
    // A request that is queued again may still be in the list.
    if (requests[low] !== request) requests.splice(low, 0, request)
    this.#start = Math.min(this.#start, low)
  }

  /** Counts a removed request. */
  remove(): void {
    this.length--
    if (this.#requests.length <= 2 * this.length + 16) return
    this.#requests = this.#requests.filter(this.#waits)
    this.#start = 0
  }

  get first(): QueuedRequest | undefined {
    const requests = this.#requests
    while (this.#start < requests.length && !this.#waits(requests[this.#start]!)) this.#start++
    return requests[this.#start]
  }

  get last(): QueuedRequest | undefined {
    const requests = this.#requests
    while (requests.length > 0 && !this.#waits(requests.at(-1)!)) requests.pop()
    this.#start = Math.min(this.#start, requests.length)
    return requests.at(-1)
  }

  *[Symbol.iterator](): Generator<QueuedRequest> {
    for (let at = this.#start; at < this.#requests.length; at++) {
      const request = this.#requests[at]!
      if (this.#waits(request)) yield request
    }
  }

  /** Requests that came after this place, newest first. */
  *after(place: number): Generator<QueuedRequest> {
    for (let at = this.#requests.length - 1; at >= 0; at--) {
      const request = this.#requests[at]!
      if (request.place <= place) return
      if (this.#waits(request)) yield request
    }
  }
}

export type { Line }

/** The requests of one client, with the values that it was last sorted by. */
class ClientLine extends Line {
  readonly clientId: string
  used = 0
  arrivedAt = 0
  id = 0
  place = 0
  counted = 0
  /** Its index in each heap, or -1. A Map would be rebuilt for each request that comes alone. */
  atFitting = -1
  atMisfits = -1
  atCrowded = -1

  constructor(clientId: string, waits: (request: QueuedRequest) => boolean) {
    super(waits)
    this.clientId = clientId
  }
}

/** A binary heap of clients. */
class Heap {
  readonly #at: 'atFitting' | 'atMisfits' | 'atCrowded'
  readonly #compare: (a: ClientLine, b: ClientLine) => number
  readonly #items: ClientLine[] = []

  /** @param at the property in which a client stores its index in this heap */
  constructor(at: 'atFitting' | 'atMisfits' | 'atCrowded', compare: (a: ClientLine, b: ClientLine) => number) {
    this.#at = at
    this.#compare = compare
  }

  get first(): ClientLine | undefined {
    return this.#items[0]
  }

  /** Adds a client, or moves it to its current place in the order. */
  put(item: ClientLine): void {
    let at = item[this.#at]
    if (at === -1) {
      at = this.#items.length
      this.#set(at, item)
    }
    this.#down(this.#up(at))
  }

  remove(item: ClientLine): void {
    const at = item[this.#at]
    if (at === -1) return
    item[this.#at] = -1
    const last = this.#items.pop()!
    if (last === item) return
    this.#set(at, last)
    this.#down(this.#up(at))
  }

  /**
   * Returns the first client in order that satisfies `isMeant`. The time is proportional to the number of clients
   * before it.
   */
  find(isMeant: (item: ClientLine) => boolean): ClientLine | undefined {
    const open = this.#items.length > 0 ? [0] : []
    while (open.length > 0) {
      let least = 0
      for (let at = 1; at < open.length; at++) if (this.#isBefore(open[at]!, open[least]!)) least = at
      const [at] = open.splice(least, 1) as [number]
      const item = this.#items[at]!
      if (isMeant(item)) return item
      for (const child of [2 * at + 1, 2 * at + 2]) if (child < this.#items.length) open.push(child)
    }
    return undefined
  }

  #isBefore(one: number, other: number): boolean {
    return this.#compare(this.#items[one]!, this.#items[other]!) < 0
  }

  #set(at: number, item: ClientLine): void {
    this.#items[at] = item
    item[this.#at] = at
  }

  #swap(one: number, other: number): void {
    const item = this.#items[one]!
    this.#set(one, this.#items[other]!)
    this.#set(other, item)
  }

  #up(start: number): number {
    let at = start
    for (let above = (at - 1) >> 1; at > 0 && this.#isBefore(at, above); above = (at - 1) >> 1) {
      this.#swap(at, above)
      at = above
    }
    return at
  }

  #down(start: number): void {
    for (let at = start; ; ) {
      let least = at
      for (const child of [2 * at + 1, 2 * at + 2]) {
        if (child < this.#items.length && this.#isBefore(child, least)) least = child
      }
      if (least === at) return
      this.#swap(at, least)
      at = least
    }
  }
}
