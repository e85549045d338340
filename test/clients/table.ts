import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { elsewhere } from './running.ts'
import { FEATURES, LANGUAGES, type Language, type Outcome } from './trials.ts'

const PATH = join(packageRoot, 'docs', 'measurements', 'clients.md')

/**
 * Compares the committed table of one language with the outcomes, or writes it if CORRAL_WRITE_DOCS is set. Does
 * nothing for existing servers, where fewer trials run.
 */
export function checkTable(t: Test, language: Language, outcomes: Outcome[]): void {
  if (elsewhere) return
  const [introduction, ...parts] = readFileSync(PATH, 'utf8').split(/^## /m)
  const sections = Object.fromEntries(
    parts.map(part => [part.slice(0, part.indexOf('\n')), `${part.slice(part.indexOf('\n')).trim()}\n`])
  )
  const section = render(outcomes)
  if (process.env.CORRAL_WRITE_DOCS) {
    const texts = LANGUAGES.map(of => `## ${of}\n\n${of === language ? section : (sections[of] ?? '')}`)
    writeFileSync(PATH, `${introduction}${texts.join('\n')}`)
    return
  }
  const hint = 'docs/measurements/clients.md matches the outcomes; if not, run "npm run docs:clients"'
  t.equal(sections[language], section, hint)
}

/** The table of one language with all trials, client by client. */
function render(outcomes: Outcome[]): string {
  const rows = outcomes.map(({ client, version, language, feature, result, note }) => {
    const words = result === 'works' ? (note ? `works: ${note}` : 'works') : 'fails'
    return `| ${client} | ${version} | ${language} | ${FEATURES[feature]} | ${words.replaceAll('|', '\\|')} |`
  })
  return `${['| client | version | language | tried | result |', '|---|---|---|---|---|', ...rows].join('\n')}\n`
}
