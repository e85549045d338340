import { signal } from '@preact/signals'

const KINDS = { html: 'html', htm: 'html', xhtml: 'html', svg: 'svg', mermaid: 'mermaid', mmd: 'mermaid' } as const
type PreviewKind = (typeof KINDS)[keyof typeof KINDS]

/** Code of an answer that has a preview. */
export interface Previewed {
  kind: PreviewKind
  text: string
  /** False while the answer is still writing it. */
  isComplete: boolean
}

/** What the preview panel shows, if it is open. */
export const previewed = signal<Previewed | undefined>(undefined)

/** Returns which preview a code block has, if any. */
export function previewKind(language: string, text: string): PreviewKind | undefined {
  const name = language.toLowerCase()
  if (Object.hasOwn(KINDS, name)) return KINDS[name as keyof typeof KINDS]
  return (name === '' || name === 'xml') && /^\s*(<\?xml[^>]*>\s*)?<svg[\s>]/.test(text) ? 'svg' : undefined
}

/** Updates the panel while the code that it shows is being written. */
export function followPreview(next: Previewed): void {
  const shown = previewed.peek()
  if (shown && !shown.isComplete && shown.kind === next.kind && next.text.startsWith(shown.text)) previewed.value = next
}
