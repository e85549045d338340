/**
 * Installs the coding agents of the tests in `.cache/agents`, unless they are already there: one folder for each agent,
 * and all their commands in `.cache/agents/bin`. No package may run a program while it is installed.
 *
 *     node dist/scripts/setup-agents.js [AGENT… | --long]
 *
 * Without arguments it installs the agents of the thorough tests (2 GB), with --long those of the long tests too (4 GB).
 */
import { mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { lock } from 'proper-lockfile'
import { errorMessage } from '../core/errors.ts'
import { formatDuration } from '../core/system/duration.ts'
import {
  AGENTS,
  AGENTS_FOLDER,
  type AgentName,
  type AgentPackage,
  isInstalled,
  RELEASED_BEFORE,
  versionFile,
  versionText
} from '../test/agents/packages.ts'
import { findPython, installPackages, run } from './python-environments.ts'

/** Milliseconds after which another installation is taken for dead. */
const INSTALL_LIMIT_MS = 900_000

function install(agent: AgentName): void {
  if (isInstalled(agent)) return
  const known: AgentPackage = AGENTS[agent]
  const { registry, name, version, command, file, python } = known
  const folder = join(AGENTS_FOLDER, agent)
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  if (registry === 'npm') {
    writeFileSync(join(folder, 'package.json'), '{ "private": true }\n')
    const quiet = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']
    run('npm', ['install', ...quiet, `--before=${RELEASED_BEFORE}`, `${name}@${version}`], folder)
  } else {
    installPackages(findPython(python), folder, ['--exclude-newer', RELEASED_BEFORE, `${name}==${version}`])
  }
  const commands = join(AGENTS_FOLDER, 'bin')
  mkdirSync(commands, { recursive: true })
  rmSync(join(commands, command), { force: true })
  symlinkSync(join('..', agent, file), join(commands, command))
  writeFileSync(versionFile(agent), versionText(known))
}

const all = Object.keys(AGENTS) as AgentName[]
const named = process.argv.slice(2).filter(argument => argument !== '--long')
try {
  const unknown = named.filter(name => !(name in AGENTS))
  if (unknown.length > 0) throw new Error(`There is no agent ${unknown.join(', ')}. Choose from ${all.join(', ')}.`)
  const isLong = process.argv.includes('--long')
  const wanted = named.length > 0 ? (named as AgentName[]) : all.filter(name => isLong || AGENTS[name].tests !== 'long')
  const begun = performance.now()
  mkdirSync(AGENTS_FOLDER, { recursive: true })
  // Tests that run side by side may need the same agents.
  const release = await lock(AGENTS_FOLDER, {
    stale: INSTALL_LIMIT_MS,
    retries: { retries: INSTALL_LIMIT_MS / 1000, maxTimeout: 1000 }
  })
  for (const agent of wanted) install(agent)
  await release()
  console.log(`Coding agents: ${AGENTS_FOLDER} (${formatDuration(performance.now() - begun)})`)
} catch (error) {
  console.error(errorMessage(error))
  process.exitCode = 1
}
