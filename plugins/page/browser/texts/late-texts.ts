import { computed } from '@preact/signals'
import late from './late-texts.json'
import { shownLanguage } from './texts.ts'

const all: Readonly<Record<string, typeof late.en>> = late

/** Texts of views that are loaded late, in one file with all languages, which arrives with the view. */
export const lateTexts = computed(() => all[shownLanguage.value] ?? late.en)
