#!/usr/bin/env node
import { CommanderError } from 'commander'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import type { CommandContext } from './context.ts'
import { EXIT, explainFailure } from './failure.ts'
import { heedClosedOutput } from './interruption.ts'
import { createProgram } from './program.ts'

/** What still holds the process open this long (milliseconds) after its command has ended is cut off. */
const EXIT_PATIENCE = 1000

async function findPlugins(): Promise<PluginDefinition[]> {
  // The one place where core meets the plugins; imported when a command needs them.
  const [{ builtInPlugins }, { outsidePlugins }] = await Promise.all([
    import('../plugins/built-in.ts'),
    import('../core/plugins/outside-plugins.ts')
  ])
  const places = { flags: context.flags(), env: context.env, cwd: context.cwd }
  return [...builtInPlugins, ...(await outsidePlugins(places, builtInPlugins))]
}

let plugins: Promise<PluginDefinition[]> | undefined
const context: CommandContext = {
  flags: () => program.opts(),
  env: process.env,
  cwd: process.cwd(),
  // Several parts of one command ask for them.
  definitions: () => (plugins ??= findPlugins())
}
const program = createProgram(context)

async function run(argv: string[]): Promise<number> {
  if (argv.length === 2) {
    program.outputHelp()
    return EXIT.ok
  }
  try {
    await program.parseAsync(argv)
    return Number(process.exitCode ?? EXIT.ok)
  } catch (error) {
    // Commander has said what is wrong by now.
    if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT.ok : EXIT.usage
    const { exitCode, text } = explainFailure(error)
    if (text) process.stderr.write(`error: ${text}\n`)
    if (process.env.CORRAL_DEBUG && text) console.error(error)
    return exitCode
  }
}

heedClosedOutput()
process.exitCode = await run(process.argv)
setTimeout(() => process.exit(), EXIT_PATIENCE).unref()
