import { signal } from '@preact/signals'
import { language } from '../state/preferences.ts'
import { en, type Texts } from './en.ts'

/** Available languages by code. English is built in, the others are loaded when chosen. */
export const LANGUAGES = { en: 'English', zh: '中文' } as const
type Language = keyof typeof LANGUAGES

const loaders: Record<Language, () => Promise<Texts>> = {
  en: async () => en,
  zh: async () => (await import('./zh.ts')).zh
}

/** The texts of the current language. */
export const texts = signal<Texts>(en)

/** The chosen language, else the first available language of the browser. */
export const shownLanguage = signal<Language>('en')

/** Loads the user's language. */
export async function loadLanguage(): Promise<void> {
  const wanted = [language.value, ...navigator.languages].map(code => code.toLowerCase().split('-')[0]!)
  const found = (wanted.find(code => code in LANGUAGES) ?? 'en') as Language
  texts.value = await loaders[found]()
  shownLanguage.value = found
  document.documentElement.lang = found
}
