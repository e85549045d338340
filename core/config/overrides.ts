import { fromText, type JsonSchema } from '../system/schema-check.ts'
import { schemaAt } from './setting-schema.ts'

export interface Override {
  path: string[]
  env: string
  /** Without the dashes. Secrets have no flag, because other users can see command lines. */
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

/** Flags of the command line, as commander names them. Values may still be text. */
export interface ConfigFlags {
  config?: string
  home?: string
  models?: string
  host?: string
  port?: string | number
  logLevel?: string
  insecure?: boolean
  llamaCpp?: string
}

export interface OverriddenSetting {
  path: string[]
  value: unknown
  /** `env CORRAL_PORT` or `flag --port`. */
  origin: string
}

/** The settings from the environment. An empty variable counts as not set. */
export function fromEnvironment(root: JsonSchema, env: NodeJS.ProcessEnv): OverriddenSetting[] {
  return OVERRIDES.flatMap(({ path, env: name }) => {
    const text = env[name]?.trim()
    return text ? [{ path, value: fromText(schemaAt(root, path), text), origin: `env ${name}` }] : []
  })
}

export function fromFlags(root: JsonSchema, flags: ConfigFlags): OverriddenSetting[] {
  return OVERRIDES.flatMap(({ path, flag }) => {
    const key = flag?.replace(/-./g, dashed => dashed[1]!.toUpperCase())
    const flagged = key === undefined ? undefined : flags[key as keyof ConfigFlags]
    if (flagged === undefined) return []
    const value = typeof flagged === 'string' ? fromText(schemaAt(root, path), flagged) : flagged
    return [{ path, value, origin: `flag --${flag}` }]
  })
}
