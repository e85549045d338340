import { effect, signal } from '@preact/signals'
import { localTexts } from './browser-storage.ts'
import type { Settings } from './chat-format.ts'
import { chatsOwner } from './preferences.ts'

/** Named settings that can be reused. */
export interface Preset extends Settings {
  name: string
}

const storedAs = () => `corral-presets ${chatsOwner.value}`

/** The presets in this browser by name, separate for each key like chats. */
export const presets = signal<readonly Preset[]>([])
effect(() => {
  presets.value = localTexts.getJson<Preset[]>(storedAs(), [])
})
addEventListener('storage', ({ key }) => {
  if (key === storedAs()) presets.value = localTexts.getJson<Preset[]>(key, [])
})

/** Adds presets and replaces those with the same names. */
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
