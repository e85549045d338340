import { mkdir, readdir, writeFile } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { errorMessage, isSystemError } from '../../core/errors.ts'
import { loadPlugin } from '../../core/plugins/outside-plugins.ts'
import type { PluginReport } from '../../core/plugins/plugin-report.ts'
import { CommandFailure, EXIT, failure } from '../command-failure.ts'
import type { CommandContext } from '../context.ts'
import { formatTable, printJson, printText } from '../output.ts'
import { letPluginsImportCorral } from '../plugin-imports.ts'
import { type PluginKind, pluginSkeleton } from '../plugin-skeleton.ts'
import { watchPlugins } from '../plugin-watch.ts'
import { ask } from '../server-connection.ts'

export async function pluginList(context: CommandContext, { json }: { json?: boolean }): Promise<void> {
  const { plugins } = await ask<{ plugins: PluginReport[] }>(context, 'GET', '/api/plugins')
  if (json) return printJson({ plugins })
  const rows = plugins.map(({ name, state, path = 'corral', description, reason = description }) => [
    name,
    state,
    path,
    reason
  ])
  printText(formatTable(['NAME', 'STATE', 'FROM', 'DESCRIPTION'], rows))
}

/** Maximum duration of the request that runs the plugin's hooks. */
const HOOK_WAIT_MS = 10_000

export async function pluginCheck({ cwd }: CommandContext, path: string): Promise<void> {
  const [{ pluginContract, startTestCorral }, { watchedPlugin }, { watchGlobals }] = await Promise.all([
    import('../../testing/index.ts'),
    import('../../testing/watched-plugin.ts'),
    import('../../testing/changed-globals.ts')
  ])
  letPluginsImportCorral()
  watchPlugins()
  let close = async () => {}
  // A plain start first, because corral's own modules may change globals too.
  await (await startTestCorral()).close()
  const changedGlobals = watchGlobals()
  try {
    // Tried as a path first, so that `check mine` finds the folder.
    const found = await loadPlugin(resolve(cwd, path), cwd).catch(async error => {
      if (/there is no /.test(errorMessage(error)) && !/^[./~]/.test(path)) return await loadPlugin(path, cwd)
      throw error
    })
    if (found.fault !== undefined) throw found.fault
    const { path: file, fault: _, ...definition } = found
    pluginContract(definition)
    printText(`ok    ${file} loads: plugin "${found.name}" for API version ${found.api}`)
    // A test server without llama.cpp, in a temporary folder.
    const { plugin, added } = watchedPlugin(definition)
    const corral = await startTestCorral({ plugins: [plugin] })
    close = () => corral.close()
    const report = await corral.plugin(found.name)
    if (report?.state !== 'active') throw new Error(report?.reason ?? 'it was not started')
    printText('ok    it starts together with the built-in plugins')
    const messages = [{ role: 'user', content: 'Hello there' }]
    // The reply does not matter. The request only runs the hooks.
    const asked = corral.json('/v1/chat/completions', { model: 'corral/tiny-chat', messages }).catch(() => undefined)
    await Promise.race([asked, sleep(HOOK_WAIT_MS, undefined, { ref: false })])
    const changed = changedGlobals()
    if (changed.length > 0) {
      const names = changed.slice(0, 10).join(', ')
      throw new Error(`it changes ${names}, which the whole server shares. Leave these unchanged`)
    }
    const { needs, services, routes, hooks, web } = report
    const offers = {
      needs,
      services,
      routes,
      page: web ? [`${web.title} (${web.path})`] : [],
      hooks,
      engines: added.providers.map(({ name }) => name),
      models: added.sources.flatMap(source => source.models().map(({ name }) => name)),
      hubs: added.hubs.map(
        ({ name, prefixes }) => `${name} (corral pull ${prefixes.map(each => `${each}…`).join(', ')})`
      )
    }
    for (const [what, list] of Object.entries(offers)) {
      if (list.length > 0) printText(`${what.padEnd(9)} ${list.join(', ')}`)
    }
    if (!report.optional) printText('note  it is not optional, so the server does not start when the plugin fails')
  } catch (error) {
    const message = errorMessage(error)
    const [, entry, missing] = /^(\S.*) fails \(Cannot find module '(.*?)'/.exec(message) ?? []
    const build =
      missing !== undefined && missing === entry ? '. If it is not built yet, run "npm run build" in its folder' : ''
    throw failure(`The plugin ${path} cannot be used: ${message.replace(/\.$/, '')}${build}.`, error)
  } finally {
    await close()
  }
}

export async function pluginNew({ cwd }: CommandContext, kind: PluginKind, path: string): Promise<void> {
  const folder = resolve(cwd, path)
  const name = basename(folder)
  const [{ builtInPlugins }, { composeConfigSchema }, { Type }] = await Promise.all([
    import('../../plugins/built-in.ts'),
    import('../../core/config/setting-schema.ts'),
    import('typebox')
  ])
  if (builtInPlugins.some(plugin => plugin.name === name)) {
    throw new CommandFailure(EXIT.usage, `corral already has a plugin named "${name}". Choose another name.`)
  }
  try {
    // Rejects names that cannot be a section of the configuration.
    composeConfigSchema([{ name, api: 1, description: '', options: Type.Object({}), setup: () => ({}) }])
  } catch (error) {
    throw new CommandFailure(EXIT.usage, errorMessage(error), error)
  }
  const present = await readdir(folder).catch(error => {
    if (isSystemError(error, 'ENOENT')) return []
    throw error
  })
  if (present.length > 0) throw new CommandFailure(EXIT.usage, `${folder} is not empty. Choose a new folder.`)
  for (const [file, text] of Object.entries(await pluginSkeleton(kind, name))) {
    await mkdir(dirname(join(folder, file)), { recursive: true })
    await writeFile(join(folder, file), text)
  }
  printText(`Created the ${kind} "${name}" in ${folder}. Next:

  cd ${path}
  npm install
  npm test
  corral plugin check .`)
}
