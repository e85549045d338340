import type { Command } from 'commander'
import type { ConfigPlaces } from '../core/config/config-file.ts'
import type { LoadedConfig } from '../core/config/load.ts'
import type { ConfigFlags } from '../core/config/overrides.ts'
import { nearest } from '../core/config/suggestion.ts'
import { errorMessage } from '../core/errors.ts'
import { parseModelName, parseRequestedName } from '../core/models/model-name.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import { CommandFailure, EXIT } from './command-failure.ts'

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
      import('./confirm.ts'),
      import('./output.ts')
    ])
    if (!(error instanceof UntrustedConfig) || !(yes || atTerminal())) throw error
    const { path, bytes, home } = error
    printNote(error.message.replace(/\n.*$/, ''))
    if (!yes && !(await confirm(`Have you read ${path}, and do you trust it?`, false))) {
      throw new CommandFailure(
        EXIT.usage,
        `${path} is not trusted. Name another file with --config, or leave these settings out.`
      )
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
    throw new CommandFailure(EXIT.usage, errorMessage(error), error)
  }
  return text
}

export function usageFailure(message: string): CommandFailure {
  return new CommandFailure(EXIT.usage, `${message}\n(add --help to see the usage)`)
}

/** Commands and options that end, delete or replace something. Suggestions after a typo must not lead to them. */
const DESTRUCTIVE =
  /^(--)?(rm|remove|delete|stop|revoke|rotate|cancel|uninstall|drain|down|force|yes|undo|insecure|allow-quantized-cache)$/

/** The command or option that was probably meant. Undefined if there is none or it is destructive. */
export const nearestHarmless = (name: string, known: readonly string[]) =>
  nearest(
    name,
    known.filter(one => !DESTRUCTIVE.test(one))
  )

/** Reports that `parent` has no such subcommand, and ends the command. */
export const unknownCommand = (parent: Command, name: string): never =>
  parent.error(`error: unknown command '${name}'`, { code: 'commander.unknownCommand' })
