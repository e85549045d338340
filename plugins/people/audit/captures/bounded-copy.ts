/** How a text begins that is the content of a file: an address with the data in it, or base64. */
const DATA = /^(?:data:[^,]{0,200},|[A-Za-z0-9+/_-]{4096})/

/** What may still be copied, in characters; it counts down. */
export interface CopyBudget {
  left: number
  /** Whether something was left out. */
  cut: boolean
}

/**
 * Copies a JSON value as far as the budget goes, so that what it costs depends on what is kept and not on what there is.
 * Files in texts, such as images, are left out and counted.
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
