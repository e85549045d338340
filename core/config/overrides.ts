import type { JsonSchema } from '../system/schema-check.ts'
import { schemaAt } from './setting-schema.ts'

/** A setting that the environment or a flag can give. */
export interface Override {
  path: string[]
  env: string
  /** Without the dashes; flags reach `loadConfig` in camel case. A secret has none: command lines are public. */
  flag?: string
}

export const OVERRIDES: readonly Override[] = [
  { path: ['models_directory'], env: 'CORRAL_MODELS', flag: 'models' },
  { path: ['host'], env: 'CORRAL_HOST', flag: 'host' },
  { path: ['port'], env: 'CORRAL_PORT', flag: 'port' },
  { path: ['log_level'], env: 'CORRAL_LOG_LEVEL', flag: 'log-level' },
  { path: ['security', 'origins'], env: 'CORRAL_ORIGINS' },
  { path: ['security', 'api_keys'], env: 'CORRAL_API_KEYS' },
  { path: ['security', 'insecure'], env: 'CORRAL_INSECURE', flag: 'insecure' },
  { path: ['runtimes', 'llama_cpp'], env: 'CORRAL_LLAMA_CPP', flag: 'llama-cpp' }
]

/** What the command line gives, as commander names it. Values may still be text. */
export interface ConfigFlags {
  /** Path of the configuration file. */
  config?: string
  /** The data directory. */
  home?: string
  models?: string
  host?: string
  port?: string | number
  logLevel?: string
  insecure?: boolean
  llamaCpp?: string
}

/** One setting that was given outside the file. */
export interface GivenSetting {
  path: string[]
  value: unknown
  /** `env CORRAL_PORT` or `flag --port`. */
  origin: string
}

/** A text as the value its setting wants; text that is none of its kind stays as it is, for the check to tell. */
function fromText(schema: JsonSchema | undefined, text: string): unknown {
  const types = [schema?.type ?? []].flat()
  if (types.includes('array')) {
    return text
      .split(',')
      .map(part => part.trim())
      .filter(part => part !== '')
  }
  if (types.includes('boolean')) {
    if (/^(1|true|yes|on)$/i.test(text)) return true
    if (/^(0|false|no|off)$/i.test(text)) return false
  }
  const numeric = !types.includes('string') && (types.includes('integer') || types.includes('number'))
  return numeric && /^[-+]?\d+(\.\d+)?$/.test(text.trim()) ? Number(text) : text
}

/** The settings that the environment gives. An empty variable counts as not set. */
export function fromEnvironment(root: JsonSchema, env: NodeJS.ProcessEnv): GivenSetting[] {
  return OVERRIDES.flatMap(({ path, env: name }) => {
    const text = env[name]?.trim()
    return text ? [{ path, value: fromText(schemaAt(root, path), text), origin: `env ${name}` }] : []
  })
}

/** The settings that flags give. */
export function fromFlags(root: JsonSchema, flags: ConfigFlags): GivenSetting[] {
  return OVERRIDES.flatMap(({ path, flag }) => {
    const key = flag?.replace(/-./g, dashed => dashed[1]!.toUpperCase())
    const given = key === undefined ? undefined : flags[key as keyof ConfigFlags]
    if (given === undefined) return []
    const value = typeof given === 'string' ? fromText(schemaAt(root, path), given) : given
    return [{ path, value, origin: `flag --${flag}` }]
  })
}
