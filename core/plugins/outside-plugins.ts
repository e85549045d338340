import { createHash } from 'node:crypto'
import { readdir, readFile, stat } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, isAbsolute, join, sep } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { ConfigError, type ConfigProblem } from '../config/config-error.ts'
import { type ConfigPlaces, expandPath, findFile, findHome } from '../config/config-file.ts'
import { composeConfigSchema } from '../config/setting-schema.ts'
import { distrust } from '../config/trust.ts'
import { errorMessage, whenMissing } from '../errors.ts'
import { dataPaths } from '../system/data-paths.ts'
import { foreignWriter } from '../system/file-writers.ts'
import { isObject } from '../system/json-object.ts'
import { packageRoot } from '../system/package-info.ts'
import { definePlugin, type FoundPlugin, PLUGIN_API, type PluginDefinition } from './plugin.ts'
import { definitionKeyFaults } from './plugin-keys.ts'

const PACKAGE = /^(?:@[a-z0-9~-][\w.~-]*\/)?[a-z0-9~-][\w.~-]*$/i

/** Conditions under which a package names a file for `import` in Node.js. */
const CONDITIONS = new Set(['node', 'import', 'module-sync', 'default'])

/** Files of a package that may change what it does. */
const SOURCE = /\.(?:[cm]?[jt]s|json)$/

/** Returns the path that a plugin is named by; undefined if it is named by its package. @throws Error for a wrong URL */
function pathIn(name: string): string | undefined {
  if (/^file:/i.test(name)) return fileURLToPath(name)
  return /^(?:\.{1,2}|~)(?:[/\\]|$)/.test(name) || isAbsolute(name) ? name : undefined
}

/**
 * Loads the plugins listed under `plugins` in the configuration file, in this order. Loads none if the file is
 * malformed or not trusted, which is reported when the configuration is loaded.
 * @param builtIn the built-in plugins, whose names are taken
 * @param beforeFirst called before the first plugin is loaded
 * @throws ConfigError with each plugin that cannot be loaded, except plugins that declare themselves optional
 */
export async function outsidePlugins(
  places: ConfigPlaces,
  builtIn: readonly PluginDefinition[] = [],
  beforeFirst: () => void = () => {}
): Promise<FoundPlugin[]> {
  const { home } = dataPaths(findHome(places).home, undefined)
  const file = await findFile(places, home)
  if (!file) return []
  const { readYaml } = await import('../config/yaml-file.ts')
  const yaml = readYaml(file.bytes.toString('utf8'), { keep: true })
  const listed = isObject(yaml.value) && Array.isArray(yaml.value.plugins) ? yaml.value.plugins : []
  // The settings without trust are reported when the configuration is loaded.
  if (listed.length === 0 || (await distrust(file, places, home, []))) return []
  beforeFirst()
  const found = new Map<string, FoundPlugin>()
  const problems: ConfigProblem[] = []
  for (const [at, name] of listed.entries()) {
    if (typeof name !== 'string' || name === '' || found.has(name)) continue
    try {
      const plugin = await loadPlugin(name, dirname(file.path), refuseForeign)
      const fault = plugin.optional && (plugin.fault ?? settingsFault(plugin, [...builtIn, ...found.values()]))
      found.set(name, fault ? { ...plugin, fault } : plugin)
    } catch (error) {
      const place = yaml.valuePlace(['plugins', String(at)])
      const where = `${file.shownAs}:${place.line}:${place.column}`
      const message = `The plugin ${JSON.stringify(name)} cannot be loaded: ${errorMessage(error)}.`
      problems.push({ where, file: file.path, ...place, setting: 'plugins', message })
    }
  }
  if (problems.length > 0) throw new ConfigError(problems)
  return [...found.values()]
}

function settingsFault(plugin: PluginDefinition, others: readonly PluginDefinition[]): string | undefined {
  try {
    composeConfigSchema([...others.filter(({ name }) => name === plugin.name), plugin])
    return undefined
  } catch (error) {
    return errorMessage(error)
  }
}

/**
 * Loads the plugin in a module. A plugin that declares itself optional and has a mistake is returned with its `fault`.
 * @param name of a package, a path relative to `base`, or a file URL
 * @param beforeImport called with the module's path; it throws if the module must not be run
 * @throws Error that says what is wrong, as the end of a sentence
 */
export async function loadPlugin(name: string, base: string, beforeImport?: (path: string) => Promise<void>) {
  const place = pathIn(name)
  const { path, folder } = place ? await fileAt(expandPath(place, base)) : await fileOfPackage(name, base)
  await beforeImport?.(path)
  const state = await stateOf(path, folder)
  const known = imported.get(path)
  if (known?.state === state) return known.plugin
  let loaded: { default?: unknown }
  try {
    loaded = await importAgain(path, known && state)
  } catch (error) {
    throw new Error(`${path} fails (${errorMessage(error)})`, { cause: error })
  }
  // Compiled CommonJS modules have a default export inside the default export.
  const { default: outer } = loaded
  const definition = isObject(outer) && isObject(outer.default) ? outer.default : outer
  const fault = definitionFault(definition)
  const isNamed = isObject(definition) && definition.optional === true && typeof definition.name === 'string'
  if (fault !== undefined && !isNamed) throw new Error(`${path} ${fault}`)
  const plugin = { ...definePlugin(definition as never), path, fault: fault && `${path} ${fault}.` } as FoundPlugin
  imported.set(path, { state, plugin })
  return plugin
}

