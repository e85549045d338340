import temml from 'temml'

/** Maximum characters of a formula, and milliseconds spent on formulas per task. */
const MAX_LENGTH = 4000
const MAX_TASK_MS = 8

const waiting: (() => unknown)[] = []

/** Renders a formula as MathML in an element when its turn comes. An invalid formula is shown as written. */
export function showFormula(element: HTMLElement, text: string, isDisplayed: boolean): void {
  waiting.push(() => element.isConnected && element.replaceChildren(formulaOf(text, isDisplayed)))
  if (waiting.length === 1) setTimeout(work)
}

/** A formula as MathML, or as written if it is invalid or too long. */
export function formulaOf(text: string, isDisplayed: boolean): Node | string {
  const shown = document.createElement('span')
  try {
    if (text.length > MAX_LENGTH) return text
    temml.render(text, shown, { displayMode: isDisplayed, throwOnError: true, trust: false, maxExpand: 1000 })
    return shown
  } catch {
    return text
  }
}

function work(): void {
  const end = performance.now() + MAX_TASK_MS
  let count = 0
  while (count < waiting.length && performance.now() < end) waiting[count++]!()
  waiting.splice(0, count)
  if (waiting.length > 0) setTimeout(work)
}
