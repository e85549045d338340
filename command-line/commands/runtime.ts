import { basename, resolve } from 'node:path'
import type { Command } from 'commander'
import type { InstalledBuild } from '../../core/contracts/builds.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { BuildReply, UpgradeReply } from '../../plugins/apis/native/runtime-routes.ts'
import { CommandFailure, EXIT, failure, forEach } from '../command-failure.ts'
import { type CommandContext, unknownCommand, usageFailure } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import { formatTable, printable, printJson, printNote, printText, relativeTime } from '../output.ts'
import { streamWork } from '../progress-display.ts'
import { type ServerClient, ServerRefusal } from '../server-client.ts'
import { withServer } from '../server-connection.ts'

interface InstallOptions {
  version?: string
  sha256?: string
  runtime?: string
}

const MAX_RETRIES = 3

const ARCHIVE = /\.(tar\.gz|tgz|zip)$/i

export function defineRuntime(program: CorralCommand, context: CommandContext): void {
  const runtime = program
    .command('runtime')
    .description('list, install, select, upgrade and remove llama.cpp builds')
    .notes(`
corral automatically installs the best llama.cpp build for this machine. Use these commands to choose another one. Each
build is tested before it is used: it must start, list its devices, and answer a request. Several builds can be installed
side by side. Kinds of builds: cpu, cuda-12, cuda-13, rocm, metal, vulkan, sycl. "corral doctor" shows which of them work
on this machine.

Examples:
  corral runtime list
  corral runtime install vulkan
  corral runtime install cpu --version b11347
  corral runtime install ./llama-b11347-bin-ubuntu-x64.tar.gz
  corral runtime use vulkan
  corral runtime upgrade
  corral runtime remove --unused`)

  runtime
    .command('list', { isDefault: true })
    .description('list the installed builds')
    .option('--json', 'print the field "installed" of GET /api/runtimes')
    .allowExcessArguments()
    .action(async ({ json }: { json?: boolean }, list: Command) => {
      if (list.args[0] !== undefined) unknownCommand(runtime, list.args[0])
      const { installed } = await withServer(context, 'aside', ({ client }) =>
        client.json<{ installed: InstalledBuild[] }>('GET', '/api/runtimes')
      )
      if (json) return printJson(installed)
      if (process.stderr.isTTY && installed.length === 0) {
        printNote('No llama.cpp build is installed yet. Install one with: corral runtime install')
      }
      printText(formatBuilds(installed, new Date()))
    })

  runtime
    .command('install')
    .description('install and test a build without using it; "use" switches to it')
    .argument('[what...]', 'kind of build (default: the best one for this machine), or a release archive on this disk')
    .option('--version <release>', 'release such as b11347 or v0.6.0 (default: the newest)')
    .option(
      '--sha256 <digest>',
      'expected digest of the archive, 64 hex digits; if omitted, the digest is only recorded'
    )
    .option('--runtime <kind>', 'kind of build in an archive, if its name does not say')
    .notes(`
CUDA builds for Windows and Linux come in two archives. Give both: the one with llama-server, and cudart-….

Exit codes: 0 installed (now or before), 1 not available or does not work on this machine, 2 wrong usage, 4 no such
release or kind of build.`)
    .action((what: string[], options: InstallOptions) => install(context, what, options))

  runtime
    .command('use')
    .description('test a build and use it for new engines')
    .argument('<build>', 'id or kind of an installed build, or auto for the best one')
    .action((choice: string) =>
      withServer(context, 'aside', async ({ client }) => {
        const labels = { first: `looking at ${choice}`, what: `selection of ${choice}` }
        const { build } = await workOn<BuildReply>(client, '/api/runtimes/use', { runtime: choice }, labels)
        printNote(`New engines use ${build.id} (llama.cpp ${build.version}). Loaded models keep their build.`)
      })
    )

  runtime
    .command('upgrade')
    .description('install the newest release of the current kind of build, and use it')
    .notes(`
If the new release does not work on this machine, or cannot load its first model although the previous one can, corral
returns to the previous one and does not try the new release again. Older builds stay on disk until you remove them:
corral runtime remove --unused`)
    .action(() => upgrade(context))

  runtime
    .command('remove')
    .alias('rm')
    .description('delete builds from disk')
    .argument('[id...]', 'ids of builds, as "corral runtime list" shows them')
    .option('--unused', 'all builds that corral installed, except the current, the selected and the previous one')
    .notes('\nBuilds that are selected, named by a model in config.yaml, or used by an engine are not removed.')
    .action(async (ids: string[], { unused }: { unused?: boolean }) => {
      if (unused ? ids.length > 0 : ids.length === 0) {
        throw new CommandFailure(EXIT.usage, 'Give either the builds to remove or --unused.')
      }
      await (unused ? removeUnused(context) : remove(context, ids))
    })
}

