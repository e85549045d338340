#!/usr/bin/env node
import { CommanderError } from 'commander'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import { EXIT, endOnClosedOutput, exitOnClosedTerminal, explainFailure } from './command-failure.ts'
import { type CommandContext, configPlaces } from './context.ts'
import { printNote } from './output.ts'
import { createProgram } from './program.ts'

/** The process exits this long after its command has ended, even if something keeps it alive. */
const EXIT_TIMEOUT_MS = 1000

/** The only place where core meets the plugins. Only commands that need plugins import them. */
async function findPlugins(): Promise<PluginDefinition[]> {
  const [{ builtInPlugins }, { outsidePlugins }, { letPluginsImportCorral, watchPlugins }] = await Promise.all([
    import('../plugins/built-in.ts'),
    import('../core/plugins/outside-plugins.ts'),
    import('./plugin-watch.ts')
  ])
  const prepareForPlugins = () => {
    letPluginsImportCorral()
    watchPlugins()
  }
  return [...builtInPlugins, ...(await outsidePlugins(configPlaces(context), builtInPlugins, prepareForPlugins))]
}

/** Commands about the configuration itself. */
const READ_FOLDER = ['serve', 'config', 'doctor']
let command = ''
/** The command with its subcommands, for messages. */
let commandPath = ''
let plugins: Promise<PluginDefinition[]> | undefined
const context: CommandContext = {
  flags: () => program.opts(),
  env: process.env,
  cwd: process.cwd(),
  readsFolder: () => READ_FOLDER.includes(command),
  definitions: () => (plugins ??= findPlugins()),
  trustChanged() {
    plugins = undefined
  }
}
const program = createProgram(context, process.argv)

program.hook('preSubcommand', (_, subcommand) => {
  command ||= subcommand.name()
})
program.hook('preAction', (_, action) => {
  for (let at = action; at.parent; at = at.parent) commandPath = `${at.name()} ${commandPath}`.trim()
})

async function run(argv: string[]): Promise<number> {
  if (argv.length === 2) {
    program.outputHelp()
    return EXIT.ok
  }
  try {
    await program.parseAsync(argv)
    return Number(process.exitCode ?? EXIT.ok)
  } catch (error) {
    // Commander has already printed the message.
    if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT.ok : EXIT.usage
    const { exitCode, text } = explainFailure(error)
    // The server names the request. The user knows the command.
    if (text) printNote(`error: ${text.replace(/^This needs the role/, `"corral ${commandPath}" needs the role`)}`)
    if (process.env.CORRAL_DEBUG && text) console.error(error)
    return exitCode
  }
}

endOnClosedOutput()
exitOnClosedTerminal()
process.exitCode = await run(process.argv)
setTimeout(() => process.exit(), EXIT_TIMEOUT_MS).unref()
