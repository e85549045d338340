import { signal } from '@preact/signals'

export const canSpeak = 'speechSynthesis' in globalThis

/** Id of the message that is being read aloud, or empty. */
export const beingRead = signal('')

/** Reads a message aloud without code and formulas, or stops reading it. @param shown the element of the message */
export function readAloud(id: string, shown: HTMLElement | null): void {
  const isStop = beingRead.peek() === id
  speechSynthesis.cancel()
  beingRead.value = isStop ? '' : id
  if (isStop || !shown) return
  const text = shown.querySelector(':scope > .markdown, .question-text')
  // Some voices stop in the middle of long texts, so each part is spoken separately.
  const parts = text ? partsOf(text).filter(part => part !== '') : []
  for (const [at, part] of parts.entries()) {
    const spoken = new SpeechSynthesisUtterance(part)
    if (at === parts.length - 1) {
      spoken.onend = () => {
        if (beingRead.peek() === id) beingRead.value = ''
      }
    }
    speechSynthesis.speak(spoken)
  }
  if (parts.length === 0) beingRead.value = ''
}

/** The texts of a message's paragraphs, headings, lists and tables. Long answers have many of them in a group. */
function partsOf(element: Element): string[] {
  if (element.matches('.code')) return []
  const isGroup = element.matches('.markdown, .markdown :is(div, ul, ol, blockquote, table, thead, tbody)')
  if (isGroup && element.children.length > 0) return [...element.children].flatMap(partsOf)
  if (element.matches('tr')) return [[...element.children].map(cell => cell.textContent.trim()).join(', ')]
  const text = element.cloneNode(true) as Element
  for (const formula of text.querySelectorAll('.formula, .code')) formula.remove()
  return [text.textContent.trim()]
}
