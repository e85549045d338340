import { effect, signal } from '@preact/signals'
import { localTexts } from './browser-storage.ts'

/** What this browser remembers of how its user wants the page. */
function remembered(name: string, initial: string) {
  const stored = `corral-${name}`
  const value = signal(localTexts.get(stored) ?? initial)
  effect(() => localTexts.set(stored, value.value === initial ? '' : value.value))
  return value
}

/** `light`, `dark`, or empty for the system's colours. */
export const theme = remembered('theme', '')
/** Such as `en`; empty for the browser's. */
export const language = remembered('language', '')
/** The model that new chats begin with. */
export const lastModel = remembered('model', '')
/** Whether the list of chats is hidden, on wide screens: `yes` or empty. */
export const sidebarHidden = remembered('sidebar-hidden', '')

/** The name of the key whose chats are shown; empty without one. What one person said is not shown to another. */
export const chatsOwner = remembered('owner', '')

effect(() => {
  if (theme.value) document.documentElement.dataset.theme = theme.value
  else delete document.documentElement.dataset.theme
})
