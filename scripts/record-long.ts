/** Writes what the long trials have left in `.cache/long-trials` to `docs/long-trials.md`: the record of the last run. */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { cpus, release, type as systemName, totalmem } from 'node:os'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'

interface Trial {
  trial: string
  date: string
  figures: Record<string, string | number>
}

const folder = join(packageRoot, '.cache', 'long-trials')
const trials = readdirSync(folder)
  .sort()
  .map(name => JSON.parse(readFileSync(join(folder, name), 'utf8')) as Trial)

const machine = `${cpus().length} cores (${cpus()[0]!.model.trim()}), ${Math.round(totalmem() / 2 ** 30)} GiB, ${systemName()} ${release()}, Node ${process.versions.node}`
const sections = trials.map(({ trial, date, figures }) => {
  const rows = Object.entries(figures).map(([name, value]) => `| ${name} | ${value} |`)
  return `## ${trial}\n\nPassed on ${date.slice(0, 16).replace('T', ' ')} UTC.\n\n| | |\n|---|---|\n${rows.join('\n')}\n`
})

mkdirSync(join(packageRoot, 'docs'), { recursive: true })
writeFileSync(
  join(packageRoot, 'docs', 'long-trials.md'),
  `# Long trials\n\nThe last runs of \`npm run test:long\` that passed, written by it. Engines are real llama-servers with the demo model, one thread each. Machine: ${machine}.\n\n${sections.join('\n')}`
)
