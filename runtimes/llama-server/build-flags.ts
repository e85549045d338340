import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import type { Build } from '../../core/contracts/builds.ts'
import { flagsInHelp } from './arguments.ts'

const run = promisify(execFile)
const HELP_LIMIT = 10_000

const cache = new Map<string, Promise<ReadonlySet<string> | undefined>>()

async function readFlags(
  server: string,
  environment: Record<string, string>
): Promise<ReadonlySet<string> | undefined> {
  try {
    const { stdout, stderr } = await run(server, ['--help'], {
      env: environment,
      timeout: HELP_LIMIT,
      maxBuffer: 2 ** 24,
      windowsHide: true
    })
    const flags = flagsInHelp(stdout + stderr)
    // Every llama-server has this one; without it the text is something else.
    return flags.has('--ctx-size') ? flags : undefined
  } catch {
    // The start that follows fails too, and tells why.
    return undefined
  }
}

/** The flags that a build knows by its own `--help`, asked once a build; undefined when it does not say. */
export async function knownFlags(
  build: Build,
  environment: Record<string, string>
): Promise<ReadonlySet<string> | undefined> {
  const { server } = build.executables
  const id = `${build.digest} ${server}`
  let flags = cache.get(id)
  if (!flags) {
    flags = readFlags(server, environment)
    cache.set(id, flags)
    if ((await flags) === undefined) cache.delete(id)
  }
  return flags
}
