import { computed, signal } from '@preact/signals'
import { notify } from '../parts/controls.tsx'
import { speechModel } from '../state/server-state.ts'

const hasVoices = 'speechSynthesis' in globalThis

/** What reads aloud, if anything: a model, or else the voices of the browser. */
export const reader = computed(() => (speechModel('speak').name ? 'model' : hasVoices && 'browser'))

/** Id of the message that is being read aloud, or empty. */
export const beingRead = signal('')

let playing = new AbortController()

/** Stops reading this message, if it is being read. */
export function stopReading(id: string): void {
  if (beingRead.peek() !== id) return
  beingRead.value = ''
  playing.abort()
  if (hasVoices) speechSynthesis.cancel()
}

/** Reads a message aloud without code and formulas, or stops reading it. @param shown the element of the message */
export function readAloud(id: string, shown: HTMLElement | null): void {
  const isStop = beingRead.peek() === id
  stopReading(beingRead.peek())
  const text = shown?.querySelector(':scope > .markdown, .question-text')
  const parts = text ? partsOf(text).filter(part => part !== '') : []
  if (isStop || parts.length === 0) return
  beingRead.value = id
  playing = new AbortController()
  const { signal } = playing
  const ended = () => {
    if (!signal.aborted) beingRead.value = ''
  }
  if (reader.peek() === 'model') {
    void import('./voice-player.ts')
      .then(({ play }) => play(parts, signal))
      .catch(error => signal.aborted || notify(error.message, true))
      .finally(ended)
    return
  }
  // Some voices stop in the middle of long texts, so each part is spoken separately.
  for (const [at, part] of parts.entries()) {
    const spoken = new SpeechSynthesisUtterance(part)
    if (at === parts.length - 1) spoken.onend = ended
    speechSynthesis.speak(spoken)
  }
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
