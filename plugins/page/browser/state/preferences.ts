import { effect, signal } from '@preact/signals'
import { localTexts } from './browser-storage.ts'

/** A preference stored in this browser. */
function remembered(name: string, initial: string) {
  const stored = `corral-${name}`
  const value = signal(localTexts.get(stored) ?? initial)
  effect(() => localTexts.set(stored, value.value === initial ? '' : value.value))
  return value
}

/** `light`, `dark`, or empty for the system's theme. */
export const theme = remembered('theme', '')
/** Such as `en`, or empty for the browser's language. */
export const language = remembered('language', '')
/** The model for new chats. */
export const lastModel = remembered('model', '')
/** The models for dictation and for reading aloud. */
export const speechModels = { transcribe: remembered('transcribe', ''), speak: remembered('speak', '') }
/** Whether the sidebar is hidden on wide screens: `yes` or empty. */
export const sidebarHidden = remembered('sidebar-hidden', '')

export function toggleSidebar(): void {
  sidebarHidden.value = sidebarHidden.value ? '' : 'yes'
}

/** Name of the key whose chats are shown, or empty. Chats of one user are never shown to another. */
export const chatsOwner = remembered('owner', '')

effect(() => {
  if (theme.value) document.documentElement.dataset.theme = theme.value
  else delete document.documentElement.dataset.theme
})
