/** Writes the results of the last long tests, from `.cache/long-trials`, to `docs/measurements/long-trials.md`. */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { describeMachine } from './bench/measuring.ts'

interface Trial {
  trial: string
  date: string
  figures: Record<string, string | number>
}

const folder = join(packageRoot, '.cache', 'long-trials')
const trials = readdirSync(folder)
  .sort()
  .map(name => JSON.parse(readFileSync(join(folder, name), 'utf8')) as Trial)

const sections = trials.map(({ trial, date, figures }) => {
  const rows = Object.entries(figures).map(([name, value]) => `| ${name} | ${value} |`)
  return `## ${trial}\n\nPassed on ${date.slice(0, 16).replace('T', ' ')} UTC.\n\n| | |\n|---|---|\n${rows.join('\n')}\n`
})

mkdirSync(join(packageRoot, 'docs', 'measurements'), { recursive: true })
writeFileSync(
  join(packageRoot, 'docs', 'measurements', 'long-trials.md'),
  `# Long tests\n\nThe last successful run of each long test (\`npm run test:long\`). Engines are real llama-servers with the demo model and one thread each. Machine: ${describeMachine()}.\n\n${sections.join('\n')}`
)
