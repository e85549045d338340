import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import { errorMessage } from '../core/errors.ts'
import { namesIn } from '../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../core/system/json-file.ts'
import { failure, misuse } from './command-failure.ts'

const SavedChatSchema = Type.Object({
  version: Type.Literal(1),
  saved_at: Type.String({ description: 'ISO 8601 UTC' }),
  model: Type.String(),
  system: Type.Optional(Type.String()),
  options: Type.Record(Type.String(), Type.Unknown()),
  format: Type.Optional(Type.Unknown()),
  think: Type.Optional(Type.Boolean()),
  turns: Type.Array(
    Type.Object({ prompt: Type.String(), images: Type.Optional(Type.Array(Type.String())), answer: Type.String() })
  )
})
export type SavedChat = Static<typeof SavedChatSchema>

const NAME = /^[\p{L}\p{N}][\p{L}\p{N}._-]{0,63}$/u

/** Conversations in a folder that only its owner can read. */
export class SavedChats {
  readonly #folder: string

  constructor(folder: string) {
    this.#folder = folder
  }

  /** In alphabetical order. */
  async names(): Promise<string[]> {
    const files = await namesIn(this.#folder).catch(error => {
      throw diskFailure('The saved conversations cannot be listed', error)
    })
    const names = files.filter(file => file.endsWith('.json')).map(file => file.slice(0, -'.json'.length))
    return names.filter(name => NAME.test(name)).sort((a, b) => a.localeCompare(b))
  }

  /** Undefined if it does not exist. @throws CommandFailure */
  async read(name: string): Promise<SavedChat | undefined> {
    const path = this.#path(name)
    const read = await readJsonFile(path, SavedChatSchema).catch(error => {
      throw diskFailure(`The conversation ${name} cannot be read`, error)
    })
    if (read?.fault !== undefined) {
      throw failure(`The conversation ${name} cannot be read (${path}): ${read.fault}.`)
    }
    return read?.value
  }

  async write(name: string, chat: Omit<SavedChat, 'version' | 'saved_at'>): Promise<void> {
    const path = this.#path(name)
    try {
      await mkdir(this.#folder, { recursive: true, mode: 0o700 })
      const saved: SavedChat = { version: 1, saved_at: new Date().toISOString(), ...chat }
      await writeJsonFile(path, saved, { mode: 0o600, pretty: true })
    } catch (error) {
      throw diskFailure(`The conversation cannot be saved as ${name}`, error)
    }
  }

  #path(name: string): string {
    if (NAME.test(name)) return join(this.#folder, `${name}.json`)
    throw misuse(
      'The name of a conversation is invalid. Use at most 64 letters, digits, ".", "_" and "-", starting with a letter or digit.'
    )
  }
}

const diskFailure = (what: string, error: unknown) => failure(`${what}: ${errorMessage(error)}.`, error)
