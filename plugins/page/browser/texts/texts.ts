import { signal } from '@preact/signals'
import { language } from '../state/preferences.ts'
import { en, type Texts } from './en.ts'

/** The languages that there are, by their codes. English is there at once, the others are loaded when chosen. */
export const LANGUAGES = { en: 'English', zh: '中文' } as const
type Language = keyof typeof LANGUAGES

const loaders: Record<Language, () => Promise<Texts>> = {
  en: async () => en,
  zh: async () => (await import('./zh.ts')).zh
}

/** The texts of the language that is shown. */
export const texts = signal<Texts>(en)

/** The language that is shown: the chosen one, else the first of the browser's that there is. */
export const shownLanguage = signal<Language>('en')

/** Shows the page in its user's language. */
export async function loadLanguage(): Promise<void> {
  const wanted = [language.value, ...navigator.languages].map(code => code.toLowerCase().split('-')[0]!)
  const found = (wanted.find(code => code in LANGUAGES) ?? 'en') as Language
  texts.value = await loaders[found]()
  shownLanguage.value = found
  document.documentElement.lang = found
}
