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
  /** Those that no slot has taken up, with their slots where corral chose them. */
  #waiting: { id: string; slot: number | undefined }[] = []

  constructor(mark: (line: string) => void, served: (request: ServedRequest) => void) {
    this.#mark = mark
    this.#served = served
  }

  /** A request is about to be sent. @param slot the one that corral chose for it */
  begin(id: string, slot?: number): void {
    this.#waiting.push({ id, slot })
    this.#mark(`request ${id} begins${slot === undefined ? '' : ` in slot ${slot}`}`)
  }

  end(id: string): void {
    this.#mark(`request ${id} ends`)
    const forget = () => {
      this.#waiting = this.#waiting.filter(each => each.id !== id)
    }
    // Short answers are here before the lines about them.
    if (this.#waiting.some(each => each.id === id)) setTimeout(forget, OUTPUT_LAG).unref()
  }

  /** Takes a line that the engine printed. */
  read(line: string): void {
    if (this.#waiting.length === 0) return
    const [, slot, task] = LAUNCH.exec(line) ?? []
    if (slot === undefined) return
    const chosen = this.#waiting.filter(each => each.slot === Number(slot))
    const of = chosen.length > 0 ? chosen : this.#waiting.filter(each => each.slot === undefined)
    if (of.length === 0) return
    if (of.length === 1) this.#waiting = this.#waiting.filter(each => each !== of[0])
    this.#served({ requestIds: of.map(({ id }) => id), slot: Number(slot), task: Number(task) })
  }
}
