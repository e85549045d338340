/** How text starts that is a file: a data URL, or base64. */
const DATA = /^(?:data:[^,]{0,200},|[A-Za-z0-9+/_-]{4096})/

/** How many more characters may be copied. */
export interface CopyBudget {
  left: number
  /** Whether anything was left out. */
  cut: boolean
}

/**
 * Copies a JSON value within the budget, so that the cost depends on what is copied and not on the size of the value.
 * Files inside texts, such as images, are replaced by their length.
 */
export function boundedCopy(value: unknown, budget: CopyBudget): unknown {
  if (typeof value === 'string') return boundedText(value, budget)
  budget.left -= 8
  if (typeof value !== 'object' || value === null) return value
  if (Array.isArray(value)) {
    const copy: unknown[] = []
    for (const item of value) {
      if (isSpent(budget)) break
      copy.push(boundedCopy(item, budget))
    }
    return copy
  }
  const copy: Record<string, unknown> = Object.create(null)
  for (const key in value) {
    if (isSpent(budget)) break
    copy[boundedText(key, budget)] = boundedCopy((value as Record<string, unknown>)[key], budget)
  }
  return copy
}

function boundedText(text: string, budget: CopyBudget): string {
  if (text.length > 4096 && DATA.test(text)) {
    budget.cut = true
    return `(${text.length} characters of a file)`
  }
  const kept = text.slice(0, Math.max(0, budget.left))
  budget.left -= kept.length
  if (kept.length === text.length) return kept
  budget.cut = true
  return `${kept}…`
}

function isSpent(budget: CopyBudget): boolean {
  if (budget.left > 0) return false
  budget.cut = true
  return true
}
