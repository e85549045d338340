import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { errorMessage, whenMissing } from '../../core/errors.ts'
import { loadPlugin } from '../../core/plugins/outside-plugins.ts'
import type { PluginReport } from '../../core/plugins/plugin-report.ts'
import { namesIn } from '../../core/system/folder-names.ts'
import { packageRoot, version } from '../../core/system/package-info.ts'
import { failure, misuse } from '../command-failure.ts'
import type { CommandContext, Options } from '../context.ts'
import { formatTable, printResult, printText } from '../output.ts'
import { letPluginsImportCorral, watchPlugins } from '../plugin-watch.ts'
import { ask } from '../server-connection.ts'
import { fillTemplate } from '../shipped-text.ts'

export async function pluginList(context: CommandContext, { json }: Options): Promise<void> {
  printResult(json, await ask<{ plugins: PluginReport[] }>(context, 'GET', '/api/plugins'), ({ plugins }) => {
    const rows = plugins.map(({ name, state, path = 'corral', description, reason = description }) => [
      ...[name, state, path],
      reason
    ])
    return formatTable(['NAME', 'STATE', 'FROM', 'DESCRIPTION'], rows)
  })
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
      hubs: added.hubs.map(({ name, prefixes }) => {
        const pulls = prefixes.map(each => `${each}…`).join(', ')
        return `${name} (corral pull ${pulls})`
      })
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

const curl = (path: string, body: string) => `curl http://127.0.0.1:11435${path} -d '${body}'`
const chat = (model: string) =>
  curl('/v1/chat/completions', `{"model": "${model}", "messages": [{"role": "user", "content": "Hello there"}]}`)

/** For each kind, an example, the names in it that the new plugin's name replaces, and a command that tries the plugin. */
const SKELETONS = {
  engine: {
    example: 'echo-engine',
    names: /\becho(-engine)?(?=['/])/g,
    trial: (name: string) => chat(`${name}/parrot`)
  },
  filter: { example: 'request-filter', names: /request-filter/g, trial: () => chat('corral/tiny-chat') },
  hub: { example: 'web-hub', names: /web-hub/g, trial: (name: string) => `corral pull ${name}:owner/name` },
  surface: {
    example: 'describe-api',
    names: /describe-api/g,
    trial: (name: string) => curl(`/${name}/describe`, '{"model": "corral/tiny-chat"}')
  }
}

export type PluginKind = keyof typeof SKELETONS
export const KINDS = Object.keys(SKELETONS) as PluginKind[]

/** The `corral` dependency of a new plugin: the version if npm installed this one from a registry, or else its folder. */
async function ownDependency(): Promise<string> {
  // npm's record of the node_modules folder that contains this package.
  const record = await readFile(join(packageRoot, '..', '.package-lock.json'), 'utf8').catch(whenMissing)
  const { packages } = JSON.parse(record ?? '{}') as { packages?: Record<string, { resolved?: string }> }
  const resolved = packages?.['node_modules/corral']?.resolved ?? ''
  return /^https?:.*\/-\//.test(resolved) ? `^${version}` : `file:${packageRoot}`
}

/** The files of a new plugin by path: a renamed copy of an example. */
export async function pluginSkeleton(kind: PluginKind, name: string): Promise<Record<string, string>> {
  const { example, names, trial } = SKELETONS[kind]
  const copy = async (file: string) =>
    (await readFile(join(packageRoot, 'examples', example, file), 'utf8')).replace(names, name)
  const corral = await ownDependency()
  const values = {
    name,
    example,
    // A path may contain backslashes.
    corral: JSON.stringify(corral).slice(1, -1),
    trial: trial(name),
    folder: corral.startsWith('file:') ? '' : []
  }
  const text = (file: string) => fillTemplate(`plugin/${file}`, values)
  return {
    'package.json': text('manifest.json'),
    'tsconfig.json': text('compiler.json'),
    '.gitignore': text('gitignore'),
    'README.md': text('README.md'),
    'src/index.ts': await copy('index.ts'),
    'src/index.test.ts': await copy('index.test.ts')
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
    throw misuse(`corral already has a plugin named "${name}". Choose another name.`)
  }
  try {
    // Rejects names that cannot be a section of the configuration.
    composeConfigSchema([{ name, api: 1, description: '', options: Type.Object({}), setup: () => ({}) }])
  } catch (error) {
    throw misuse(errorMessage(error), error)
  }
  if ((await namesIn(folder)).length > 0) throw misuse(`${folder} is not empty. Choose a new folder.`)
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
