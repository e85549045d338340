import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import type { Test } from 'tap'
import { until } from '../support/corral.ts'
import { AGENTS, AGENTS_FOLDER, type AgentName } from './packages.ts'
import { type Place, PROGRAMS } from './programs.ts'
import { COPY, EDITED, FILES } from './scripted-model.ts'

/** A running agent is killed after this time. */
const TIMEOUT_MS = 240_000

export interface Session {
  folder: string
  process: ChildProcess
  /** Standard output and errors so far. */
  output(): string
  /** Resolves with the exit code. */
  ended: Promise<number | null>
  /** The files of `FILES` that exist, and the copy. */
  files(): Record<string, string>
}

/** The files of a session that has done its work. */
export const FINISHED = { ...FILES, 'greeting.py': EDITED, [COPY]: EDITED }

/** Creates the folders of a session. The session removes them. */
export function sessionFolders(): { home: string; folder: string } {
  const root = mkdtempSync(join(tmpdir(), 'corral-agent-'))
  const folders = { home: join(root, 'home'), folder: join(root, 'work') }
  for (const name of ['home', 'work', 'tmp']) mkdirSync(join(root, name))
  for (const [name, text] of Object.entries(FILES)) writeFileSync(join(folders.folder, name), text)
  return folders
}

/** The agent and what it started, even in process groups of their own: they inherit its home folder. */
function processesOf(home: string): number[] {
  return readdirSync('/proc')
    .filter(entry => {
      try {
        return /^\d+$/.test(entry) && readFileSync(`/proc/${entry}/environ`, 'utf8').includes(`HOME=${home}\0`)
      } catch {
        return false
      }
    })
    .map(Number)
}

/**
 * Starts an agent in its own folder, home and process group. It reaches nothing but this machine.
 * @param next arguments of a later start in the same folders
 */
export function startSession(
  t: Pick<Test, 'teardown'>,
  agent: AgentName,
  { folder, ...place }: Place & { folder: string },
  next?: readonly string[]
): Session {
  const { args, env, files = {} } = PROGRAMS[agent].start(place)
  for (const [name, content] of Object.entries(files)) {
    const file = join(place.home, name)
    mkdirSync(dirname(file), { recursive: true })
    writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content, null, 2))
  }
  // Nothing listens on this port.
  const nowhere = 'http://127.0.0.1:9'
  const child = spawn(join(AGENTS_FOLDER, 'bin', AGENTS[agent].command), next ?? args, {
    cwd: folder,
    env: {
      PATH: [dirname(process.execPath), '/usr/local/bin', '/usr/bin', '/bin'].join(delimiter),
      HOME: place.home,
      TMPDIR: join(place.home, '..', 'tmp'),
      LANG: 'C.UTF-8',
      TERM: 'dumb',
      HTTP_PROXY: nowhere,
      HTTPS_PROXY: nowhere,
      NO_PROXY: '127.0.0.1,localhost',
      ...env
    },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', text => {
      output += text
    })
  }
  const kill = () => {
    for (const pid of processesOf(place.home)) {
      try {
        process.kill(pid, 'SIGKILL')
      } catch {
        // It has ended.
      }
    }
  }
  const timer = setTimeout(kill, TIMEOUT_MS)
  const ended = once(child, 'exit')
    .then(([code]) => code as number | null)
    .finally(() => clearTimeout(timer))
  t.teardown(async () => {
    // Processes end a moment after they are killed. Until then they write, and may start others.
    await until('its processes end', () => {
      kill()
      return processesOf(place.home).length === 0
    })
    // It was never started if its program cannot run. Its test reports that.
    await ended.catch(() => undefined)
    rmSync(dirname(place.home), { recursive: true, force: true, maxRetries: 20 })
  })
  return {
    folder,
    process: child,
    output: () => output,
    ended,
    files: () =>
      Object.fromEntries(
        [...Object.keys(FILES), COPY]
          .filter(name => existsSync(join(folder, name)))
          .map(name => [name, readFileSync(join(folder, name), 'utf8')])
      )
  }
}
