import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'

type Texts = { [name: string]: string | Texts }

/** Lists the texts of a language with their placeholders. */
function placeholders(language: string): string[] {
  const path = join(packageRoot, 'plugins', 'page', 'browser', 'texts', `${language}.json`)
  const list = (texts: Texts, prefix: string): string[] =>
    Object.entries(texts).flatMap(([name, text]) =>
      typeof text === 'string'
        ? `${prefix}${name}: ${[...new Set(text.match(/\{\w+\}/g))].sort().join()}`
        : list(text, `${prefix}${name}.`)
    )
  return list(JSON.parse(readFileSync(path, 'utf8')), '').filter(line => !line.includes('.one:'))
}

t.test('every language has the same texts with the same placeholders', async t => {
  t.strictSame(placeholders('zh'), placeholders('en'))
})
