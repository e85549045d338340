import { isDeepStrictEqual } from 'node:util'
import { isObject } from '../system/json-object.ts'
import type { JsonSchema } from '../system/schema-check.ts'
import { freeze, type LoadedConfig } from './load.ts'
import { setAt, valueAt } from './mistakes.ts'
import { hasMark, isGroup, isSecret, listSettings, settingName } from './setting-schema.ts'

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
  const [old, next] = [valuesOf(before), valuesOf(after)]
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
  const values = structuredClone(valuesOf(after))
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

const valuesOf = ({ core, sections }: LoadedConfig): Record<string, unknown> => ({ ...core, ...sections })

/** All settings below a group by name. An empty group is left out. */
function settingsIn(root: JsonSchema, values: unknown): [string, string[]][] {
  return listSettings(root, values).flatMap(({ path, value, schema }) =>
    isGroup(schema) && isObject(value) ? [] : [[settingName(path), path] as [string, string[]]]
  )
}
