import { stat } from 'node:fs/promises'
import { dirname } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { parseOptions } from '../models/options.ts'
import type { FoundPlugin } from '../plugins/plugin.ts'
import { type DataPaths, dataPaths } from '../system/data-paths.ts'
import { isObject } from '../system/json-object.ts'
import type { JsonSchema } from '../system/schema-check.ts'
import { ConfigError, type ConfigProblem } from './config-error.ts'
import { type ConfigFile, type ConfigPlaces, expandPath, findFile, findHome } from './config-file.ts'
import type { CoreConfig } from './core-schema.ts'
import { findMistakes, optionGroups, setAt, valueAt, withoutEmpty } from './mistakes.ts'
import { fromEnvironment, fromFlags, type OverriddenSetting } from './overrides.ts'
import { type ConfigSchema, composeConfigSchema, hasMark, listSettings, settingName } from './setting-schema.ts'
import { distrust } from './trust.ts'

/** A loaded configuration. All of it is frozen. */
export interface LoadedConfig {
  core: Readonly<CoreConfig>
  /** Each plugin's options by its name. Options of optional plugins include `enabled`. */
  sections: Readonly<Record<string, Readonly<Record<string, unknown>>>>
  paths: DataPaths
  file: string | undefined
  /** The origin of each setting by name: `default`, `config.yaml:12:3`, `env CORRAL_PORT`, `flag --port`. */
  origins: Readonly<Record<string, string>>
  /** The file's values, by name, of settings that a flag or the environment overrides. */
  overridden: Readonly<Record<string, unknown>>
  /** Settings in the file that are unknown and ignored: they may be misspelled, or belong to another version. */
  unknown: readonly ConfigProblem[]
}

type Values = Record<string, unknown>

/** Renames options from their aliases to their canonical names. */
function canonicalOptions(values: Values, note: (group: string[], canonical: string, spelled: string) => void): void {
  for (const group of optionGroups(values)) {
    const options = valueAt(values, group) as Values
    const renamed: Values = {}
    for (const [spelled, value] of Object.entries(options)) {
      const { load, sampling } = parseOptions({ [spelled]: value })
      const [canonical, checked] = Object.entries({ ...sampling, ...load })[0] ?? [spelled, value]
      if (canonical !== spelled && Object.hasOwn(options, canonical)) continue
      renamed[canonical] = checked
      note(group, canonical, spelled)
    }
    setAt(values, group, renamed)
  }
}

function resolvePaths(schema: ConfigSchema, values: Values, base: string): void {
  for (const setting of listSettings(schema.root, values)) {
    const resolved = withPaths(setting.schema, setting.value, base)
    if (resolved !== setting.value) setAt(values, setting.path, resolved)
  }
}

function withPaths(schema: JsonSchema | undefined, value: unknown, base: string): unknown {
  if (schema?.format === 'corral-path') return expandPath(String(value), base)
  if (schema?.format === 'corral-program' && /[/\\]/.test(String(value))) return expandPath(String(value), base)
  const { items, properties } = schema ?? {}
  if (items && Array.isArray(value)) return value.map(entry => withPaths(items, entry, base))
  if (!properties || !isObject(value)) return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, withPaths(properties[key], inner, base)]))
}

class Layer {
  values: Values = {}
  readonly origins = new Map<string, string>()
  readonly problems: ConfigProblem[] = []
  readonly unknown: ConfigProblem[] = []
  /** Settings that are accepted only in a trusted file. */
  readonly guarded: ConfigProblem[] = []
}

async function fileLayer(schema: ConfigSchema, file: ConfigFile, outside: ReadonlySet<string>): Promise<Layer> {
  const layer = new Layer()
  const problemAt = (place: { line: number; column: number }, message: string, setting?: string): ConfigProblem => {
    const where = `${file.shownAs}:${place.line}:${place.column}`
    return { where, file: file.path, ...place, ...(setting ? { setting } : {}), message }
  }
  let text: string
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(file.bytes)
  } catch {
    layer.problems.push(problemAt({ line: 1, column: 1 }, 'The file is not UTF-8 text; save it as UTF-8.'))
    return layer
  }
  // Loaded lazily: most servers have no file to read.
  const { readYaml } = await import('./yaml-file.ts')
  const yaml = readYaml(text)
  for (const { place, message } of yaml.mistakes) layer.problems.push(problemAt(place, message))
  const values = withoutEmpty(schema.root, yaml.value ?? {})
  for (const { path, atKey, unknown, message } of findMistakes(schema, values)) {
    const problem = problemAt(atKey ? yaml.keyPlace(path) : yaml.valuePlace(path), message, settingName(path))
    if (unknown === 'option') layer.unknown.push({ ...problem, passedOn: true })
    // An unknown setting outside plugins may belong to another version. Plugins know all of their settings.
    else if (unknown && !(path.length > 1 && outside.has(path[0]!))) {
      layer.unknown.push(problem)
      delete (valueAt(values, path.slice(0, -1)) as Values)[path.at(-1)!]
    } else layer.problems.push(problem)
  }
  for (const list of [layer.problems, layer.unknown]) list.sort(byPlace)
  if (layer.problems.length > 0) return layer

  layer.values = values as Values
  const origin = (path: string[]) => problemAt(yaml.keyPlace(path), '').where
  for (const { path, value, schema: described } of listSettings(schema.root, values)) {
    const name = settingName(path)
    layer.origins.set(name, origin(path))
    const isOff = path.length === 2 && path[1] === 'enabled' && value === false
    if (isOff || !hasMark(schema.root, path, 'needsTrust') || isDeepStrictEqual(value, described?.default)) continue
    layer.guarded.push(problemAt(yaml.keyPlace(path), '', name))
  }
  layer.guarded.sort(byPlace)
  canonicalOptions(layer.values, (group, canonical, spelled) => {
    layer.origins.set(settingName([...group, canonical]), origin([...group, spelled]))
  })
  resolvePaths(schema, layer.values, dirname(file.path))
  return layer
}

