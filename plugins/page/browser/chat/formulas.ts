import temml from 'temml'

/** Maximum characters of a formula, and milliseconds spent on formulas per task. */
const MAX_LENGTH = 4000
const MAX_TASK_MS = 8

const waiting: (() => void)[] = []

/** Renders a formula as MathML in an element when its turn comes. An invalid formula is shown as written. */
export function showFormula(element: HTMLElement, text: string, isDisplayed: boolean): void {
  if (text.length > MAX_LENGTH) return
  waiting.push(() => {
    if (!element.isConnected) return
    try {
      const shown = document.createElement('span')
      temml.render(text, shown, { displayMode: isDisplayed, throwOnError: true, trust: false, maxExpand: 1000 })
      element.replaceChildren(shown)
    } catch {
      element.textContent = text
    }
  })
  if (waiting.length === 1) setTimeout(work)
}

function work(): void {
  const end = performance.now() + MAX_TASK_MS
  let count = 0
  while (count < waiting.length && performance.now() < end) waiting[count++]!()
  waiting.splice(0, count)
  if (waiting.length > 0) setTimeout(work)
}
