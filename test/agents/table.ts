import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { AGENTS, type AgentName } from './packages.ts'
import { PROGRAMS, TRIALS, type Trial } from './programs.ts'

const PATH = join(packageRoot, 'docs', 'agents.md')

/**
 * Compares an agent's row of the committed table with the trials that passed, or writes it if CORRAL_WRITE_DOCS is set.
 */
export function checkRow(t: Test, agent: AgentName, passed: ReadonlyMap<Trial, boolean>): void {
  const { name, version } = AGENTS[agent]
  const { title, api } = PROGRAMS[agent]
  const results = TRIALS.map(trial => ({ true: 'works', false: 'fails', undefined: '–' })[String(passed.get(trial))])
  const row = `| ${[title, `\`${name}\` ${version}`, api, ...results].join(' | ')} |`
  const lines = readFileSync(PATH, 'utf8').split('\n')
  // An earlier table lists settings.
  const at = lines.findLastIndex(line => line.startsWith(`| ${title} |`))
  if (process.env.CORRAL_WRITE_DOCS) writeFileSync(PATH, lines.with(at, row).join('\n'))
  else t.equal(lines[at], row, 'docs/agents.md matches the outcomes; if not, run "npm run docs:agents"')
}
