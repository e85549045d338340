import temml from 'temml'

/** Shows a formula as MathML in an element; one that cannot be read stays as it was written. */
export function showFormula(element: HTMLElement, text: string, isDisplayed: boolean): void {
  try {
    const shown = document.createElement('span')
    temml.render(text, shown, { displayMode: isDisplayed, throwOnError: true, trust: false, maxExpand: 1000 })
    element.replaceChildren(shown)
  } catch {
    element.textContent = text
  }
}
