/** Refusals logged per minute: for one caller, and in total. */
const MAX_PER_CLIENT = 30
const MAX_COUNT = 600
const MINUTE = 60_000

/** Limits how many refusals are logged, since a flood of them would push older entries out. Others are only counted. */
export class RefusalLimit {
  readonly #omit: (refusals: { omitted: number; statuses: Record<string, number> }) => void
  readonly #byCaller = new Map<string, number>()
  #told = 0
  #statuses: Record<string, number> = {}
  #timer: NodeJS.Timeout | undefined

  /** @param omit called with the omitted refusals, by status, at the end of each minute that had any */
  constructor(omit: (refusals: { omitted: number; statuses: Record<string, number> }) => void) {
    this.#omit = omit
  }

  /** @param caller a key, or the network of an address. @returns whether to log this refusal individually */
  take(caller: string, status: number): boolean {
    this.#timer ??= setTimeout(() => this.end(), MINUTE).unref()
    const count = this.#byCaller.get(caller) ?? 0
    if (count < MAX_PER_CLIENT && this.#told < MAX_COUNT) {
      this.#byCaller.set(caller, count + 1)
      this.#told++
      return true
    }
    this.#statuses[status] = (this.#statuses[status] ?? 0) + 1
    return false
  }

  end(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    const statuses = this.#statuses
    this.#byCaller.clear()
    this.#told = 0
    this.#statuses = {}
    const omitted = Object.values(statuses).reduce((sum, count) => sum + count, 0)
    if (omitted > 0) this.#omit({ omitted, statuses })
  }
}
