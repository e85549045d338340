import type { FileProgress, OnPullEvent, PullPlan } from '../../../core/contracts/downloads.ts'

/** Milliseconds between two events of one file: fewer than ten a second. */
const EVENT_INTERVAL = 125
/** Milliseconds over which the speed is averaged. */
const SPEED_WINDOW = 5_000

interface FileState {
  path: string
  completed: number
  total: number | undefined
}

/** The progress of a pull's files: collects what the transfer reports, and passes it to listeners at a limited rate. */
export class PullProgress {
  #files: FileState[]
  readonly #listeners = new Set<OnPullEvent>()
  /** Files that changed since the last event. */
  readonly #changed = new Set<FileState>()
  #timer: NodeJS.Timeout | undefined
  #lastEvent = Number.NEGATIVE_INFINITY
  /** Files that this run has reported: what was on disk before does not count as speed. */
  readonly #reported = new Set<FileState>()
  #received = 0
  #samples: { at: number; received: number }[] = []

  /** @param completed bytes of each file that are on disk */
  constructor(plan: PullPlan, completed: readonly number[] = []) {
    this.#files = plan.files.map(({ path, size }, index) => ({ path, completed: completed[index] ?? 0, total: size }))
  }

  /** The files whose size is known. */
  files(): FileProgress[] {
    return this.#files.flatMap(file => (file.total === undefined ? [] : [snapshot(file)]))
  }

  /** Bytes received since this object was created. */
  get received(): number {
    return this.#received
  }

  /** Bytes per second in the last seconds. */
  speed(now = performance.now()): number {
    const first = this.#samples.find(({ at }) => now - at <= SPEED_WINDOW)
    if (!first || now - first.at < 1) return 0
    return Math.round(((this.#received - first.received) * 1000) / Math.max(now - first.at, EVENT_INTERVAL))
  }

  /** A run begins or has ended: resets the speed. */
  resetSpeed(): void {
    this.#reported.clear()
    this.#samples = []
  }

  /** Progress of a file from the transfer. */
  report(index: number, completed: number, total: number): void {
    const file = this.#files[index]!
    const now = performance.now()
    if (this.#reported.has(file)) this.#received += Math.max(0, completed - file.completed)
    this.#reported.add(file)
    this.#samples.push({ at: now, received: this.#received })
    while (this.#samples.length > 1 && now - this.#samples[0]!.at > SPEED_WINDOW) this.#samples.shift()
    if (file.completed === completed && file.total === total) return
    file.completed = completed
    file.total = total
    this.#changed.add(file)
    this.#schedule()
  }

  /** All files are complete. */
  finish(sizes: number[]): void {
    this.#files.forEach((file, index) => {
      const size = sizes[index]!
      if (file.completed !== size || file.total !== size) this.#changed.add(file)
      file.completed = size
      file.total = size
    })
    this.resetSpeed()
    this.#emit()
  }

  /** Reports all files, and then what changes. @returns stops it, after a last report */
  listen(listener: OnPullEvent): () => void {
    this.#emit()
    this.#listeners.add(listener)
    const files = this.files()
    if (files.length > 0) listener(files)
    return () => {
      this.#emit()
      this.#listeners.delete(listener)
    }
  }

  #schedule(): void {
    this.#timer ??= setTimeout(() => this.#emit(), Math.max(0, this.#lastEvent + EVENT_INTERVAL - performance.now()))
  }

  #emit(): void {
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
