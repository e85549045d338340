import type { ConfigPlaces } from '../core/config/config-file.ts'
import type { LoadedConfig } from '../core/config/load.ts'
import type { ConfigFlags } from '../core/config/overrides.ts'
import { errorMessage } from '../core/errors.ts'
import { parseModelName, parseRequestedName } from '../core/models/model-name.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import { misuse } from './command-failure.ts'

/** Passed to every command. Slow imports are behind functions, so that short commands stay fast. */
export interface CommandContext {
  flags(): ConfigFlags
  env: NodeJS.ProcessEnv
  cwd: string
  /** Whether the command reads config.yaml in the working directory. Commands that only talk to a server don't. */
  readsFolder(): boolean
  definitions(): Promise<PluginDefinition[]>
  /** Makes `definitions` search for plugins again, after more files are trusted. */
  trustChanged(): void
}

/** Options of a command as commander passes them: switches, and options with a text. */
export type Options<Switch extends string = 'json', Text extends string = never> = Partial<
  Record<Switch, boolean> & Record<Text, string>
>

export const configPlaces = (context: CommandContext): ConfigPlaces => ({
  flags: context.flags(),
  env: context.env,
  cwd: context.cwd,
  ignoresFolder: !context.readsFolder()
})

export async function openConfig(context: CommandContext): Promise<LoadedConfig> {
  const [{ loadConfig }, definitions] = await Promise.all([import('../core/config/load.ts'), context.definitions()])
  return await loadConfig({ ...configPlaces(context), definitions })
}

/**
 * Loads the whole configuration. If its file is not trusted yet, asks the user at the terminal once.
 * @param yes trusts the file without asking
 * @throws ConfigError, also if there is no user to ask
 */
export async function openTrusted(context: CommandContext, yes = false): Promise<LoadedConfig> {
  try {
    return await openConfig(context)
  } catch (error) {
    const [{ setTrust, UntrustedConfig }, { atTerminal, confirm }, { printNote }] = await Promise.all([
      import('../core/config/trust.ts'),
      import('./questions.ts'),
      import('./output.ts')
    ])
    if (!(error instanceof UntrustedConfig) || !(yes || atTerminal())) throw error
    const { path, bytes, home } = error
    printNote(error.message.replace(/\n.*$/, ''))
    if (!yes && !(await confirm(`Have you read ${path}, and do you trust it?`, false))) {
      throw misuse(`${path} is not trusted. Name another file with --config, or leave these settings out.`)
    }
    await setTrust(home, path, bytes)
    printNote(`${path} is trusted until it changes. Undo this with: corral config trust --remove`)
    context.trustChanged()
    return await openConfig(context)
  }
}

/** Validates the name of an existing model before anything is started. @throws CommandFailure */
export const modelArgument = (text: string) => checkedName(text, parseRequestedName)

export const newModelArgument = (text: string) => checkedName(text, parseModelName)

function checkedName(text: string, parse: (text: string) => unknown): string {
  try {
    parse(text)
  } catch (error) {
    throw misuse(errorMessage(error), error)
  }
  return text
}

export const usageFailure = (message: string) => misuse(`${message}\n(add --help to see the usage)`)