/**
 * Runs long work on builds, and retries when the server ends. The server may belong to another command that has
 * finished.
 */
async function workOn<Result extends { status: 'success' }>(
  client: ServerClient,
  path: string,
  body: object,
  labels: { first: string; what: string }
): Promise<Result> {
  for (let left = MAX_RETRIES; ; left--) {
    try {
      return await streamWork<Result>(client, path, body, labels)
    } catch (error) {
      if (!(error instanceof ServerRefusal) || error.code !== 'shutting_down' || left === 0) throw error
    }
  }
}

async function install(context: CommandContext, what: string[], options: InstallOptions): Promise<void> {
  const archives = what.filter(argument => ARCHIVE.test(argument))
  const wrong = wrongUsage(what, archives, options)
  if (wrong !== undefined) throw usageFailure(wrong)
  // The libraries may come before the archive of the build itself.
  const companions = archives.filter(path => archives.length > 1 && basename(path).startsWith('cudart-'))
  const [archive, ...more] = archives.filter(path => !companions.includes(path))
  const absolute = (path: string) => resolve(context.cwd, path)
  const request = archive
    ? { ...options, archive: absolute(archive), companions: [...more, ...companions].map(absolute) }
    : { ...options, ...(what[0] && { runtime: what[0] }) }
  const name = archive ? basename(archive) : `llama.cpp${what[0] ? ` (${what[0]})` : ''}`
  await withServer(context, 'aside', async ({ client }) => {
    const labels = { first: `preparing ${name}`, what: `installation of ${name}` }
    const { build } = await workOn<BuildReply>(client, '/api/runtimes/install', request, labels)
    const { id, version, origin, warnings = [] } = build
    for (const warning of warnings) printNote(`Warning: ${printable(warning)}`)
    printNote(`installed ${id} (llama.cpp ${version}) from ${printable(origin)}. Use it with: corral runtime use ${id}`)
  })
}

function wrongUsage(
  what: string[],
  archives: string[],
  { version, sha256, runtime }: InstallOptions
): string | undefined {
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

async function upgrade(context: CommandContext): Promise<void> {
  await withServer(context, 'aside', async ({ client }) => {
    const labels = { first: 'looking for a newer llama.cpp', what: 'upgrade of llama.cpp' }
    const { build, previous, changed } = await workOn<UpgradeReply>(client, '/api/runtimes/upgrade', {}, labels)
    printNote(
      changed
        ? `New engines use ${build.id} instead of ${previous.id}. The old build is kept: corral returns to it if the new one fails.`
        : `${build.id} is already the newest release.`
    )
  })
}

async function remove(context: CommandContext, ids: string[]): Promise<void> {
  await withServer(context, 'aside', async ({ client }) => {
    await forEach(ids, async id => {
      await client.json('DELETE', `/api/runtimes/${encodeURIComponent(id)}`)
      printNote(`removed ${id}`)
    })
  })
}

/** Removes builds that nothing uses. Builds of other programs have no size in the list and are never removed. */
async function removeUnused(context: CommandContext): Promise<void> {
  await withServer(context, 'aside', async ({ client }) => {
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
  })
}

function formatBuilds(installed: InstalledBuild[], now: Date): string {
  return printable(
    formatTable(
      ['BUILD', 'KIND', 'VERSION', 'STATE', '>SIZE', 'TESTED', 'WHY'],
      installed.map(({ build, state, size, provenAt, failure }) => [
        build.id,
        build.runtime ?? build.kind,
        build.version,
        state,
        size > 0 ? formatBytes(size) : '',
        relativeTime(provenAt, now),
        (failure ?? '').split('\n')[0]!.slice(0, 100)
      ])
    )
  )
}
