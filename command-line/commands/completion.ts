import type { Command, Option } from 'commander'
import { misuse } from '../command-failure.ts'
import type { CommandContext } from '../context.ts'
import { printText } from '../output.ts'
import { shippedText } from '../shipped-text.ts'

const SHELLS = ['bash', 'zsh', 'fish', 'powershell']

/**
 * Prints a script that calls `corral __complete <words>`, which prints one candidate per line with its description
 * after a tab. A loaded script works with every later version of corral.
 */
export function completion(_context: CommandContext, shell: string): void {
  if (!SHELLS.includes(shell)) {
    throw misuse(`corral completes commands in bash, zsh, fish and powershell, not in "${shell}".`)
  }
  printText(shippedText(`completion.${shell}`).trimEnd())
}

export async function printCompletions(program: Command, context: CommandContext, words: string[]): Promise<void> {
  const found = await complete(program, context, words)
  if (found.length > 0) printText(found.map(each => each.join('\t')).join('\n'))
}

/** A value, and its description for shells that show it. */
type Completion = [value: string, about: string]

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
  shell: () => SHELLS,
  agent: async () => Object.keys((await import('../launch/agents.ts')).AGENTS),
  argument: () => []
}

/** Candidates for the last word. @param words words after `corral`, including the unfinished last one */
async function complete(program: Command, context: CommandContext, words: string[]): Promise<Completion[]> {
  // PowerShell sends a blank, because some versions leave out empty arguments.
  const typed = (words.at(-1) ?? '').trim()
  let command = program
  let operands = 0
  let pending: Option | undefined
  /** Options of the command and of its groups. */
  const options = () => {
    const all = []
    for (let at: Command | null = command; at; at = at.parent) all.push(...at.options)
    return all
  }
  for (const word of words.slice(0, -1)) {
    if (pending !== undefined) pending = undefined
    else if (word === '--') continue
    else if (word.startsWith('-'))
      pending = options().find(({ long, short, required }) => required && (word === long || word === short))
    else {
      const below = command.commands.find(each => each.name() === word || each.aliases().includes(word))
      if (below && operands === 0) command = below
      else operands++
    }
  }
  const starting = (found: Completion[]) => found.filter(([value]) => value.startsWith(typed))
  const valuesFor = async (name: string, choices: readonly string[] | undefined) => {
    const values = choices ?? (await VALUES[name.replace(/s$/, '')]?.(context)) ?? []
    return starting(values.map(value => [value, '']))
  }
  if (pending !== undefined) return await valuesFor(pending.long!.slice(2), pending.argChoices)
  if (typed.startsWith('-')) {
    const about = new Map<string, string>()
    for (const { long, hidden, description } of options()) {
      if (long && !hidden && !about.has(long)) about.set(long, description)
    }
    return starting([...about.set('--help', 'show help')])
  }
  if (command.name() === 'help') return complete(program, context, [...words.slice(1, -1), typed])
  const subcommands = operands > 0 ? [] : command.createHelp().visibleCommands(command)
  const last = command.registeredArguments.at(-1)
  const argument = command.registeredArguments[operands] ?? (last?.variadic ? last : undefined)
  return [
    ...starting(subcommands.map(each => [each.name(), each.description()])),
    ...(argument ? await valuesFor(argument.name(), argument.argChoices) : [])
  ]
}

/** How long a shell may wait for names. */
const NAMES_TIMEOUT_MS = 1500

/** Names of the local models, from the running server or else the disk. Empty if that fails or takes too long. */
async function modelNames(context: CommandContext): Promise<string[]> {
  const late = new Promise<string[]>(resolve => setTimeout(resolve, NAMES_TIMEOUT_MS, []).unref())
  const { ask } = await import('../server-connection.ts')
  const reply = ask<{ models: { name: string }[] }>(context, 'GET', '/api/tags', undefined, { whenNone: 'fail' })
  const names = reply.then(({ models }) => models.map(({ name }) => name))
  return await Promise.race([names.catch(() => namesOnDisk(context).catch(() => [])), late])
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
