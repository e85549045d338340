import { stat } from 'node:fs/promises'
import { isDeepStrictEqual } from 'node:util'
import type { PluginDefinition } from '../plugins/plugin.ts'
import { isObject } from '../system/json-object.ts'
import type { JsonSchema } from '../system/schema-check.ts'
import { freeze, type LoadedConfig } from './load.ts'
import { setAt, valueAt } from './mistakes.ts'
import { composeConfigSchema, hasMark, isGroup, isSecret, listSettings, settingName } from './setting-schema.ts'

/** A setting whose value changed. */
export interface SettingChange {
  path: string[]
  /** As in messages: `limits.max_tokens`. */
  name: string
  /** Undefined if the setting was, or is, absent. */
  from: unknown
  to: unknown
  /** Whether its values must not be shown. */
  isSecret: boolean
  /** Whether it takes effect only after a restart. */
  restart: boolean
}

/**
 * The differences between two configurations, in the schema's order.
 * @param canReload whether the plugin of this name takes new options while it runs
 */
export function changesBetween(
  root: JsonSchema,
  before: LoadedConfig,
  after: LoadedConfig,
  canReload: (plugin: string) => boolean
): SettingChange[] {
  const [old, next] = [getValues(before), getValues(after)]
  const paths = new Map([...settingsIn(root, next), ...settingsIn(root, old)])
  return [...paths].flatMap(([name, path]) => {
    const [from, to] = [valueAt(old, path), valueAt(next, path)]
    if (isDeepStrictEqual(from, to)) return []
    const ofPlugin = path[0]! in after.sections || path[0]! in before.sections
    const restart = hasMark(root, path, 'restart') || (ofPlugin && !canReload(path[0]!))
    return [{ path, name, from, to, isSecret: isSecret(root, path), restart }]
  })
}

/** The configuration `after`, with the values from `before` of settings that need a restart. */
export function withoutRestarts(after: LoadedConfig, changes: readonly SettingChange[]): LoadedConfig {
  const restarts = changes.filter(({ restart }) => restart)
  if (restarts.length === 0) return after
  const values = structuredClone(getValues(after))
  for (const { path, from } of restarts) {
    if (from !== undefined) setAt(values, path, structuredClone(from))
    else delete (valueAt(values, path.slice(0, -1)) as Record<string, unknown>)[path.at(-1)!]
  }
  const isSection = (name: string) => name in after.sections
  const pick = (ofPlugins: boolean) =>
    Object.fromEntries(Object.entries(values).filter(([name]) => isSection(name) === ofPlugins))
  return freeze({
    ...after,
    core: pick(false) as LoadedConfig['core'],
    sections: pick(true) as LoadedConfig['sections']
  })
}

/** Changes in the file that have no effect because a flag or the environment overrides the setting. */
export function overriddenChanges(before: LoadedConfig, after: LoadedConfig): { setting: string; by: string }[] {
  return Object.entries(after.overridden).flatMap(([setting, value]) =>
    isDeepStrictEqual(before.overridden[setting], value) ? [] : [{ setting, by: after.origins[setting]! }]
  )
}

const getValues = ({ core, sections }: LoadedConfig): Record<string, unknown> => ({ ...core, ...sections })

/** All settings below a group by name. An empty group is left out. */
function settingsIn(root: JsonSchema, values: unknown): [string, string[]][] {
  return listSettings(root, values).flatMap(({ path, value, schema }) =>
    isGroup(schema) && isObject(value) ? [] : [[settingName(path), path] as [string, string[]]]
  )
}

/** The current configuration, for `corral config show --json`. Secrets are masked. */
export interface ConfigDescription {
  /** Absolute path of the file that was read; null if there was none. */
  file: string | null
  settings: { name: string; value: unknown; origin: string }[]
}

function masked(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(masked)
  return value === '' ? '' : '(hidden)'
}

/** Every setting with its effective value and origin. `home` comes first. */
export function describeConfig(config: LoadedConfig, definitions: readonly PluginDefinition[]): ConfigDescription {
  const { root } = composeConfigSchema(definitions)
  const settings = listSettings(root, { ...config.core, ...config.sections }).map(({ path, value }) => {
    const name = settingName(path)
    const shown = isSecret(root, path) ? masked(value) : value
    return { name, value: shown, origin: config.origins[name] ?? 'default' }
  })
  const home = { name: 'home', value: config.paths.home, origin: config.origins.home ?? 'default' }
  return { file: config.file ?? null, settings: [home, ...settings] }
}

/** A warning if the configuration file contains API keys and other users can read it. */
export async function exposedKeysWarning({
  file,
  origins,
  sections
}: Pick<LoadedConfig, 'file' | 'origins' | 'sections'>): Promise<string | undefined> {
  const origin = origins['security.api_keys'] ?? 'default'
  // Windows does not use mode bits.
  if (file === undefined || origin === 'default' || origin.startsWith('env ') || process.platform === 'win32') {
    return undefined
  }
  // The default config.yaml has an empty list.
  const keys = sections.security?.api_keys
  if (!Array.isArray(keys) || keys.length === 0) return undefined
  const { mode } = await stat(file)
  if ((mode & 0o077) === 0) return undefined
  return `Other users of this machine can read the API keys in ${file}. Run "chmod 600 ${file}", or create keys with "corral key create", which stores only hashes.`
}
