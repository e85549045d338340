import type { Argument, Command } from 'commander'
import { CommandFailure, EXIT } from '../command-failure.ts'
import type { CommandContext } from '../context.ts'
import { printText } from '../output.ts'
import { shippedText } from '../shipped-text.ts'

const SHELLS = ['bash', 'zsh', 'fish']

/**
 * Prints a script that calls `corral __complete <words>`, which prints one candidate per line with its description
 * after a tab. A loaded script works with every later version of corral.
 */
export function completion(_context: CommandContext, shell: string): void {
  if (!SHELLS.includes(shell)) {
    throw new CommandFailure(EXIT.usage, `corral completes commands in bash, zsh and fish, not in "${shell}".`)
  }
  printText(shippedText(`completion.${shell}`).trimEnd())
}

export async function printCompletions(program: Command, context: CommandContext, words: string[]): Promise<void> {
  const found = await complete(program, context, words)
  if (found.length > 0) printText(found.map(({ value, about }) => `${value}\t${about}`).join('\n'))
}

interface Completion {
  value: string
  /** Description, for shells that show it. */
  about: string
}

/** Weight types that `convert --dtype` accepts. */
const DTYPES = ['f32', 'f16', 'bf16', 'q8_0', 'q6_k', 'q5_k_m', 'q4_k_m', 'q3_k_m', 'q2_k']
const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']
/** Values of options and arguments that commander's definitions do not list, by name. */
const VALUES: Record<string, (context: CommandContext) => string[] | Promise<string[]>> = {
  dtype: () => DTYPES,
  'log-level': () => LOG_LEVELS,
  format: () => ['json'],
  model: modelNames,
  reference: modelNames,
  command: () => [],
  shell: () => SHELLS
}

/**
 * Candidates for the last word.
 * @param words words after `corral`, including the unfinished last one
 */
async function complete(program: Command, context: CommandContext, words: string[]): Promise<Completion[]> {
  const typed = words.at(-1) ?? ''
  let command = program
  let operands = 0
  let pending: string | undefined
  for (const word of words.slice(0, -1)) {
    if (pending !== undefined) pending = undefined
    else if (word === '--') continue
    else if (word.startsWith('-')) pending = optionBefore(command, word)
    else {
      const below = command.commands.find(each => each.name() === word || each.aliases().includes(word))
      if (below && operands === 0) command = below
      else operands++
    }
  }
  const starting = (values: readonly string[]) =>
    values.filter(value => value.startsWith(typed)).map(value => ({ value, about: '' }))
  if (pending !== undefined)
    return starting(await valuesFor(pending, optionNamed(command, pending)?.argChoices, context))
  if (typed.startsWith('-')) {
    return [...command.options, ...(command === program ? [] : program.options)]
      .filter(({ hidden }) => !hidden)
      .flatMap(({ long, description }) => (long ? [{ value: long, about: description }] : []))
      .concat({ value: '--help', about: 'show help' })
      .filter(({ value }, index, all) => value.startsWith(typed) && all.findIndex(one => one.value === value) === index)
  }
  const subcommands = operands > 0 ? [] : command.createHelp().visibleCommands(command)
  if (command.name() === 'help') return complete(program, context, [...words.slice(1, -1), typed])
  const argument = command.registeredArguments[operands] ?? lastVariadic(command)
  const values = argument ? await valuesFor(argument.name(), argument.argChoices, context) : []
  const named = subcommands
    .map(each => ({ value: each.name(), about: each.description() }))
    .filter(({ value }) => value.startsWith(typed))
  return [...named, ...starting(values)]
}

const optionNamed = (command: Command, name: string) =>
  [...command.options, ...(command.parent?.options ?? [])].find(option => option.long === `--${name}`)

/** The option that takes this word as its value, if any. */
function optionBefore(command: Command, word: string): string | undefined {
  const all = [...command.options, ...(command.parent?.options ?? []), ...(command.parent?.parent?.options ?? [])]
  const option = all.find(({ long, short }) => word === long || word === short)
  return option?.required ? option.long?.slice(2) : undefined
}

function lastVariadic(command: Command): Argument | undefined {
  const last = command.registeredArguments.at(-1)
  return last?.variadic ? last : undefined
}

async function valuesFor(name: string, choices: readonly string[] | undefined, context: CommandContext) {
  return choices ?? (await VALUES[name.replace(/s$/, '')]?.(context)) ?? []
}

/** How long a shell may wait for names. */
const NAMES_TIMEOUT_MS = 1500

/** Names of the local models, from the running server or else from the disk. Empty if that fails or takes too long. */
async function modelNames(context: CommandContext): Promise<string[]> {
  const late = new Promise<string[]>(resolve => setTimeout(resolve, NAMES_TIMEOUT_MS, []).unref())
  const asked = askNames(context).catch(() => namesOnDisk(context).catch(() => []))
  const names = await Promise.race([asked, late])
  return names
}

async function askNames(context: CommandContext): Promise<string[]> {
  const { ask } = await import('../server-connection.ts')
  const reply = await ask<{ models: { name: string }[] }>(context, 'GET', '/api/tags', undefined, { whenNone: 'fail' })
  return reply.models.map(({ name }) => name)
}

/** Names in the default folder. A folder set in the configuration file is not searched. */
async function namesOnDisk({ flags, env, cwd }: CommandContext): Promise<string[]> {
  const [{ readdir }, { join }, { findHome, expandPath }, { dataPaths }] = await Promise.all([
    import('node:fs/promises'),
    import('node:path'),
    import('../../core/config/config-file.ts'),
    import('../../core/system/data-paths.ts')
  ])
  const places = { flags: flags(), env, cwd }
  const { models: named } = flags()
  const folder = named ?? env.CORRAL_MODELS?.trim()
  const { models } = dataPaths(findHome(places).home, folder ? expandPath(folder, cwd) : undefined)
  const visible = async (path: string) => {
    const entries = await readdir(path, { withFileTypes: true }).catch(() => [])
    return entries.filter(entry => entry.isDirectory() && !entry.name.startsWith('.')).map(({ name }) => name)
  }
  const owners = await visible(models)
  const lists = await Promise.all(
    owners.map(async owner => (await visible(join(models, owner))).map(name => `${owner}/${name}`))
  )
  return lists.flat().sort()
}
