import type { Delta } from '../../../../core/contracts/engines.ts'
import type { CapturedChoice } from '../../../../core/contracts/hooks.ts'
import type { CopyBudget } from './bounded-copy.ts'

/** Collects the text of one answer piece by piece, within the budget. */
export class AnswerText {
  readonly #choices: CapturedChoice[] = []
  readonly #budget: CopyBudget

  constructor(budget: CopyBudget) {
    this.#budget = budget
  }

  add({ choice = 0, content, thinking, toolCalls, finish }: Delta): void {
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
