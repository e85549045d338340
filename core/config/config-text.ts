import { stringify } from 'yaml'
import type { PluginDefinition } from '../plugins/plugin.ts'
import type { LoadedConfig } from './load.ts'
import { composeConfigSchema, isSecret, listSettings, settingName } from './setting-schema.ts'

export function inlineYaml(value: unknown): string {
  return stringify(value, { collectionStyle: 'flow', flowCollectionPadding: false, lineWidth: 0 }).trim()
}

function masked(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(masked)
  return value === '' ? '' : '(hidden)'
}

/** Every setting with its effective value and origin. `home` comes first. Secrets are masked. */
export function describeConfig(config: LoadedConfig, definitions: readonly PluginDefinition[]) {
  const { root } = composeConfigSchema(definitions)
  const describe = (name: string, value: unknown) => ({ name, value, origin: config.origins[name] ?? 'default' })
  const settings = listSettings(root, { ...config.core, ...config.sections }).map(({ path, value }) =>
    describe(settingName(path), isSecret(root, path) ? masked(value) : value)
  )
  return { file: config.file ?? null, settings: [describe('home', config.paths.home), ...settings] }
}

/** The description as a human-readable table: name, value, origin. */
export function formatConfig({ file, settings }: ReturnType<typeof describeConfig>): string {
  const rows = settings.map(({ name, value, origin }) => [name, inlineYaml(value), origin] as const)
  const widths = [0, 1].map(column => Math.min(48, Math.max(...rows.map(row => row[column]!.length))))
  const lines = rows.map(
    ([name, value, origin]) => `${name.padEnd(widths[0]!)}  ${value.padEnd(widths[1]!)}  ${origin}`
  )
  return [file ? `Configuration file: ${file}` : 'No configuration file was found.', '', ...lines].join('\n')
}
