import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { discardFolder, removeEmptyFolders } from './model-folders.ts'

/** Who uses the folders of revisions: one that no manifest names any longer stays while somebody does. */
export class RevisionFolders {
  readonly #models: string
  readonly #log: FastifyBaseLogger
  readonly #inTurn: (key: string, work: () => Promise<void>) => void
  /** How many use each, by its path. */
  readonly #holds = new Map<string, number>()
  /** Those that no manifest names but somebody holds, and their models' keys. */
  readonly #retired = new Map<string, string>()

  /** @param inTurn does work on a model's folder after the changes of that model that are going on */
  constructor(models: string, log: FastifyBaseLogger, inTurn: (key: string, work: () => Promise<void>) => void) {
    this.#models = models
    this.#log = log
    this.#inTurn = inTurn
  }

  /** Keeps a folder until the function that is given back is called. */
  hold(directory: string): () => void {
    this.#holds.set(directory, (this.#holds.get(directory) ?? 0) + 1)
    let held = true
    return () => {
      if (!held) return
      held = false
      const rest = this.#holds.get(directory)! - 1
      if (rest > 0) this.#holds.set(directory, rest)
      else this.#letGo(directory)
    }
  }

  #letGo(directory: string): void {
    this.#holds.delete(directory)
    const key = this.#retired.get(directory)
    if (key === undefined) return
    this.#retired.delete(directory)
    // An import may be about to use the model's folder, which this could find empty and remove.
    this.#inTurn(key, () => this.retire(key, directory))
  }

  /** Deletes a folder that no manifest names any longer, now or when nobody holds it. */
  async retire(key: string, directory: string): Promise<void> {
    if (this.#holds.has(directory)) {
      this.#retired.set(directory, key)
      return
    }
    try {
      await discardFolder(this.#models, directory)
      await removeEmptyFolders(join(directory, '..'))
    } catch (error) {
      // The model is gone all the same; only its space is not free yet.
      this.#log.warn(error, `The files in ${directory} cannot be deleted now; corral tries again at its next start`)
    }
  }
}