/** The plugins that were imported, by path. */
const imported = new Map<string, { state: string; plugin: FoundPlugin }>()

/** Imports a module, and with a version as if for the first time. */
async function importAgain(path: string, version: string | undefined): Promise<{ default?: unknown }> {
  const { href } = pathToFileURL(path)
  if (version === undefined) return await import(href)
  const { cache } = createRequire(path)
  for (const file of Object.keys(cache)) if (file.startsWith(dirname(path) + sep)) delete cache[file]
  // Modules that it imports get the same version (command-line/plugin-watch.ts).
  return await import(`${href}?corral=${version}`)
}

/** Sizes and times of a plugin's files as a digest: of its file, or of all files of its package. */
async function stateOf(path: string, folder: string | undefined): Promise<string> {
  const files = folder === undefined ? [path] : await sourcesIn(folder)
  const described = files.map(async file => {
    const { size = 0, mtimeMs = 0 } = (await stat(file).catch(whenMissing)) ?? {}
    return `${file} ${size} ${mtimeMs}`
  })
  const text = (await Promise.all(described)).join('\n')
  return createHash('sha256').update(text).digest('hex').slice(0, 16)
}

/** Returns the source files in a folder, without its dependencies. */
async function sourcesIn(folder: string): Promise<string[]> {
  const found: string[] = []
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const file = join(folder, entry.name)
    if (entry.isDirectory() && !/^(?:node_modules|\..*)$/.test(entry.name)) found.push(...(await sourcesIn(file)))
    else if (SOURCE.test(entry.name)) found.push(file)
  }
  return found
}

/** @throws Error if accounts that should not decide what corral runs can change the module */
async function refuseForeign(path: string): Promise<void> {
  const writer = await foreignWriter(path)
  if (writer) throw new Error(`${writer.who} can write ${writer.path}; "${writer.remedy}" ends that`)
}

async function fileAt(path: string): Promise<{ path: string; folder?: string }> {
  const found = await stat(path).catch(whenMissing)
  if (!found) throw new Error(`there is no ${path}`)
  if (!found.isDirectory()) return { path }
  return { path: (await entryIn(path)) ?? join(path, 'index.js'), folder: path }
}

async function fileOfPackage(name: string, base: string): Promise<{ path: string; folder: string }> {
  if (!PACKAGE.test(name)) throw new Error('it is neither a path (./…, ~/… or /…) nor the name of a package')
  // Next to the file that names it, and next to corral.
  for (const from of [base, packageRoot]) {
    for (const folder of createRequire(join(from, 'from.js')).resolve.paths(name) ?? []) {
      const path = await entryIn(join(folder, name))
      if (path) return { path, folder: join(folder, name) }
    }
  }
  throw new Error(`it is not installed; "npm install ${name}" in ${base} does that`)
}

/** The file by which the package in this folder is loaded; undefined if there is no package. */
async function entryIn(folder: string): Promise<string | undefined> {
  const text = await readFile(join(folder, 'package.json'), 'utf8').catch(whenMissing)
  if (text === undefined) return undefined
  const description: unknown = JSON.parse(text)
  const content = isObject(description) ? description : {}
  // A package may declare its contract version. If the version does not match, the package is not even loaded.
  const api = isObject(content.corral) ? content.corral.api : undefined
  if (api !== undefined && api !== PLUGIN_API) throw new Error(wrongApi(api))
  return join(folder, toAuditEntry(content))
}

/** The entry file of a package, from its package.json: https://nodejs.org/api/packages.html#package-entry-points */
export function toAuditEntry({ exports, main }: { exports?: unknown; main?: unknown }): string {
  const pick = (target: unknown): string | undefined => {
    if (typeof target === 'string') return target
    if (Array.isArray(target)) return target.map(pick).find(Boolean)
    if (!isObject(target)) return undefined
    return Object.entries(target)
      .filter(([condition]) => CONDITIONS.has(condition))
      .map(([, inner]) => pick(inner))
      .find(Boolean)
  }
  const own = isObject(exports) && '.' in exports ? exports['.'] : exports
  return pick(own) ?? (typeof main === 'string' && main !== '' ? main : 'index.js')
}

const wrongApi = (api: unknown) =>
  `is written for version ${JSON.stringify(api)} of the plugin contract, and this corral supports version ${PLUGIN_API}`

/** Why the default export of a module is not a plugin, as the end of a sentence. */
export function definitionFault(value: unknown): string | undefined {
  if (!isObject(value)) return 'has no plugin as its default export'
  const { name, api, setup, options, offers = [], needs = [] } = value
  const isList = (list: unknown) => Array.isArray(list) && list.every(entry => typeof entry === 'string')
  if (typeof name !== 'string') return 'exports a plugin without a "name"'
  if (api !== PLUGIN_API) return wrongApi(api ?? null)
  if (typeof setup !== 'function') return 'exports a plugin without a function "setup"'
  if (!isList(offers) || !isList(needs)) return 'exports a plugin whose "offers" or "needs" is not a list of names'
  if (options !== undefined && !(isObject(options) && options.type === 'object')) {
    return 'exports a plugin whose "options" is not a JSON schema of an object'
  }
  const [unknown] = definitionKeyFaults(value)
  if (unknown) return `exports a plugin with a mistake: ${unknown}`
  return undefined
}
