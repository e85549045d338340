import { once } from 'node:events'
import { lstat, mkdtemp, rm, symlink } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { unknownWarning } from '../../core/config/config-error.ts'
import { findHome } from '../../core/config/config-file.ts'
import { describeConfig, formatConfig, inlineYaml } from '../../core/config/config-text.ts'
import { exposedKeysWarning, type LoadedConfig } from '../../core/config/load.ts'
import { setTrust, trustedFiles } from '../../core/config/trust.ts'
import { errorMessage, isSystemError } from '../../core/errors.ts'
import { listenError, readListen } from '../../core/http/listening.ts'
import type { PluginDefinition } from '../../core/plugins/plugin.ts'
import { checkDataDirectory } from '../../core/system/data-directory.ts'
import { dataPaths } from '../../core/system/data-paths.ts'
import { createLogger } from '../../core/system/log.ts'
import { plural } from '../../core/system/plural.ts'
import { misuse } from '../command-failure.ts'
import { type CommandContext, configPlaces, type Options, openConfig, openTrusted } from '../context.ts'
import { displayWidth } from '../display-width.ts'
import { withPlugins } from '../local-service.ts'
import { formatTable, outputWidth, printNote, printResult, printText, wrapLines } from '../output.ts'

export async function configCheck(context: CommandContext, { strict }: Options<'strict'>): Promise<void> {
  const config = await openConfig(context)
  const { file } = config
  const warnings = await checkStart(config, await context.definitions())
  for (const warning of warnings) printNote(`warning: ${warning}`)
  const count = plural(warnings.length, 'warning')
  if (strict && warnings.length > 0) {
    const advice = `Fix ${warnings.length === 1 ? 'it' : 'them'}, or leave out --strict.`
    throw misuse(`${file ?? 'The configuration'} has ${count}. ${advice}`)
  }
  const place = file ?? 'There is no configuration file, so the defaults apply'
  printText(wrapLines(`${place}: no errors${warnings.length === 0 ? '' : `, ${count}`}.`))
}

const WARN_LEVEL = 40

/**
 * Performs the checks of a server start in a temporary data directory, without starting plugins or listening.
 * @returns the warnings that the server would log
 * @throws CommandFailure with the reason that would stop the server
 */
async function checkStart(config: LoadedConfig, definitions: readonly PluginDefinition[]): Promise<string[]> {
  const { core, paths, sections } = config
  const home = await mkdtemp(join(tmpdir(), 'corral-check-'))
  const shown = (text: string) => text.replaceAll(home, paths.home)
  const exposed = await exposedKeysWarning(config)
  const warnings = [...config.unknown.map(unknownWarning), ...(exposed ? [exposed] : [])]
  const log = createLogger('warn', {
    show: ({ level, msg = '' }) => void (level >= WARN_LEVEL && warnings.push(shown(msg)))
  })
  try {
    await checkDataDirectory(paths)
    // The allowed addresses depend on whether there are keys. A broken link counts as an error, not as a missing file.
    const keys = join(paths.home, 'keys.json')
    if (await lstat(keys).catch(() => undefined)) await symlink(keys, join(home, 'keys.json'))
    const alone = {
      ...config,
      core: { ...core, log_levels: {} },
      paths: dataPaths(home, undefined),
      sections: { ...sections, storage: { ...sections.storage, demo_model: false } }
    }
    await withPlugins(alone, definitions, log, async () => {})
    await checkAddress(core)
    for (const [name, { enabled, listen }] of Object.entries(sections)) {
      if (enabled === false || typeof listen !== 'string') continue
      const setting = `${name}.listen`
      const address = readListen(listen, core.port, { setting, served: '', path: '', example: 0 })
      if (address) await checkAddress(address, { port: `in ${setting}`, host: `in ${setting}` })
    }
  } catch (error) {
    for (const warning of warnings) process.stderr.write(`warning: ${warning}\n`)
    throw misuse(shown(errorMessage(error)), error)
  } finally {
    await rm(home, { recursive: true, force: true })
  }
  return warnings
}

/** Listens briefly on the address. @throws ListenError if that fails, unless another program uses the port */
async function checkAddress({ host, port }: { host: string; port: number }, choose?: { port: string; host: string }) {
  const server = createServer()
  try {
    await once(server.listen({ host, port }), 'listening')
  } catch (error) {
    if (!isSystemError(error, 'EADDRINUSE')) throw listenError({ host, port }, error, choose)
  } finally {
    server.close()
  }
}

type TrustOptions = Options<'yes' | 'remove' | 'list'>

export async function configTrust(context: CommandContext, { yes, remove, list }: TrustOptions): Promise<void> {
  const { home } = dataPaths(findHome(configPlaces(context)).home, undefined)
  const path = join(context.cwd, 'config.yaml')
  if (list) return printText(Object.keys(await trustedFiles(home)).join('\n') || 'No file is trusted.')
  if (remove) {
    await setTrust(home, path, undefined)
    return printNote(`${path} is not trusted.`)
  }
  const before = await trustedFiles(home)
  const { file } = await openTrusted(context, yes)
  if (file !== path) {
    const other = file ? `. ${file} applies without trust` : ''
    throw misuse(`There is no ${path} to trust${other}.`)
  }
  if (isDeepStrictEqual(before, await trustedFiles(home))) printNote(`All settings of ${path} already apply.`)
}

export async function configShow(context: CommandContext, { json }: Options): Promise<void> {
  const loaded = await openConfig(context)
  printResult(json, describeConfig(loaded, await context.definitions()), description => {
    const text = formatConfig(description)
    if (text.split('\n').every(line => displayWidth(line) <= outputWidth())) return text
    const rows = description.settings.map(({ name, value, origin }) => [name, inlineYaml(value), origin])
    return formatTable(['SETTING', 'VALUE', 'FROM'], rows)
  })
}
