import type { FastifyBaseLogger } from 'fastify'
import { Type } from 'typebox'
import { errorMessage } from '../../../core/errors.ts'
import {
  formatModelName,
  type ModelName,
  modelKey,
  parseModelName,
  parseRequestedName,
  type RequestedName
} from '../../../core/models/model-name.ts'
import { readJsonFileSync, writeJsonFile } from '../../../core/system/json-file.ts'

const FileSchema = Type.Object({
  version: Type.Literal(1),
  /** The variant for each name with its tag, the latest last. */
  names: Type.Record(Type.String(), Type.String())
})

const nameKey = ({ name, variant }: RequestedName) =>
  formatModelName({ name, variant: variant ?? 'latest' }).toLowerCase()

/** The names of Ollama's library under which models were pulled. Listed only while their variant exists. */
export class PulledNames {
  readonly #path: string
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  /** The name as requested, and the variant, by the name in lower case. */
  #names = new Map<string, { asked: string; model: string }>()
  #listed = new Map<string, string[]>()
  #writing = Promise.resolve()

  /** Reads the file. If it is unusable, logs a warning and replaces it with the next name. */
  constructor(path: string, log: Pick<FastifyBaseLogger, 'warn'>) {
    this.#path = path
    this.#log = log
    const { value, fault } = readJsonFileSync(path, FileSchema) ?? { value: { names: {} } }
    if (!value)
      log.warn(`${path} cannot be used: ${fault}. Models are not listed under the names that they were pulled by.`)
    for (const [asked, model] of Object.entries(value?.names ?? {})) {
      try {
        parseRequestedName(asked)
        parseModelName(model)
        this.#names.set(asked.toLowerCase(), { asked, model })
      } catch (error) {
        log.warn(`A name in ${path} is left out: ${errorMessage(error)}`)
      }
    }
    this.#sort()
  }

  meaning(name: RequestedName): ModelName | undefined {
    const found = name.owner === undefined ? this.#names.get(nameKey(name)) : undefined
    return found && parseModelName(found.model)
  }

  listed(): ReadonlyMap<string, readonly string[]> {
    return this.#listed
  }

  /** Records a name. If the disk is full, only the name is lost at the next start. */
  async add(asked: string, { name, label }: { name: ModelName; label: string }): Promise<void> {
    const key = asked.toLowerCase()
    this.#names.delete(key)
    this.#names.set(key, { asked, model: formatModelName({ ...name, variant: label }) })
    this.#sort()
    const names = Object.fromEntries([...this.#names.values()].map(({ asked, model }) => [asked, model]))
    this.#writing = this.#writing
      .then(() => writeJsonFile(this.#path, { version: 1, names }))
      .catch(error => this.#log.warn(`${this.#path} cannot be written: ${errorMessage(error)}`))
    await this.#writing
  }

  #sort(): void {
    this.#listed = new Map()
    for (const { asked, model } of this.#names.values()) {
      const { owner, name, variant = 'latest' } = parseModelName(model)
      const key = `${modelKey({ owner, name })}:${variant.toLowerCase()}`
      this.#listed.set(key, [...(this.#listed.get(key) ?? []), asked])
    }
  }
}
