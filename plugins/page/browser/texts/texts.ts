import { LANGUAGES, loaders } from 'corral:languages'
import { signal } from '@preact/signals'
import { language } from '../state/preferences.ts'
import en from './en.json'

/*
 * All texts of the page, in one JSON file per language with the same fields. The build finds the files. `{name}` in a
 * text stands for a value. A text for a count has one form for each plural category of `Intl.PluralRules`.
 */
export type Texts = typeof en

/** The names of the languages by code. English is built in, the others are loaded when chosen. */
export { LANGUAGES }

/** The texts of the current language. */
export const texts = signal<Texts>(en)

/** The chosen language, otherwise the first available language of the browser. */
export const shownLanguage = signal('en')

/** Loads the user's language. */
export async function loadLanguage(): Promise<void> {
  const wanted = [language.value, ...navigator.languages].map(code => code.toLowerCase().split('-')[0]!)
  const found = wanted.find(code => Object.hasOwn(LANGUAGES, code)) ?? 'en'
  texts.value = (await loaders[found]?.())?.default ?? en
  shownLanguage.value = found
  document.documentElement.lang = found
}

/** Replaces each `{name}` in a text by its value. */
export function fill(text: string, values: Readonly<Record<string, string | number>>): string {
  return text.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole))
}

/** Chooses the form of a text for a count, and fills in `{count}`. */
export function plural(forms: Partial<Record<Intl.LDMLPluralRule, string>>, count: number): string {
  const category = new Intl.PluralRules(shownLanguage.value).select(count)
  return fill(forms[category] ?? forms.other ?? '', { count })
}

/** Returns the text for a name that the server uses, such as a state. @param otherwise for unknown names */
export function labelFor(labels: Readonly<Record<string, string>>, name: string, otherwise = name): string {
  return Object.hasOwn(labels, name) ? labels[name]! : otherwise
}

/** Translates the server's progress reports for an answer or a load, if they are known. */
export function statusText(status = ''): string {
  const t = texts.value
  const percent = /(\d+)%/.exec(status)?.[0]
  if (status === '') return t.waitingStatus
  if (status === 'reconnecting') return t.reconnecting
  if (status.startsWith('prompt') && percent) return fill(t.promptStatus, { percent })
  if (status.startsWith('documents')) return fill(t.documentsStatus, { percent: percent ?? '' })
  if (/^loading/.test(status)) return fill(t.loadingStatus, { percent: percent ?? '' })
  if (/^(queued|waiting for a slot)/.test(status)) return t.queueStatus
  return status
}
