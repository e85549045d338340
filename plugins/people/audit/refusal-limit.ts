/** Refusals logged per minute: for one caller, and in total. */
const MAX_PER_CLIENT = 30
const MAX_COUNT = 600
const MINUTE = 60_000

/** Refusals beyond the limit, by status. */
export interface OmittedRefusals {
  omitted: number
  statuses: Record<string, number>
}

/**
 * Limits how many refusals are logged. Refusals cost a caller nothing, so a flood of them would push older entries out
 * of the log. Beyond the limit they are only counted.
 */
export class RefusalLimit {
  readonly #omitted: (refusals: OmittedRefusals) => void
  readonly #byCaller = new Map<string, number>()
  #told = 0
  #statuses: Record<string, number> = {}
  #count = 0
  #timer: NodeJS.Timeout | undefined

  /** @param omitted called with the omitted refusals at the end of each minute that had any */
  constructor(omitted: (refusals: OmittedRefusals) => void) {
    this.#omitted = omitted
  }

  /** @param caller a key, or the network of an address. @returns whether to log this refusal individually */
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
