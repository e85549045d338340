const KEPT_LINES = 500
const KEPT_LENGTH = 2000
const KEPT_CHARACTERS = 256 * 1024

/** The last lines of a log, oldest first: at most 500, none longer than 2000 characters, 256 Ki characters in all. */
export interface LogTail {
  push(text: string): void
  all(): string[]
  /** From here on a new chapter begins, such as serving after loading. */
  mark(): void
  sinceMark(): string[]
  /** How many earlier lines are not kept any more. */
  readonly dropped: number
  /** Of all lines kept. */
  readonly characters: number
}

export function createLogTail(): LogTail {
  const lines: string[] = []
  let since = 0
  let dropped = 0
  let characters = 0
  return {
    push(text) {
      const line = text.length > KEPT_LENGTH ? `${text.slice(0, KEPT_LENGTH)}…` : text
      lines.push(line)
      characters += line.length
      since++
      while (lines.length > KEPT_LINES || characters > KEPT_CHARACTERS) {
        characters -= lines.shift()!.length
        dropped++
      }
    },
    all: () => [...lines],
    mark: () => {
      since = 0
    },
    sinceMark: () => (since === 0 ? [] : lines.slice(-since)),
    get dropped() {
      return dropped
    },
    get characters() {
      return characters
    }
  }
}
