/** Lines about refusals a minute: of one caller, and of all together. */
const MAX_PER_CLIENT = 30
const MAX_COUNT = 600
const MINUTE = 60_000

/** What was refused beyond that, by status. */
export interface OmittedRefusals {
  omitted: number
  statuses: Record<string, number>
}

/**
 * Refusals cost a caller nothing, so that a flood of them would fill the log and push out what is in it: of each caller so
 * many a minute are told one by one, the others are counted.
 */
export class RefusalLimit {
  readonly #omitted: (refusals: OmittedRefusals) => void
  readonly #byCaller = new Map<string, number>()
  #told = 0
  #statuses: Record<string, number> = {}
  #count = 0
  #timer: NodeJS.Timeout | undefined

  /** @param omitted called with what was left out, at the end of a minute in which something was */
  constructor(omitted: (refusals: OmittedRefusals) => void) {
    this.#omitted = omitted
  }

  /** @param caller a key, or the network of an address. @returns whether this one is told by itself */
  take(caller: string, status: number): boolean {
    this.#timer ??= setTimeout(() => this.end(), MINUTE).unref()
    const of = this.#byCaller.get(caller) ?? 0
    if (of < MAX_PER_CLIENT && this.#told < MAX_COUNT) {
      this.#byCaller.set(caller, of + 1)
      this.#told++
      return true
    }
    this.#count++
    this.#statuses[status] = (this.#statuses[status] ?? 0) + 1
    return false
  }

  /** Ends the minute. */
  end(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    const [omitted, statuses] = [this.#count, this.#statuses]
    this.#byCaller.clear()
    this.#told = 0
    this.#count = 0
    this.#statuses = {}
    if (omitted > 0) this.#omitted({ omitted, statuses })
  }
}
