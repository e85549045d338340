import type { FileProgress, OnPullEvent, PullPlan } from '../../../core/contracts/downloads.ts'

/** Between two events of one file lie this many milliseconds, so that no second has more than ten. */
const EVENT_INTERVAL = 125
/** Speed is the mean of so many milliseconds. */
const SPEED_WINDOW = 5_000

interface FileState {
  path: string
  completed: number
  total: number | undefined
}

/** How far a pull's files are: collects what the transfer reports, and tells listeners at a bearable rate. */
export class PullProgress {
  #files: FileState[]
  readonly #listeners = new Set<OnPullEvent>()
  /** Files that changed since the last event. */
  readonly #changed = new Set<FileState>()
  #timer: NodeJS.Timeout | undefined
  #lastEvent = Number.NEGATIVE_INFINITY
  /** Files of which this run has heard: what was on disk before is no speed. */
  readonly #heard = new Set<FileState>()
  #received = 0
  #samples: { at: number; received: number }[] = []

  /** @param completed bytes of each file that are on disk */
  constructor(plan: PullPlan, completed: readonly number[] = []) {
    this.#files = plan.files.map(({ path, size }, index) => ({ path, completed: completed[index] ?? 0, total: size }))
  }

  /** The files of which is known how large they are. */
  files(): FileProgress[] {
    return this.#files.flatMap(file => (file.total === undefined ? [] : [snapshot(file)]))
  }

  /** Bytes that came since this was made. */
  get received(): number {
    return this.#received
  }

  /** Bytes a second in the last seconds. */
  speed(now = performance.now()): number {
    const first = this.#samples.find(({ at }) => now - at <= SPEED_WINDOW)
    if (!first || now - first.at < 1) return 0
    return Math.round(((this.#received - first.received) * 1000) / Math.max(now - first.at, EVENT_INTERVAL))
  }

  /** A run begins or has ended: nothing is received for now. */
  rest(): void {
    this.#heard.clear()
    this.#samples = []
  }

  /** What the transfer says of a file. */
  report(index: number, completed: number, total: number): void {
    const file = this.#files[index]!
    const now = performance.now()
    if (this.#heard.has(file)) this.#received += Math.max(0, completed - file.completed)
    this.#heard.add(file)
    this.#samples.push({ at: now, received: this.#received })
    while (this.#samples.length > 1 && now - this.#samples[0]!.at > SPEED_WINDOW) this.#samples.shift()
    if (file.completed === completed && file.total === total) return
    file.completed = completed
    file.total = total
    this.#changed.add(file)
    this.#schedule()
  }

  /** All files are whole. */
  finish(sizes: number[]): void {
    this.#files.forEach((file, index) => {
      const size = sizes[index]!
      if (file.completed !== size || file.total !== size) this.#changed.add(file)
      file.completed = size
      file.total = size
    })
    this.rest()
    this.#tell()
  }

  /** Tells how far all files are, and then what changes. @returns ends it; what is not told yet is told before */
  listen(listener: OnPullEvent): () => void {
    this.#tell()
    this.#listeners.add(listener)
    const files = this.files()
    if (files.length > 0) listener(files)
    return () => {
      this.#tell()
      this.#listeners.delete(listener)
    }
  }

  #schedule(): void {
    this.#timer ??= setTimeout(() => this.#tell(), Math.max(0, this.#lastEvent + EVENT_INTERVAL - performance.now()))
  }

  #tell(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#changed.size === 0) return
    this.#lastEvent = performance.now()
    const events = [...this.#changed].flatMap(file => (file.total === undefined ? [] : [snapshot(file)]))
    this.#changed.clear()
    if (events.length > 0) for (const listener of this.#listeners) listener(events)
  }
}

function snapshot({ path, completed, total }: FileState): FileProgress {
  return { path, completed, total: total! }
}
