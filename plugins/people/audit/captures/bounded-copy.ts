import type { Delta } from '../../../../core/contracts/engines.ts'
import type { CapturedChoice } from '../../../../core/contracts/hooks.ts'

/** The start of a text that is a file: a data URL, or base64. */
const DATA = /^(?:data:[^,]{0,200},|[A-Za-z0-9+/_-]{4096})/

/** How many more characters may be copied. */
export interface CopyBudget {
  left: number
  cut: boolean
}

/**
 * Copies a JSON value within the budget, so that the cost depends on the copied part and not on the size of the value.
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

/** Collects the text of one answer piece by piece, within the budget. */
export class AnswerText {
  readonly #choices: CapturedChoice[] = []
  readonly #budget: CopyBudget

  constructor(budget: CopyBudget) {
    this.#budget = budget
  }

  add({ choice = 0, content, thinking, toolCalls, finish, hosted }: Delta): void {
    const budget = this.#budget
    if (budget.left <= 0 || choice >= 1000) {
      budget.cut ||= Boolean(content || thinking || toolCalls)
      return
    }
    this.#choices[choice] ??= {}
    const into = this.#choices[choice]
    if (content) into.content = (into.content ?? '') + content
    if (thinking) into.thinking = (into.thinking ?? '') + thinking
    for (const { index, name, arguments: text } of toolCalls ?? []) {
      into.toolCalls ??= []
      into.toolCalls[index] ??= { name: '', arguments: '' }
      const call = into.toolCalls[index]
      call.name += name ?? ''
      call.arguments += text
      budget.left -= text.length
    }
    if (hosted?.type === 'result') {
      const { server, tool } = hosted.call
      into.toolResults ??= []
      into.toolResults.push({ server, tool, output: boundedText(hosted.output, budget) })
    }
    if (finish) into.finish = finish
    budget.left -= (content?.length ?? 0) + (thinking?.length ?? 0)
  }

  /** Only the last of several attempts is recorded. */
  reset(): void {
    this.#choices.length = 0
  }

  choices(): CapturedChoice[] {
    return Array.from(this.#choices, each => each ?? {})
  }
}
