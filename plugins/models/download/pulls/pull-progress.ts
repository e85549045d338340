import type { FileProgress, OnPullEvent, PullPlan } from '../../../../core/contracts/downloads.ts'

const SPEED_WINDOW_MS = 5_000
/** A shorter time says little about the speed. */
const MIN_SPEED_MS = 125

type FileState = Omit<FileProgress, 'total'> & { total: number | undefined }

/** A pull's progress, as the transfer reports it at a limited rate. */
export class PullProgress {
  readonly #files: FileState[]
  readonly #listeners = new Set<OnPullEvent>()
  /** Files that this run has reported. Bytes from before the run do not count towards the speed. */
  readonly #reported = new Set<FileState>()
  #samples: { at: number; received: number }[] = []
  /** Bytes received since this object was created. */
  received = 0

  /** @param completed bytes of each file that are on disk */
  constructor(plan: PullPlan, completed: readonly number[] = []) {
    this.#files = plan.files.map(({ path, size }, index) => ({ path, completed: completed[index] ?? 0, total: size }))
  }

  files(): FileProgress[] {
    return this.#files.flatMap(({ total, ...file }) => (total === undefined ? [] : [{ ...file, total }]))
  }

  speed(now = performance.now()): number {
    const first = this.#samples.find(({ at }) => now - at <= SPEED_WINDOW_MS)
    if (!first || now - first.at < 1) return 0
    return Math.round(((this.received - first.received) * 1000) / Math.max(now - first.at, MIN_SPEED_MS))
  }

  resetSpeed(): void {
    this.#reported.clear()
    this.#samples = []
  }

  report(index: number, completed: number, total: number): number {
    const file = this.#files[index]!
    const grown = Math.max(0, completed - file.completed)
    const now = performance.now()
    if (this.#reported.has(file)) this.received += grown
    this.#reported.add(file)
    this.#samples.push({ at: now, received: this.received })
    while (this.#samples.length > 1 && now - this.#samples[0]!.at > SPEED_WINDOW_MS) this.#samples.shift()
    this.#change(file, completed, total)
    return grown
  }

  finish(sizes: number[]): void {
    for (const [index, file] of this.#files.entries()) this.#change(file, sizes[index]!, sizes[index]!)
    this.resetSpeed()
  }

  /** Reports all files, then changes. @returns a function that stops it */
  listen(listener: OnPullEvent): () => void {
    this.#listeners.add(listener)
    const files = this.files()
    if (files.length > 0) listener(files)
    return () => void this.#listeners.delete(listener)
  }

  #change(file: FileState, completed: number, total: number): void {
    if (file.completed === completed && file.total === total) return
    Object.assign(file, { completed, total })
    for (const listener of this.#listeners) listener([{ path: file.path, completed, total }])
  }
}
