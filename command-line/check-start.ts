import { lstat, mkdtemp, rm, symlink } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { unknownWarning } from '../core/config/config-error.ts'
import { exposedKeysWarning, type LoadedConfig } from '../core/config/load.ts'
import { errorMessage, isSystemError } from '../core/errors.ts'
import { listenError, readListen } from '../core/http/listening.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import { checkDataDirectory } from '../core/system/data-directory.ts'
import { dataPaths } from '../core/system/data-paths.ts'
import { createLogger } from '../core/system/log.ts'
import { CommandFailure, EXIT } from './command-failure.ts'
import { withPlugins } from './local-service.ts'

const WARN_LEVEL = 40

/**
 * Performs the checks of a server start in a temporary data directory, without starting plugins or listening.
 * @returns the warnings that the server would log
 * @throws CommandFailure with the reason that would stop the server
 */
export async function checkStart(config: LoadedConfig, definitions: readonly PluginDefinition[]): Promise<string[]> {
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
    // The server's allowed addresses depend on whether there are keys. A broken link counts as an error, not as a
    // missing file.
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
    throw new CommandFailure(EXIT.usage, shown(errorMessage(error)), error)
  } finally {
    await rm(home, { recursive: true, force: true })
  }
  return warnings
}

/** Listens briefly on the address. @throws ListenError if that fails, unless another program uses the port */
async function checkAddress(address: { host: string; port: number }, choose?: { port: string; host: string }) {
  const server = createServer()
  try {
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject).listen({ host: address.host, port: address.port }, resolve)
    })
  } catch (error) {
    if (!isSystemError(error, 'EADDRINUSE')) throw listenError(address, error, choose)
  } finally {
    server.close()
  }
}
