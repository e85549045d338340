import { stat } from 'node:fs/promises'
import { errorMessage } from '../errors.ts'

/**
 * Looks at a configuration file at intervals, and tells when it is another one and has not changed between two looks:
 * editors write a file in several steps, or put a new one in its place. One that has gone is told of once.
 */
export class ConfigWatch {
  readonly #file: () => string | undefined
  readonly #changed: () => void
  readonly #interval: number
  #timer: NodeJS.Timeout | undefined
  #told: string | undefined
  #seen: string | undefined

  /**
   * @param file gives the path of the file; none is watched where there is none
   * @param interval milliseconds between two looks: each wakes a server that rests
   */
  constructor(file: () => string | undefined, changed: () => void, interval: number) {
    this.#file = file
    this.#changed = changed
    this.#interval = interval
  }

  set(isOn: boolean): void {
    if (isOn === (this.#timer !== undefined)) return
    clearInterval(this.#timer)
    this.#timer = undefined
    this.#told = undefined
    if (!isOn) return
    this.#timer = setInterval(() => void this.#look(), this.#interval).unref()
    void this.#look()
  }

  async #look(): Promise<void> {
    const path = this.#file()
    if (path === undefined) return
    const mark = await markOf(path)
    if (!this.#timer) return
    const isStill = mark === this.#seen
    this.#seen = mark
    // What is there at the beginning has been read.
    this.#told ??= mark
    if (!isStill || mark === this.#told) return
    this.#told = mark
    this.#changed()
  }
}

/** What changes when the file does. */
async function markOf(path: string): Promise<string> {
  try {
    const { ino, size, mtimeNs, mode } = await stat(path, { bigint: true })
    return `${ino}:${size}:${mtimeNs}:${mode}`
  } catch (error) {
    return errorMessage(error)
  }
}
