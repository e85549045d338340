import { stat } from 'node:fs/promises'
import { errorMessage } from '../errors.ts'

/**
 * Polls a configuration file and calls back when its content changed and stayed the same between two polls, because
 * editors write a file in several steps or replace it. A deleted file is reported once.
 */
export class ConfigWatch {
  readonly #file: () => string | undefined
  readonly #changed: () => void
  readonly #interval: number
  #timer: NodeJS.Timeout | undefined
  #told: string | undefined
  #seen: string | undefined

  /**
   * @param file returns the path of the file; nothing is watched if it is undefined
   * @param interval milliseconds between two polls, each of which wakes an idle server
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
    // The first version has already been read.
    this.#told ??= mark
    if (!isStill || mark === this.#told) return
    this.#told = mark
    this.#changed()
  }
}

/** A value that changes when the file does. */
async function markOf(path: string): Promise<string> {
  try {
    const { ino, size, mtimeNs, mode } = await stat(path, { bigint: true })
    return `${ino}:${size}:${mtimeNs}:${mode}`
  } catch (error) {
    return errorMessage(error)
  }
}
