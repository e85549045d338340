import { effect, signal } from '@preact/signals'
import { localTexts } from './browser-storage.ts'
import type { Chat } from './conversation-tree.ts'
import { chatsOwner } from './preferences.ts'

/** What a chat's requests have besides its messages. */
export type Settings = Pick<Chat, 'system' | 'schema' | 'tools' | 'options'>

/** Settings of chats that were given a name, to be used again. */
export interface Preset extends Settings {
  name: string
}

const storedAs = () => `corral-presets ${chatsOwner.value}`

/** The presets of this browser, apart for each key as chats are; by their names. */
export const presets = signal<readonly Preset[]>([])
effect(() => {
  presets.value = localTexts.getJson<Preset[]>(storedAs(), [])
})
addEventListener('storage', ({ key }) => {
  if (key === storedAs()) presets.value = localTexts.getJson<Preset[]>(key, [])
})

/** Adds presets; those of the same names are replaced. */
export function takePresets(added: readonly Preset[]): void {
  const names = new Set(added.map(({ name }) => name))
  keep([...presets.peek().filter(({ name }) => !names.has(name)), ...added])
}

export function deletePreset(name: string): void {
  keep(presets.peek().filter(preset => preset.name !== name))
}

function keep(all: Preset[]): void {
  presets.value = all.sort((a, b) => a.name.localeCompare(b.name))
  localTexts.set(storedAs(), JSON.stringify(presets.peek()))
}
