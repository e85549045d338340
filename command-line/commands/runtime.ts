import { basename, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Command } from 'commander'
import type { InstalledBuild } from '../../core/contracts/builds.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { BuildReply, UpgradeReply } from '../../plugins/api-native/operations/runtimes.ts'
import type { CommandContext } from '../context.ts'
import { CommandFailure, EXIT, throwTogether, tryEach } from '../failure.ts'
import { interruption } from '../interruption.ts'
import { printable, printJson, printText } from '../output.ts'
import { relativeTime } from '../relative-time.ts'
import { ServerRefusal } from '../server-client.ts'
import { type ServerConnection, withServer } from '../server-connection.ts'
import { streamWork } from '../streamed-work.ts'
import { formatTable } from '../table.ts'
import { unknownCommand } from '../unknown-command.ts'

interface InstallOptions {
  version?: string
  sha256?: string
  runtime?: string
}

/** How often another server is looked for, and how long to wait before (milliseconds). */
const TRIES = 3
const PAUSE = 200

const ARCHIVE = /\.(tar\.gz|tgz|zip)$/i

export function defineRuntime(program: Command, context: CommandContext): void {
  const runtime = program
    .command('runtime')
    .description('list, install, choose, upgrade and remove llama.cpp builds')
    .addHelpText(
      'after',
      `
corral gets the best llama.cpp build for this machine by itself; these commands are for another choice. Each build is
proven before it counts: it starts, lists the devices that it is for, and answers. Several may be there side by side.
Kinds of builds: cpu, cuda-12, cuda-13, rocm, metal, vulkan, sycl; "corral doctor" shows which suit this machine.

Examples:
  corral runtime list
  corral runtime install vulkan
  corral runtime install cpu --version b11347
  corral runtime install ./llama-b11347-bin-ubuntu-x64.tar.gz
  corral runtime use vulkan
  corral runtime upgrade
  corral runtime remove --unused`
    )

  runtime
    .command('list', { isDefault: true })
    .description('list the builds that are here')
    .option('--json', 'print the field "installed" of GET /api/runtimes')
    .allowExcessArguments()
    .action(async ({ json }: { json?: boolean }, list: Command) => {
      if (list.args[0] !== undefined) unknownCommand(runtime, list.args[0])
      const { installed } = await withRuntimes(context, ({ client }) =>
        client.json<{ installed: InstalledBuild[] }>('GET', '/api/runtimes')
      )
      if (json) return printJson(installed)
      if (process.stderr.isTTY && installed.length === 0) {
        process.stderr.write('No llama.cpp build is here yet. Get one with: corral runtime install\n')
      }
      printText(formatBuilds(installed, new Date()))
    })

  runtime
    .command('install')
    .description('get a build, prove it and keep it beside the others; it is not used by that')
    .argument(
      '[what...]',
      'a kind of build (the best one for this machine by default), or a release archive on this disk'
    )
    .option('--version <release>', 'release such as b11347; the newest by default')
    .option('--sha256 <digest>', 'what an archive must have, 64 hex digits; without it the digest is only told')
    .option('--runtime <kind>', 'kind of build in an archive whose name does not tell')
    .addHelpText(
      'after',
      `
CUDA builds for Windows and Linux come in two archives; give both: the one with llama-server, and cudart-….

Exit codes: 0 installed (or there already), 1 it could not be had or does not work here, 2 wrong usage, 4 no such release
or kind of build.`
    )
    .action((what: string[], options: InstallOptions) => install(context, what, options))

  runtime
    .command('use')
    .description('run new engines on this build from now on; it is proven again before')
    .argument('<build>', 'id of an installed build, a kind of which one is installed, or auto for the best one')
    .action((choice: string) =>
      withRuntimes(context, async ({ client }) => {
        const { build } = await streamWork<BuildReply>(
          client,
          '/api/runtimes/use',
          { runtime: choice },
          { first: `looking at ${choice}`, what: `choice of ${choice}`, unit: 'bytes' }
        )
        process.stderr.write(
          `New engines run on ${build.id} (llama.cpp ${build.version}). Loaded models stay where they are.\n`
        )
      })
    )

  runtime
    .command('upgrade')
    .description('get the newest release of the kind of build in use, and use it')
    .addHelpText(
      'after',
      `
When the new release does not work here, or its first model does not load where the former one loads it, corral returns
to the former one by itself and does not try that release again. Older ones stay on disk until they are removed:
corral runtime remove --unused`
    )
    .action(() => upgrade(context))

  runtime
    .command('remove')
    .alias('rm')
    .description('delete builds from disk')
    .argument('[id...]', 'ids of builds, as "corral runtime list" shows them')
    .option('--unused', 'all that corral installed but those in use, the chosen and the previous one')
    .addHelpText(
      'after',
      '\nA build that is chosen, that a model in config.yaml names, or that an engine runs on, is not removed.'
    )
    .action(async (ids: string[], { unused }: { unused?: boolean }) => {
      if (unused ? ids.length > 0 : ids.length === 0) {
        throw new CommandFailure(EXIT.usage, 'Name the builds to remove, or give --unused alone.')
      }
      await (unused ? removeUnused(context) : remove(context, ids))
    })
}

/**
 * Has a server do what may be done twice. The server that another command has started for itself ends with that
 * command: then there is another one.
 */
