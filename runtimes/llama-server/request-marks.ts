import { OpenSet } from '../../core/system/open-tables.ts'

/** What llama-server prints when a slot takes up a task. */
const LAUNCH = /launch_slot_: id +(\d+) \| task (\d+) \|/

/** Milliseconds by which what it prints may come later than what it answers. */
const OUTPUT_LAG = 1000

/** Which slot and task of an engine served a request; several requests where it cannot be told. */
export interface ServedRequest {
  requestIds: readonly string[]
  slot: number
  task: number
}

/**
 * Relates what an engine prints to the requests that it was asked: it knows nothing of their ids. Requests are marked
 * where they begin and end; one that alone waits for a slot is the one that is taken up.
 */
export class RequestMarks {
  readonly #mark: (line: string) => void
  readonly #served: (request: ServedRequest) => void
  /** Those that no slot has taken up, with their slots where corral chose them, and when they ended. */
  readonly #waiting = new OpenSet<{ id: string; slot: number | undefined; ended?: number }>()
  #timer: NodeJS.Timeout | undefined

  constructor(mark: (line: string) => void, served: (request: ServedRequest) => void) {
    this.#mark = mark
    this.#served = served
  }

  /** A request is about to be sent. @param slot the one that corral chose for it @returns to be called when it has ended */
  begin(id: string, slot?: number): () => void {
    const waiting: { id: string; slot: number | undefined; ended?: number } = { id, slot }
    this.#waiting.add(waiting)
    this.#mark(`request ${id} begins${slot === undefined ? '' : ` in slot ${slot}`}`)
    return () => {
      this.#mark(`request ${id} ends`)
      if (!this.#waiting.has(waiting)) return
      // Short answers are here before the lines about them.
      waiting.ended = performance.now()
      this.#timer ??= setTimeout(() => this.#forget(), OUTPUT_LAG).unref()
    }
  }

  /** Takes a line that the engine printed. */
  read(line: string): void {
    if (this.#waiting.size === 0) return
    const [, taken, task] = LAUNCH.exec(line) ?? []
    if (taken === undefined) return
    const all = [...this.#waiting]
    const chosen = all.filter(each => each.slot === Number(taken))
    const of = chosen.length > 0 ? chosen : all.filter(each => each.slot === undefined)
    if (of.length === 0) return
    if (of.length === 1) this.#waiting.delete(of[0]!)
    this.#served({ requestIds: of.map(({ id }) => id), slot: Number(taken), task: Number(task) })
  }

  /** Forgets those about which no line comes any more; one timer does for all, however many there are in a second. */
  #forget(): void {
    this.#timer = undefined
    const before = performance.now() - OUTPUT_LAG
    let isLeft = false
    for (const waiting of this.#waiting) {
      if (waiting.ended === undefined) continue
      if (waiting.ended <= before) this.#waiting.delete(waiting)
      else isLeft = true
    }
    if (isLeft) this.#timer = setTimeout(() => this.#forget(), OUTPUT_LAG).unref()
  }
}
