import { effect, signal } from '@preact/signals'
import { localTexts } from './browser-storage.ts'

/** A preference stored in this browser. */
function remembered(name: string, initial: string) {
  const stored = `corral-${name}`
  const value = signal(localTexts.get(stored) ?? initial)
  effect(() => localTexts.set(stored, value.value === initial ? '' : value.value))
  return value
}

/** A list stored in this browser, separate for each key like chats. */
export function rememberedList<Item>(name: string) {
  const storedAs = () => `corral-${name} ${chatsOwner.value}`
  const list = signal<readonly Item[]>([])
  const read = () => {
    list.value = localTexts.getJson<Item[]>(storedAs(), [])
  }
  effect(read)
  addEventListener('storage', ({ key }) => {
    if (key === storedAs()) read()
  })
  const set = (all: readonly Item[]) => {
    list.value = all
    localTexts.set(storedAs(), JSON.stringify(all))
  }
  return { list, set }
}

/** `light`, `dark`, or empty for the system's theme. */
export const theme = remembered('theme', '')
/** Such as `en`, or empty for the browser's language. */
export const language = remembered('language', '')
/** The model for new chats. */
export const lastModel = remembered('model', '')
/** The models for dictation and for reading aloud. */
export const speechModels = { transcribe: remembered('transcribe', ''), speak: remembered('speak', '') }
/** The model that searches documents, or empty for the first one. */
export const searchModel = remembered('embedding', '')
/** Whether the browser shows notifications: `yes` or empty. */
export const notifications = remembered('notifications', '')
/** Whether models write titles of chats: `no` or empty. */
export const modelTitles = remembered('titles', '')
/** Whether the sidebar is hidden on wide screens: `yes` or empty. */
export const sidebarHidden = remembered('sidebar-hidden', '')

export function toggleSidebar(): void {
  sidebarHidden.value = sidebarHidden.value ? '' : 'yes'
}

/** Name of the key whose chats are shown, or empty. Chats of one user are never shown to another. */
export const chatsOwner = remembered('owner', '')

/** The theme that is shown: the chosen one, otherwise the system's. */
export const shownTheme = () => theme.value || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')

effect(() => {
  if (theme.value) document.documentElement.dataset.theme = theme.value
  else delete document.documentElement.dataset.theme
})
