import type { Settings } from './chat-format.ts'
import { rememberedList } from './preferences.ts'

/** Named settings that can be reused. */
export interface Preset extends Settings {
  name: string
}

/** A text that can be reused. `{{name}}` and `{{name=default}}` stand for values that the user enters. */
export interface SavedPrompt {
  name: string
  text: string
}

/** A list in this browser, sorted by name. `take` adds items and replaces items with the same names. */
function namedList<Item extends { name: string }>(storedAs: string) {
  const { list, set } = rememberedList<Item>(storedAs)
  const keep = (all: readonly Item[]) => set(all.toSorted((a, b) => a.name.localeCompare(b.name)))
  const take = (added: readonly Item[]) => {
    const names = new Set(added.map(({ name }) => name))
    keep([...list.peek().filter(({ name }) => !names.has(name)), ...added])
  }
  return { list, take, remove: (name: string) => keep(list.peek().filter(item => item.name !== name)) }
}

export const { list: presets, take: takePresets, remove: deletePreset } = namedList<Preset>('presets')
export const { list: prompts, take: takePrompts, remove: deletePrompt } = namedList<SavedPrompt>('prompts')

const PLACEHOLDERS = /\{\{([^{}=\n]{1,80})(?:=([^{}]*))?\}\}/g

/** The names of the values that a prompt asks for, with their defaults. */
export function promptValues(text: string): Map<string, string> {
  const values = new Map<string, string>()
  for (const [, name = '', value = ''] of text.matchAll(PLACEHOLDERS)) {
    const key = name.trim()
    if (key) values.set(key, values.get(key) || value.trim())
  }
  return values
}

/** Replaces the placeholders of a prompt. */
export const fillPrompt = (text: string, values: FormData): string =>
  text.replace(PLACEHOLDERS, (whole, name: string) => String(values.get(name.trim()) ?? whole))
