import type { Settings } from './chat-format.ts'
import { rememberedList } from './preferences.ts'

/** Named settings that can be reused. */
export interface Preset extends Settings {
  name: string
}

const stored = rememberedList<Preset>('presets')
/** The presets in this browser by name. */
export const presets = stored.list

/** Adds presets and replaces those with the same names. */
export function takePresets(added: readonly Preset[]): void {
  const names = new Set(added.map(({ name }) => name))
  keep([...presets.peek().filter(({ name }) => !names.has(name)), ...added])
}

export function deletePreset(name: string): void {
  keep(presets.peek().filter(preset => preset.name !== name))
}

const keep = (all: readonly Preset[]) => stored.set(all.toSorted((a, b) => a.name.localeCompare(b.name)))