const byPlace = (a: ConfigProblem, b: ConfigProblem) => a.line! - b.line! || a.column! - b.column!

function overridesLayer(schema: ConfigSchema, overrides: OverriddenSetting[], cwd: string): Layer {
  const layer = new Layer()
  for (const { path, value, origin } of overrides) {
    const alone: Values = {}
    setAt(alone, path, value)
    for (const { message } of findMistakes(schema, alone)) {
      layer.problems.push({ where: origin, setting: settingName(path), message })
    }
    setAt(layer.values, path, value)
    layer.origins.set(settingName(path), origin)
  }
  if (layer.problems.length === 0) resolvePaths(schema, layer.values, cwd)
  return layer
}

/** Merges `over` into `under`: groups are merged setting by setting, anything else is replaced. */
function merge(under: Values, over: Values): Values {
  const merged = { ...under }
  for (const [key, value] of Object.entries(over)) {
    const below = merged[key]
    merged[key] = isObject(below) && isObject(value) ? merge(below, value) : value
  }
  return merged
}

/** Splits the values of a configuration into those of the core and the plugins' sections. */
export function splitValues(values: Values, isSection: (name: string) => boolean) {
  const pick = (ofPlugins: boolean): unknown =>
    Object.fromEntries(Object.entries(values).filter(([name]) => isSection(name) === ofPlugins))
  return { core: pick(false) as CoreConfig, sections: pick(true) as Record<string, Values> }
}

export function freeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null) {
    for (const inner of Object.values(value)) freeze(inner)
    Object.freeze(value)
  }
  return value
}

/**
 * Loads the configuration from flags, environment, one file and the schema's defaults, in this precedence.
 * @throws ConfigError with all mistakes; PluginError if a plugin's own schema is unusable
 */
export async function loadConfig(
  sources: ConfigPlaces & { definitions: readonly FoundPlugin[] }
): Promise<LoadedConfig> {
  const schema = composeConfigSchema(sources.definitions)
  const outside = new Set(sources.definitions.filter(({ path }) => path !== undefined).map(({ name }) => name))
  const { home, origin: homeOrigin } = findHome(sources)
  const data = dataPaths(home, undefined).home
  const file = await findFile(sources, data)
  const layers = [
    ...(file ? [await fileLayer(schema, file, outside)] : []),
    overridesLayer(schema, fromEnvironment(schema.root, sources.env), sources.cwd),
    overridesLayer(schema, fromFlags(schema.root, sources.flags), sources.cwd)
  ]
  const problems = layers.flatMap(layer => layer.problems)
  if (problems.length > 0) {
    const unasked = file?.foundIn && problems.some(problem => problem.file)
    const hint = `${file?.path} was read because it is in ${file?.foundIn}; --config names another file.`
    const unknown = layers.flatMap(layer => layer.unknown)
    throw new ConfigError([...problems, ...unknown], { hint: unasked ? hint : undefined })
  }
  const [{ guarded }] = layers as [Layer]
  const distrusted = file && guarded.length > 0 && (await distrust(file, sources, data, guarded))
  if (distrusted) throw distrusted

  const values = layers.reduce<Values>((under, { values }) => merge(under, values), {})
  const left = schema.check(values)
  if (left.length > 0)
    throw new Error(`Settings that are valid on their own are not valid together: ${left[0]!.message}`)
  const origins: Record<string, string> = { home: homeOrigin }
  const overridden: Record<string, unknown> = {}
  for (const { path } of listSettings(schema.root, values)) {
    const name = settingName(path)
    const [decides, below] = layers.filter(layer => layer.origins.has(name)).reverse()
    origins[name] = decides?.origins.get(name) ?? 'default'
    if (below && file && below === layers[0]) overridden[name] = valueAt(below.values, path)
  }

  const names = new Set(sources.definitions.map(({ name }) => name))
  const { core, sections } = splitValues(values, name => names.has(name))
  return freeze({
    core,
    sections,
    paths: dataPaths(home, core.models_directory),
    file: file?.path,
    origins,
    overridden,
    unknown: layers.flatMap(layer => layer.unknown)
  })
}

/** A warning if the configuration file contains API keys and other users can read it. */
export async function exposedKeysWarning({
  file,
  origins,
  sections
}: Pick<LoadedConfig, 'file' | 'origins' | 'sections'>): Promise<string | undefined> {
  const origin = origins['security.api_keys'] ?? 'default'
  // The default config.yaml has an empty list.
  const keys = sections.security?.api_keys
  const hasKeys = !/^default$|^env /.test(origin) && Array.isArray(keys) && keys.length > 0
  // Windows does not use mode bits.
  if (file === undefined || !hasKeys || process.platform === 'win32') return undefined
  const { mode } = await stat(file)
  if ((mode & 0o077) === 0) return undefined
  return `Other users of this machine can read the API keys in ${file}. Run "chmod 600 ${file}", or create keys with "corral key create", which stores only hashes.`
}
