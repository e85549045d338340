import { join } from 'node:path'
import type { Test } from 'tap'
import { Type } from 'typebox'
import { ConfigError, type ConfigProblem } from '../../core/config/config-error.ts'
import { Bytes, Duration, Path } from '../../core/config/core-schema.ts'
import { type LoadedConfig, loadConfig } from '../../core/config/load.ts'
import type { ConfigFlags } from '../../core/config/overrides.ts'
import { definePlugin, type FoundPlugin } from '../../core/plugins/plugin.ts'

const security = definePlugin({
  name: 'security',
  api: 1,
  description: 'Who may call',
  options: Type.Object({
    origins: Type.Array(Type.String({ minLength: 1 }), { default: [], description: 'Further origins' }),
    api_keys: Type.Array(Type.String({ minLength: 3 }), { default: [], writeOnly: true, description: 'Keys' }),
    insecure: Type.Boolean({ default: false, description: 'Allow an open bind' })
  }),
  setup: () => ({})
})
const runtimes = definePlugin({
  name: 'runtimes',
  api: 1,
  description: 'Builds',
  options: Type.Object({ llama_cpp: Path({ default: '', description: 'Folder with llama-server' }) }),
  setup: () => ({})
})
const extra = definePlugin({
  name: 'extra',
  api: 1,
  description: 'An optional one',
  optional: true,
  options: Type.Object({
    pause: Duration({ default: '5m', description: 'Pause' }),
    limit: Bytes({ default: '1MiB', description: 'Limit' }),
    inner: Type.Object({ depth: Type.Integer({ default: 3, minimum: 1, description: 'Depth' }) }),
    ratio: Type.Number({ default: 0.5, minimum: 0, description: 'Ratio' }),
    colour: Type.String({ default: 'a1', pattern: '^a', title: 'a colour such as a1', description: 'Colour' }),
    secrets: Type.Array(Type.String({ writeOnly: true }), { default: [], description: 'Hidden one by one' })
  }),
  setup: () => ({})
})
/** Schemas of built-in plugins are not checked at each load, which takes long. */
export const definitions: FoundPlugin[] = [security, runtimes, extra].map(plugin => ({ ...plugin, builtIn: true }))

interface Given {
  yaml?: string
  flags?: ConfigFlags
  env?: NodeJS.ProcessEnv
}

/** Loads with config.yaml in a fresh working directory, isolated from the tester's own machine. */
export async function load(t: Test, { yaml, flags = {}, env = {} }: Given): Promise<LoadedConfig> {
  const cwd = t.testdir({ ...(yaml === undefined ? {} : { 'config.yaml': yaml }), home: {} })
  return loadConfig({ flags, env: { CORRAL_HOME: join(cwd, 'home'), ...env }, cwd, definitions })
}

/** Mistakes and unknown settings in a configuration. */
export async function problemsOf(t: Test, given: Given): Promise<readonly ConfigProblem[]> {
  try {
    return (await load(t, given)).unknown
  } catch (error) {
    if (error instanceof ConfigError) return error.problems
    throw error
  }
}
