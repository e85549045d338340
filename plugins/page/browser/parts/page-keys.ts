import { sidebarHidden } from '../state/preferences.ts'
import { go } from '../state/route.ts'

/** Handles the keyboard shortcuts of the page. Single keys are ignored in fields. */
export function listenToKeys(openPalette: () => void): () => void {
  const onKey = (event: KeyboardEvent) => {
    const withControl = event.ctrlKey || event.metaKey
    const key = event.key.toLowerCase()
    const run = (action: () => void) => {
      event.preventDefault()
      action()
    }
    if (withControl && key === 'k') run(openPalette)
    else if (withControl && event.shiftKey && key === 'o') run(() => go(['chat']))
    else if (withControl && key === 'b') {
      run(() => {
        sidebarHidden.value = sidebarHidden.value ? '' : 'yes'
      })
    } else if (!withControl && !event.altKey && !isField(event.target)) {
      if (key === '/') run(() => document.getElementById('message')?.focus())
      else if (key === '?') run(openPalette)
    }
  }
  addEventListener('keydown', onKey)
  return () => removeEventListener('keydown', onKey)
}

const isField = (target: EventTarget | null) =>
  target instanceof HTMLElement && target.matches('input, textarea, select, [contenteditable]')
