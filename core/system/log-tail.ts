const KEPT_LINES = 500
const KEPT_LENGTH = 2000
const KEPT_CHARACTERS = 256 * 1024

/** Stores the last lines of a log, oldest first, within limits for lines and characters. */
export class LogTail {
  readonly #lines: string[] = []
  #sinceMark = 0
  dropped = 0
  characters = 0

  push(text: string): void {
    const line = text.length > KEPT_LENGTH ? `${text.slice(0, KEPT_LENGTH)}…` : text
    this.#lines.push(line)
    this.characters += line.length
    this.#sinceMark++
    while (this.#lines.length > KEPT_LINES || this.characters > KEPT_CHARACTERS) {
      this.characters -= this.#lines.shift()!.length
      this.dropped++
    }
  }

  all(): string[] {
    return [...this.#lines]
  }

  /** Number of lines so far. */
  get count(): number {
    return this.dropped + this.#lines.length
  }

  /** The stored lines after the first `count`. */
  after(count: number): string[] {
    return this.#lines.slice(Math.max(0, count - this.dropped))
  }

  /** Starts a new section, such as serving after loading. */
  mark(): void {
    this.#sinceMark = 0
  }

  sinceMark(): string[] {
    return this.#sinceMark === 0 ? [] : this.#lines.slice(-this.#sinceMark)
  }
}
