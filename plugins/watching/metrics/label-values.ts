/** Label for all names beyond the limits. */
const OTHER = 'other'

/** Maximum number of models with their own label: each has hundreds of series. */
const MAX_MODELS = 100
/** Maximum number of pairs of model and key with their own label. */
const MAX_PAIRS = 1000

/**
 * Limits the number of series. The first used names get their own label until the restart. All further names share a
 * label.
 */
export class LabelValues {
  readonly #models = new Set<string>()
  readonly #pairs = new Map<string, Set<string>>()
  #count = 0

  model(name: string): string {
    if (this.#models.has(name)) return name
    if (this.#models.size >= MAX_MODELS) return OTHER
    this.#models.add(name)
    return name
  }

  /**
   * The label of an existing key used with a model.
   * @param model the result of `model`, or empty
   */
  key(name: string, model: string): string {
    const keys = this.#pairs.get(model) ?? new Set()
    if (keys.has(name)) return name
    if (this.#count >= MAX_PAIRS) return OTHER
    this.#pairs.set(model, keys.add(name))
    this.#count++
    return name
  }
}
