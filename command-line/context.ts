import type { LoadedConfig } from '../core/config/load.ts'
import type { ConfigFlags } from '../core/config/overrides.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'

/** What every command works with. What is slow to import is reached through functions, so that help is quick. */
export interface CommandContext {
  /** The global flags as they were given. */
  flags(): ConfigFlags
  env: NodeJS.ProcessEnv
  cwd: string
  /** The plugins that a server is made of. */
  definitions(): Promise<PluginDefinition[]>
}

/** The configuration in force. @throws ConfigError */
export async function openConfig(context: CommandContext): Promise<LoadedConfig> {
  const [{ loadConfig }, definitions] = await Promise.all([import('../core/config/load.ts'), context.definitions()])
  return await loadConfig({ flags: context.flags(), env: context.env, cwd: context.cwd, definitions })
}
