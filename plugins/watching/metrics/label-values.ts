/** Stands for all names beyond those that are counted apart. */
export const OTHER = 'other'

/** Most models that are counted apart: each has some hundred series. */
const MAX_MODELS = 100
/** Most pairs of a model and a key that are counted apart. */
const MAX_PAIRS = 1000

/**
 * Keeps the number of series bounded, however many models and keys there are: the first ones to be used are counted by
 * their names, until the restart, and all others together.
 */
export class LabelValues {
  readonly #models = new Set<string>()
  /** Keys by model. */
  readonly #pairs = new Map<string, Set<string>>()
  #count = 0

  /** The label of a model that exists. */
  model(name: string): string {
    if (this.#models.has(name)) return name
    if (this.#models.size >= MAX_MODELS) return OTHER
    this.#models.add(name)
    return name
  }

  /**
   * The label of a key that exists, beside that of the model it was used for.
   * @param model as `model` gave it, or empty
   */
  key(name: string, model: string): string {
    let keys = this.#pairs.get(model)
    if (keys?.has(name)) return name
    if (this.#count >= MAX_PAIRS) return OTHER
    if (!keys) {
      keys = new Set()
      this.#pairs.set(model, keys)
    }
    keys.add(name)
    this.#count++
    return name
  }
}
