import { OpenSet } from '../../core/system/open-tables.ts'

/** llama-server prints this when a slot takes a task. */
const LAUNCH = /launch_slot_: id +(\d+) \| task (\d+) \|/

const MAX_OUTPUT_LAG_MS = 1000

/** Which slot and task of an engine served a request. Lists several requests if that is ambiguous. */
export interface ServedRequest {
  requestIds: readonly string[]
  slot: number
  task: number
}

/** Correlates the engine's output with requests. If only one waits for a slot, it must be the one that is taken. */
export class RequestLogCorrelation {
  readonly #mark: (line: string) => void
  readonly #served: (request: ServedRequest) => void
  /** Requests without a slot so far, with the slot if corral chose it, and the time when they ended. */
  readonly #waiting = new OpenSet<{ id: string; slot: number | undefined; ended?: number }>()
  #timer: NodeJS.Timeout | undefined

  constructor(mark: (line: string) => void, served: (request: ServedRequest) => void) {
    this.#mark = mark
    this.#served = served
  }

  /** Marks a request that is about to be sent. Returns a function to call when it has ended. */
  begin(id: string, slot?: number): () => void {
    const waiting: { id: string; slot: number | undefined; ended?: number } = { id, slot }
    this.#waiting.add(waiting)
    this.#mark(`request ${id} begins${slot === undefined ? '' : ` in slot ${slot}`}`)
    return () => {
      this.#mark(`request ${id} ends`)
      if (!this.#waiting.has(waiting)) return
      // Short answers arrive before the lines about them.
      waiting.ended = performance.now()
      this.#timer ??= setTimeout(() => this.#forget(), MAX_OUTPUT_LAG_MS).unref()
    }
  }

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

  /** Forgets requests that can have no further lines. One timer serves all of them. */
  #forget(): void {
    this.#timer = undefined
    const before = performance.now() - MAX_OUTPUT_LAG_MS
    let isLeft = false
    for (const waiting of this.#waiting) {
      if (waiting.ended === undefined) continue
      if (waiting.ended <= before) this.#waiting.delete(waiting)
      else isLeft = true
    }
    if (isLeft) this.#timer = setTimeout(() => this.#forget(), MAX_OUTPUT_LAG_MS).unref()
  }
}