async function withRuntimes<Result>(
  context: CommandContext,
  use: (connection: ServerConnection) => Promise<Result>
): Promise<Result> {
  for (let left = TRIES; ; left--) {
    try {
      return await withServer(context, 'aside', use)
    } catch (error) {
      if (!(error instanceof ServerRefusal) || error.code !== 'shutting_down' || left === 0) throw error
      await sleep(PAUSE, undefined, { signal: interruption() }).catch(() => interruption().throwIfAborted())
    }
  }
}

async function install(context: CommandContext, what: string[], options: InstallOptions): Promise<void> {
  const archives = what.filter(argument => ARCHIVE.test(argument))
  const wrong = wrongUsage(what, archives, options)
  if (wrong !== undefined) throw new CommandFailure(EXIT.usage, `${wrong}\n(add --help to see how it is used)`)
  // The build's own archive, whichever order they are given in.
  const companions = archives.filter(path => archives.length > 1 && basename(path).startsWith('cudart-'))
  const [archive, ...more] = archives.filter(path => !companions.includes(path))
  const absolute = (path: string) => resolve(context.cwd, path)
  const request = archive
    ? { ...options, archive: absolute(archive), companions: [...more, ...companions].map(absolute) }
    : { ...options, ...(what[0] && { runtime: what[0] }) }
  const name = archive ? basename(archive) : `llama.cpp${what[0] ? ` (${what[0]})` : ''}`
  await withRuntimes(context, async ({ client }) => {
    const { build } = await streamWork<BuildReply>(client, '/api/runtimes/install', request, {
      first: `preparing ${name}`,
      what: `installation of ${name}`,
      unit: 'bytes'
    })
    const { id, version, origin, warnings = [] } = build
    for (const warning of warnings) process.stderr.write(`Warning: ${printable(warning)}\n`)
    process.stderr.write(
      `installed ${id} (llama.cpp ${version}) from ${printable(origin)}. Use it with: corral runtime use ${id}\n`
    )
  })
}

function wrongUsage(
  what: string[],
  archives: string[],
  { version, sha256, runtime }: InstallOptions
): string | undefined {
  if (archives.length === 0) {
    if (what.length > 1) return 'Name one kind of build, or archives (.tar.gz, .tgz, .zip).'
    if (sha256 !== undefined) return '--sha256 is for an archive: releases are checked by the digests of their server.'
    if (runtime !== undefined) return '--runtime is for an archive: name the kind of build itself.'
    return undefined
  }
  if (archives.length < what.length) return 'Name a kind of build or archives, but not both.'
  return version === undefined ? undefined : '--version is for releases: an archive is of the version that it is.'
}

async function upgrade(context: CommandContext): Promise<void> {
  await withRuntimes(context, async ({ client }) => {
    const { build, previous, changed } = await streamWork<UpgradeReply>(
      client,
      '/api/runtimes/upgrade',
      {},
      { first: 'looking for a newer llama.cpp', what: 'upgrade of llama.cpp', unit: 'bytes' }
    )
    process.stderr.write(
      changed
        ? `New engines run on ${build.id} instead of ${previous.id}, which is kept: corral returns to it should the new one fail.\n`
        : `${build.id} is the newest already.\n`
    )
  })
}

async function remove(context: CommandContext, ids: string[]): Promise<void> {
  await withRuntimes(context, async ({ client }) => {
    const failures = await tryEach(ids, async id => {
      await client.json('DELETE', `/api/runtimes/${encodeURIComponent(id)}`)
      process.stderr.write(`removed ${id}\n`)
    })
    throwTogether(failures)
  })
}

/** Removes what only takes room. Builds in folders of others are not corral's to remove, and have no size here. */
async function removeUnused(context: CommandContext): Promise<void> {
  await withRuntimes(context, async ({ client }) => {
    const { installed } = await client.json<{ installed: InstalledBuild[] }>('GET', '/api/runtimes')
    if (!installed.some(({ state }) => state === 'in use' || state === 'selected')) {
      throw new CommandFailure(
        EXIT.failure,
        'Which build is in use is known only to a server that runs. Start it (corral serve), or choose a build: corral runtime use <build>'
      )
    }
    const unused = installed.filter(({ state, size }) => (state === 'installed' || state === 'failed') && size > 0)
    if (unused.length === 0) process.stderr.write('There is no build that nothing uses.\n')
    for (const { build, size } of unused) {
      try {
        await client.json('DELETE', `/api/runtimes/${encodeURIComponent(build.id)}`)
        process.stderr.write(`removed ${build.id} (${formatBytes(size)})\n`)
      } catch (error) {
        if (!(error instanceof ServerRefusal) || error.code !== 'runtime_in_use') throw error
        process.stderr.write(`kept ${build.id}: ${error.message}\n`)
      }
    }
  })
}

/** Builds as a table, the one proven last first. */
function formatBuilds(installed: InstalledBuild[], now: Date): string {
  return printable(
    formatTable(
      [
        { title: 'BUILD' },
        { title: 'KIND' },
        { title: 'VERSION' },
        { title: 'STATE' },
        { title: 'SIZE', align: 'right' },
        { title: 'PROVEN' },
        { title: 'WHY' }
      ],
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
