import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const PLURALS = ['zero', 'one', 'two', 'few', 'many', 'other']

/**
 * Reads the names of the page's languages by code, English first. Each JSON file of texts is a language.
 * @throws Error that lists the missing and unknown texts of a file, and texts with other `{names}` than in English
 */
export function readLanguages(folder) {
  const read = code => Object.fromEntries(flatten(JSON.parse(readFileSync(join(folder, `${code}.json`), 'utf8'))))
  const english = read('en')
  const codes = readdirSync(folder).flatMap(name => /^([a-z]{2,3})\.json$/.exec(name)?.[1] ?? [])
  const others = codes.filter(code => code !== 'en').sort()
  const names = { en: english.language }
  for (const code of others) {
    const texts = read(code)
    const faults = findFaults(english, texts, new Intl.PluralRules(code).resolvedOptions().pluralCategories)
    if (faults.length > 0)
      throw new Error(`The texts in ${join(folder, code)}.json are not complete:\n${faults.join('\n')}`)
    names[code] = texts.language
  }
  return names
}

const flatten = (texts, prefix = '') =>
  Object.entries(texts).flatMap(([name, text]) =>
    typeof text === 'object' ? flatten(text, `${prefix}${name}.`) : [[prefix + name, String(text)]]
  )

function findFaults(english, texts, categories) {
  const isPlural = name => `${name}.one` in english && `${name}.other` in english
  const wanted = new Set()
  const allowed = new Set()
  for (const name of Object.keys(english)) {
    const [, group, form] = /^(.*)\.(\w+)$/.exec(name) ?? []
    const hasForms = PLURALS.includes(form) && isPlural(group)
    for (const each of hasForms ? categories : [form]) wanted.add(hasForms ? `${group}.${each}` : name)
    for (const each of hasForms ? PLURALS : [form]) allowed.add(hasForms ? `${group}.${each}` : name)
  }
  const valuesIn = text => [...new Set(text.match(/\{\w+\}/g))].sort().join()
  return [
    ...[...wanted].filter(name => !texts[name]).map(name => `${name} is missing`),
    ...Object.keys(texts).flatMap(name => {
      if (!allowed.has(name)) return [`${name} is unknown`]
      const model = english[name]
      // One form of a count may leave the number out.
      if (model === undefined || /\.(?:zero|one|two)$/.test(name) || valuesIn(texts[name]) === valuesIn(model))
        return []
      return [`${name} needs the values ${valuesIn(model) || '(none)'}`]
    })
  ]
}

/** Lets the page import the names of its languages, and functions that load them. English is built in. */
export const languages = folder => ({
  name: 'languages',
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /^corral:languages$/ }, () => ({ path: 'languages', namespace: 'languages' }))
    onLoad({ filter: /^languages$/, namespace: 'languages' }, () => {
      const names = readLanguages(folder)
      const codes = Object.keys(names).filter(code => code !== 'en')
      const loaders = codes.map(code => `${code}: () => import('./${code}.json')`).join()
      return {
        contents: `export const LANGUAGES = ${JSON.stringify(names)}\nexport const loaders = {${loaders}}`,
        resolveDir: folder
      }
    })
  }
})
