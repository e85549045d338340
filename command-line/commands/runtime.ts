import { basename, resolve } from 'node:path'
import type { InstalledBuild } from '../../core/contracts/builds.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { BuildReply, UpgradeReply } from '../../plugins/apis/native/runtime-routes.ts'
import { failure, forEach, misuse } from '../command-failure.ts'
import { type CommandContext, type Options, usageFailure } from '../context.ts'
import { formatTable, printable, printNote, printResult, relativeTime } from '../output.ts'
import { streamWork } from '../progress-display.ts'
import { type ServerClient, ServerRefusal } from '../server-client.ts'
import { ask, withServer } from '../server-connection.ts'

type InstallOptions = Options<never, 'version' | 'sha256' | 'runtime'>

const MAX_RETRIES = 3
const ARCHIVE = /\.(tar\.gz|tgz|zip)$/i

export async function runtimeList(context: CommandContext, { json }: Options): Promise<void> {
  const { installed } = await ask<{ installed: InstalledBuild[] }>(context, 'GET', '/api/runtimes')
  if (!json && process.stderr.isTTY && installed.length === 0) {
    printNote('No llama.cpp build is installed yet. Install one with: corral runtime install')
  }
  const now = new Date()
  printResult(json, installed, () => {
    const rows = installed.map(({ build, state, size, provenAt, failure = '' }) => [
      build.id,
      build.runtime ?? build.kind,
      build.version,
      state,
      size > 0 ? formatBytes(size) : '',
      relativeTime(provenAt, now),
      failure.split('\n')[0]!.slice(0, 100)
    ])
    return formatTable(['BUILD', 'KIND', 'VERSION', 'STATE', '>SIZE', 'TESTED', 'WHY'], rows)
  })
}

export async function runtimeUse(context: CommandContext, choice: string): Promise<void> {
  const labels = { first: `looking at ${choice}`, what: `selection of ${choice}` }
  const { build } = await workOn<BuildReply>(context, '/api/runtimes/use', { runtime: choice }, labels)
  printNote(`New engines use ${build.id} (llama.cpp ${build.version}). Loaded models keep their build.`)
}

export async function runtimeUpgrade(context: CommandContext): Promise<void> {
  const labels = { first: 'looking for a newer llama.cpp', what: 'upgrade of llama.cpp' }
  const { build, previous, changed } = await workOn<UpgradeReply>(context, '/api/runtimes/upgrade', {}, labels)
  printNote(
    changed
      ? `New engines use ${build.id} instead of ${previous.id}. The old build is kept: corral returns to it if the new one fails.`
      : `${build.id} is already the newest release.`
  )
}

export async function runtimeRemove(context: CommandContext, ids: string[], { unused }: Options<'unused'>) {
  if (unused ? ids.length > 0 : ids.length === 0) throw misuse('Give either the builds to remove or --unused.')
  await withServer(context, 'aside', async ({ client }) => {
    if (unused) return await removeUnused(client)
    await forEach(ids, async id => {
      await client.json('DELETE', `/api/runtimes/${encodeURIComponent(id)}`)
      printNote(`removed ${id}`)
    })
  })
}

/** Runs long work on builds, and retries if the server ends, which may belong to another command that has finished. */
export async function workOn<Result extends { status: 'success' }>(
  context: CommandContext,
  path: string,
  body: object,
  labels: { first: string; what: string }
): Promise<Result> {
  return await withServer(context, 'aside', async ({ client }) => {
    for (let left = MAX_RETRIES; ; left--) {
      try {
        return await streamWork<Result>(client, path, body, labels)
      } catch (error) {
        if (!(error instanceof ServerRefusal) || error.code !== 'shutting_down' || left === 0) throw error
      }
    }
  })
}

export async function runtimeInstall(context: CommandContext, what: string[], options: InstallOptions): Promise<void> {
  const { version, sha256, runtime } = options
  const archives = what.filter(argument => ARCHIVE.test(argument))
  const wrong = wrongUsage(what, archives, options)
  if (wrong !== undefined) throw usageFailure(wrong)
  // The libraries may come before the archive of the build itself.
  const companions = archives.filter(path => archives.length > 1 && basename(path).startsWith('cudart-'))
  const [archive, ...more] = archives.filter(path => !companions.includes(path))
  const absolute = (path: string) => resolve(context.cwd, path)
  const request = archive
    ? { sha256, runtime, archive: absolute(archive), companions: [...more, ...companions].map(absolute) }
    : { version, runtime: what[0] }
  const name = archive ? basename(archive) : `llama.cpp${what[0] ? ` (${what[0]})` : ''}`
  const labels = { first: `preparing ${name}`, what: `installation of ${name}` }
  const { build } = await workOn<BuildReply>(context, '/api/runtimes/install', request, labels)
  for (const warning of build.warnings ?? []) printNote(`Warning: ${printable(warning)}`)
  const installed = `installed ${build.id} (llama.cpp ${build.version}) from ${printable(build.origin)}`
  printNote(`${installed}. Use it with: corral runtime use ${build.id}`)
}

function wrongUsage(what: string[], archives: string[], options: InstallOptions): string | undefined {
  const { version, sha256, runtime } = options
  if (archives.length === 0) {
    if (what.length > 1) return 'Give one kind of build, or archives (.tar.gz, .tgz, .zip).'
    if (sha256 !== undefined)
      return '--sha256 is for archives only. Releases are checked against the digests of their server.'
    if (runtime !== undefined) return '--runtime is for archives only. Give the kind of build as the argument.'
    return undefined
  }
  if (archives.length < what.length) return 'Give either a kind of build or archives, not both.'
  return version === undefined ? undefined : '--version is for releases only. An archive has its own version.'
}

/** Removes unused builds. Builds of other programs have no size in the list and are never removed. */
async function removeUnused(client: ServerClient): Promise<void> {
  const { installed } = await client.json<{ installed: InstalledBuild[] }>('GET', '/api/runtimes')
  if (!installed.some(({ state }) => state === 'in use' || state === 'selected')) {
    throw failure(
      'Only a running server knows which build is in use. Start one with "corral serve", or select a build with "corral runtime use <build>".'
    )
  }
  const unused = installed.filter(({ state, size }) => (state === 'installed' || state === 'failed') && size > 0)
  if (unused.length === 0) printNote('There are no unused builds.')
  for (const { build, size } of unused) {
    try {
      await client.json('DELETE', `/api/runtimes/${encodeURIComponent(build.id)}`)
      printNote(`removed ${build.id} (${formatBytes(size)})`)
    } catch (error) {
      if (!(error instanceof ServerRefusal) || error.code !== 'runtime_in_use') throw error
      printNote(`kept ${build.id}: ${error.message}`)
    }
  }
}
