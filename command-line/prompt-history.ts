import { appendFile, mkdir, readFile, stat } from 'node:fs/promises'
import { dirname } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import { isSystemError } from '../core/errors.ts'
import { withShortLock } from '../core/system/short-lock.ts'

/** How many prompts the arrow keys go back. */
const MAX_COUNT = 1000
/** The file is cut to the newest half of its prompts when it is larger (bytes). */
const MAX_BYTES = 2 ** 20
/** A longer prompt is kept for this chat only (characters). */
const MAX_LENGTH = 2 ** 17

/**
 * The prompts of this chat and of earlier ones, in a file that only its owner can read: a JSON string on each line.
 * Chats that run side by side each add theirs.
 */
export class PromptHistory {
  /** The newest first. */
  readonly prompts: string[] = []
  readonly #file: string

  constructor(file: string) {
    this.#file = file
  }

  /** Reads what earlier chats left. @throws as the disk does */
  async open(): Promise<void> {
    this.prompts.push(...(await readPrompts(this.#file)).reverse().slice(0, MAX_COUNT))
  }

  /**
   * Adds a prompt, unless it begins with a blank or is the last one again.
   * @param keep whether it is written to the file
   * @throws as the disk does; this chat has it nevertheless
   */
  async add(prompt: string, keep: boolean): Promise<void> {
    if (/^\s/.test(prompt) || prompt === '' || prompt === this.prompts[0]) return
    this.prompts.unshift(prompt)
    this.prompts.length = Math.min(this.prompts.length, MAX_COUNT)
    if (!keep || prompt.length > MAX_LENGTH) return
    await mkdir(dirname(this.#file), { recursive: true })
    await withShortLock(this.#file, async () => {
      await appendFile(this.#file, `${JSON.stringify(prompt)}\n`, { mode: 0o600 })
      if ((await stat(this.#file)).size > MAX_BYTES) await this.#shorten()
    })
  }

  async #shorten(): Promise<void> {
    const lines = (await readPrompts(this.#file)).map(prompt => `${JSON.stringify(prompt)}\n`).slice(-MAX_COUNT)
    let size = lines.reduce((sum, line) => sum + Buffer.byteLength(line), 0)
    while (size > MAX_BYTES / 2) size -= Buffer.byteLength(lines.shift()!)
    await writeFileAtomic(this.#file, lines.join(''), { mode: 0o600 })
  }
}

/** The oldest first. A line that no chat wrote, or that a crash cut, is left out. */
async function readPrompts(file: string): Promise<string[]> {
  let text: string
  try {
    text = await readFile(file, 'utf8')
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return []
    throw error
  }
  return text.split('\n').flatMap(line => {
    try {
      const prompt: unknown = JSON.parse(line)
      return typeof prompt === 'string' ? [prompt] : []
    } catch {
      return []
    }
  })
}
