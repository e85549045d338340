import type { Delta } from '../../../../core/contracts/engines.ts'
import type { CapturedChoice } from '../../../../core/contracts/hooks.ts'

/** Maximum characters of a request, and of an answer. */
const MAX_LENGTH = 2 ** 20
/** The start of a text that is a file: a data URL, or base64. */
const DATA = /^(?:data:[^,]{0,200},|[A-Za-z0-9+/_-]{4096})/

/** Copies a request. Files inside texts, such as images, are replaced by their length. A longer rest is cut off. */
export function shortCopy(value: unknown): { copy: unknown; isCut: boolean } {
  let isCut = false
  const text = JSON.stringify(value, (_, field: unknown) => {
    if (typeof field !== 'string' || field.length <= 4096 || !DATA.test(field)) return field
    isCut = true
    return `(${field.length} characters of a file)`
  })
  if (text.length > MAX_LENGTH) return { copy: `${text.slice(0, MAX_LENGTH)}…`, isCut: true }
  return { copy: JSON.parse(text), isCut }
}

/** Collects the text of one answer piece by piece. */
export class AnswerText {
  readonly #choices: CapturedChoice[] = []
  #left = MAX_LENGTH
  /** Whether it was longer than the limit. */
  isCut = false

  add({ choice = 0, content, thinking, toolCalls, finish }: Delta): void {
    if (this.#left <= 0 || choice >= 1000) {
      this.isCut ||= Boolean(content || thinking || toolCalls)
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
      this.#left -= text.length
    }
    if (finish) into.finish = finish
    this.#left -= (content?.length ?? 0) + (thinking?.length ?? 0)
  }

  /** Only the last of several attempts is recorded. */
  reset(): void {
    this.#choices.length = 0
  }

  choices(): CapturedChoice[] {
    return Array.from(this.#choices, each => each ?? {})
  }
}
