import { spawnSync } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { execa } from 'execa'
import type { Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { judge, openPlace } from './running.ts'
import { checkTable } from './table.ts'
import { FACTS, FEATURES, type Feature, type Language, type Outcome, type Place } from './trials.ts'

/** How the programs of a language are built and started. */
export interface Toolchain {
  language: Language
  /** Tools that must be on the PATH. */
  tools: string[]
  /** Downloads the packages of the lock file: the only step that needs a registry. */
  fetch: string[]
  build: () => string[]
  /** The program and its arguments. */
  start: () => string[]
  /** Environment variables. */
  env?: Record<string, string>
}

/** Folders of a language's programs: source and build. */
export function programFolders(language: Language): { source: string; built: string } {
  const name = language.toLowerCase()
  const built = join(packageRoot, '.cache', `clients-${name}`)
  return { source: join(packageRoot, 'test', 'clients', name), built }
}

/**
 * Builds the programs of a language and tries their clients. Skipped without the tools or the registry. A program that
 * does not compile fails.
 */
export function tryLanguage(t: Test, toolchain: Toolchain): void {
  const { language, tools } = toolchain
  const { source, built } = programFolders(language)
  const absent = tools.filter(tool => spawnSync(tool, ['--help'], { stdio: 'ignore' }).error)
  mkdirSync(built, { recursive: true })
  const run = ([command, ...args]: string[]) =>
    execa(command!, args, { cwd: source, env: toolchain.env ?? {}, all: true, reject: false })
  const missing = absent.length > 0 ? `${absent.join(', ')} not on the PATH` : false
  t.test(
    `clients in ${language} pass their trials`,
    { skip: missing ? `CLIENTS IN ${language} ARE NOT TESTED: ${missing}` : false },
    async t => {
      const fetched = await run(toolchain.fetch)
      if (fetched.exitCode !== 0) {
        const why = fetched.all.trim().split('\n').at(-1)
        t.pass('packages', { skip: `CLIENTS IN ${language} ARE NOT TESTED: their packages are not available: ${why}` })
        return
      }
      const build = toolchain.build()
      const compiled = await run(build)
      if (compiled.exitCode !== 0) throw new Error(`${build[0]} failed:\n${compiled.all}`)
      judgeAll(t, language, await runProgram(toolchain.start(), await openPlace(t)))
    }
  )
}

/** Runs a trial program and returns its report. */
export async function runProgram(
  [command, ...args]: string[],
  place: Place,
  env: Record<string, string> = {}
): Promise<Outcome[]> {
  const { stdout, exitCode, stderr } = await execa(command!, args, {
    input: JSON.stringify({ place, facts: FACTS }),
    env,
    reject: false
  })
  const outcomes = stdout.split('\n').flatMap(line => (line.startsWith('{') ? [JSON.parse(line) as Outcome] : []))
  if (exitCode !== 0 || outcomes.length === 0)
    throw new Error(`${[command, ...args].at(-1)} ended with ${exitCode}:\n${stderr}`)
  return outcomes
}

/** Asserts the outcomes of programs, client by client, and compares them with the committed table. */
export function judgeAll(t: Test, language: Language, reported: Outcome[]): void {
  const features = Object.keys(FEATURES) as Feature[]
  const clients = [...new Set(reported.map(({ client }) => client))]
  const outcomes = reported.toSorted(
    (a, b) =>
      clients.indexOf(a.client) - clients.indexOf(b.client) || features.indexOf(a.feature) - features.indexOf(b.feature)
  )
  judge(t, outcomes)
  checkTable(t, language, outcomes)
}
