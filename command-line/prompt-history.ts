import { appendFile, mkdir, readFile, stat } from 'node:fs/promises'
import { dirname } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import { whenMissing } from '../core/errors.ts'
import { parseAnyJson } from '../core/system/json-object.ts'
import { withShortLock } from '../core/system/short-lock.ts'

/** Number of prompts available through the arrow keys. */
const MAX_PROMPTS = 1000
/** A larger file is truncated to the newest half of its prompts. */
const MAX_BYTES = 2 ** 20
/** Longer prompts are kept only for this chat. */
const MAX_STORED_LENGTH = 2 ** 17

/** Prompts of this chat and earlier ones, a JSON string per line. Several chats can append to the file concurrently. */
export class PromptHistory {
  /** Newest first. */
  readonly prompts: string[] = []
  readonly #file: string

  constructor(file: string) {
    this.#file = file
  }

  async open(): Promise<void> {
    this.prompts.push(...(await readPrompts(this.#file)).reverse().slice(0, MAX_PROMPTS))
  }

  /**
   * Adds a prompt, unless it starts with a blank or repeats the last one.
   * @param keep whether to write it to the file
   * @throws file system errors, after the prompt was added to this chat
   */
  async add(prompt: string, keep: boolean): Promise<void> {
    if (/^\s/.test(prompt) || prompt === '' || prompt === this.prompts[0]) return
    this.prompts.unshift(prompt)
    this.prompts.length = Math.min(this.prompts.length, MAX_PROMPTS)
    if (!keep || prompt.length > MAX_STORED_LENGTH) return
    await mkdir(dirname(this.#file), { recursive: true })
    await withShortLock(this.#file, async () => {
      await appendFile(this.#file, `${JSON.stringify(prompt)}\n`, { mode: 0o600 })
      if ((await stat(this.#file)).size > MAX_BYTES) await this.#shorten()
    })
  }

  async #shorten(): Promise<void> {
    const lines = (await readPrompts(this.#file)).map(prompt => `${JSON.stringify(prompt)}\n`).slice(-MAX_PROMPTS)
    let size = lines.reduce((sum, line) => sum + Buffer.byteLength(line), 0)
    while (size > MAX_BYTES / 2) size -= Buffer.byteLength(lines.shift()!)
    await writeFileAtomic(this.#file, lines.join(''), { mode: 0o600 })
  }
}

/** Oldest first. Lines that are damaged or not from a chat are skipped. */
async function readPrompts(file: string): Promise<string[]> {
  const text = (await readFile(file, 'utf8').catch(whenMissing)) ?? ''
  return text
    .split('\n')
    .map(parseAnyJson)
    .filter(prompt => typeof prompt === 'string')
}
