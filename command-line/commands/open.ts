import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { errorMessage } from '../../core/errors.ts'
import { findExecutable } from '../../core/system/child-process.ts'
import type { CommandContext } from '../context.ts'
import { printNote, printText } from '../output.ts'
import type { ServerClient } from '../server-client.ts'
import { withServer } from '../server-connection.ts'

/** Time in which an opener can fail. Some openers run for as long as the browser. */
const OPENER_TIMEOUT_MS = 3000

export async function open(context: CommandContext, { print }: { print?: boolean }): Promise<void> {
  await withServer(context, 'fail', async ({ client }) => {
    const way = print ? { missing: undefined } : wayToOpen(process.platform, context.env)
    if ('missing' in way) return await printLink(client, way.missing)
    // On Linux, other users can read the arguments of programs. The link must be useless to them.
    const link = await getLink(client, process.platform === 'linux' ? process.getuid!() : undefined)
    const place = process.platform === 'darwin' ? await privatePage(link) : link.href
    const failure = await run(way.command, [...way.arguments, place])
    if (failure !== undefined) return await printLink(client, `${way.command} failed (${failure})`)
    const page = new URL(link.pathname, link).href
    printNote(`Opened ${page} in the browser. You are signed in as admin for twelve hours.`)
  })
}

/** @param why reason why the link is not opened, without a full stop. Undefined if the user asked for the link */
async function printLink(client: ServerClient, why: string | undefined): Promise<void> {
  const link = await getLink(client, undefined)
  const reason = why === undefined ? 'Open this link' : `${why}. Open this link yourself`
  printNote(`${reason}; it works once, within a minute, and makes whoever opens it an admin:`)
  printText(link.href)
}

async function getLink(client: ServerClient, uid: number | undefined): Promise<URL> {
  const { address } = await client.json<{ address: string }>('POST', '/api/sessions/links', {
    ...(uid !== undefined && { uid })
  })
  const link = new URL(address)
  // A command that goes through a proxy shows the link with the proxy's address.
  return client.bySocket ? link : new URL(`${link.pathname}${link.hash}`, client.address)
}

/** The program that opens links, or the reason why there is none. */
export function wayToOpen(
  platform: NodeJS.Platform,
  env: NodeJS.ProcessEnv
): { command: string; arguments: string[] } | { missing: string } {
  if (env.SSH_CONNECTION || env.SSH_TTY) return { missing: 'There is no browser in an ssh session' }
  if (platform === 'darwin') return { command: 'open', arguments: [] }
  if (platform === 'win32') return { command: 'rundll32', arguments: ['url.dll,FileProtocolHandler'] }
  if (!env.DISPLAY && !env.WAYLAND_DISPLAY) return { missing: 'There is no display' }
  return { command: 'xdg-open', arguments: [] }
}

/**
 * Writes a page that redirects to the link and that only this user can read. This keeps the link out of program
 * arguments.
 * @returns the page's address
 */
async function privatePage(link: URL): Promise<string> {
  // In the user's temporary folder, which the system cleans up.
  const path = join(await mkdtemp(join(tmpdir(), 'corral-open-')), 'open.html')
  const page = `<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=${link.href}"><title>corral</title>\n`
  await writeFile(path, page, { mode: 0o600, flag: 'wx' })
  return pathToFileURL(path).href
}

/** Starts a program in the background. @returns the error if it failed early */
async function run(command: string, args: string[]): Promise<string | undefined> {
  // Full path, because Windows looks for programs in the working directory first.
  const child = spawn(findExecutable(command) ?? command, args, { stdio: 'ignore', detached: true })
  const patience = new AbortController()
  try {
    const ended = once(child, 'exit', { signal: patience.signal }).then(([code, signal]) =>
      code === 0 ? undefined : `it ended with ${signal ?? `code ${code}`}`
    )
    return await Promise.race([ended, sleep(OPENER_TIMEOUT_MS, undefined, { signal: patience.signal })])
  } catch (error) {
    return errorMessage(error)
  } finally {
    patience.abort()
    child.unref()
  }
}
