import { Command, InvalidArgumentError } from 'commander'
import { nearest } from '../core/config/suggestion.ts'
import { version } from '../core/system/package-info.ts'
import type { CommandContext } from './context.ts'
import { outputWidth, wrapLines } from './output.ts'
import { shippedText } from './shipped-text.ts'

/** Help texts are not wider than this, because longer lines are harder to read. */
export const MAX_HELP_COLUMNS = 118

/** Receives the values of the command's arguments, then those of its options and the global options. */
type Action = (context: CommandContext, ...values: unknown[]) => unknown

/** The modules of the commands, with their first words. `runtime install` calls the exported function `runtimeInstall`. */
const MODULES: [words: string, load: () => Promise<object>][] = [
  ['serve', () => import('./commands/serve.ts')],
  ['open', () => import('./commands/open.ts')],
  ['run', () => import('./commands/run.ts')],
  ['transcribe say', () => import('./commands/speech-commands.ts')],
  ['launch', () => import('./commands/launch-agent.ts')],
  ['mcp', () => import('./commands/mcp-commands.ts')],
  ['ps top stop logs', () => import('./commands/loaded-models.ts')],
  ['bench', () => import('./commands/bench-model.ts')],
  ['search', () => import('./commands/search.ts')],
  ['pull pulls', () => import('./commands/pull.ts')],
  ['list show rm convert conversion', () => import('./commands/stored-models.ts')],
  ['import', () => import('./commands/import.ts')],
  ['bundle', () => import('./commands/bundle.ts')],
  ['verify', () => import('./commands/verify.ts')],
  ['doctor', () => import('./commands/doctor.ts')],
  ['runtime', () => import('./commands/runtime.ts')],
  ['config', () => import('./commands/config.ts')],
  ['plugin', () => import('./commands/plugins.ts')],
  ['completion', () => import('./commands/completion.ts')],
  ['worker', () => import('./commands/worker.ts')],
  ['service', () => import('./commands/service.ts')],
  ['key', () => import('./commands/key.ts')],
  ['version usage audit capture cache log-level reload drain', () => import('./commands/administration.ts')],
  ['link', () => import('./commands/link-commands.ts')],
  ['rollout', () => import('./commands/rollout-commands.ts')],
  ['cluster', () => import('./commands/cluster-commands.ts')]
]

/**
 * Defines all commands. Parsing fails with a CommanderError after commander has printed the reason.
 * @param argv arguments to parse
 */
export function createProgram(context: CommandContext, argv: readonly string[]): CorralCommand {
  const program = new CorralCommand('corral')
    .helpOption('-h, --help', 'show help')
    .configureHelp({ sortSubcommands: false })
    .configureOutput({
      getOutHelpWidth: () => (process.stdout.isTTY ? outputWidth() : 80),
      getErrHelpWidth: () => (process.stderr.isTTY ? outputWidth(process.stderr) : 80),
      writeOut: text => process.stdout.write(wrapLines(text, Math.min(outputWidth(), MAX_HELP_COLUMNS))),
      writeErr: text => process.stderr.write(wrapLines(text, outputWidth(process.stderr)))
    })
    .showSuggestionAfterError(false)
    .showHelpAfterError('(add --help to see the usage)')
    .exitOverride()
  const text = shippedText('commands.txt')
  for (const section of text.split(/^(?=# |== )/m)) {
    const [, heading] = /^# (.*)/.exec(section) ?? []
    if (heading === undefined)
      defineCommand(program, context, section, path => new RegExp(`^== corral ${path} [a-z]`, 'm').test(text))
    else program.commandsGroup(heading)
  }
  // Otherwise the program would consume the --version of "corral runtime install".
  if (!argv.includes('runtime')) program.version(version, '-v, --version', 'print the version')
  defineHelp(program)
  program
    .command('__complete', { hidden: true })
    .argument('[words...]')
    .helpOption(false)
    .allowUnknownOption()
    .action(async (words: string[]) =>
      (await import('./commands/completion.ts')).printCompletions(program, context, words)
    )
  return program
}

/** Name, aliases and marks; description; arguments and options; notes. The README explains this format. */
const SECTION = /^== corral ?([a-z -]*?)(?:, (\w+))?(?: \{(\w+)\})?\n(.*)\n((?: {2}.*\n)*)\n?([\s\S]*)$/
const ROW = /^ {2}(\S+(?: \S+)*)(?: {2,}(.*))?$/gm
const DESCRIPTION =
  /^(.*?)(?: \{([\w|-]+\|[\w|-]+)\})?(?: \{(\d+)\.\.(\d*)\})?(?: \{default (\S+)\})?(?: \{not ([a-z -]+)\})?( \{required\})?$/

function defineCommand(
  program: CorralCommand,
  context: CommandContext,
  section: string,
  isGroup: (path: string) => boolean
): void {
  const [, path = '', alias, mark, description = '', rows = '', notes = ''] = SECTION.exec(section)!
  const words = path === '' ? [] : path.split(' ')
  const isDefault = mark === 'default'
  const parent = words
    .slice(0, -1)
    .reduce<Command>((at, word) => at.commands.find(one => one.name() === word)!, program)
  const command = words.length === 0 ? program : parent.command(words.at(-1)!, { isDefault })
  command.description(description)
  if (alias !== undefined) command.alias(alias)
  const usages: string[] = []
  for (const [, term = '', text = ''] of rows.matchAll(ROW)) {
    const [, about = '', choices, least, most, usual, excluded = '', required] = DESCRIPTION.exec(text)!
    if (term === 'usage') usages.push(text)
    else if (/^[<[]/.test(term)) {
      const argument = command.createArgument(term, about)
      command.addArgument(choices === undefined ? argument : argument.choices(choices.split('|')))
    } else {
      const option = command
        .createOption(term, about)
        .default(usual)
        .conflicts(Array.from(excluded.matchAll(/--([a-z-]+)/g), ([, name]) => camelCase(name!)))
        .makeOptionMandatory(required !== undefined)
      if (least !== undefined)
        option.argParser(text => wholeNumber(text, Number(least), most ? Number(most) : undefined))
      command.addOption(choices === undefined ? option : option.choices(choices.split('|')))
    }
  }
  if (usages.length > 0) command.usage(usages.join('\n       '))
  if (notes !== '') command.addHelpText('after', `\n${notes.trimEnd()}`)
  if (command === program) return
  if (words[0] === 'serve') command.configureHelp({ showGlobalOptions: true })
  else command.addHelpText('after', '\nOptions of all commands (--host, --port, --home, --config, …): corral --help')
  if (isGroup(path) && mark !== 'action') return
  command.allowExcessArguments(mark !== undefined).action(async (...values: unknown[]) => {
    // The word after a group was not one of its commands.
    if (mark !== undefined && command.registeredArguments.length === 0 && command.args[0] !== undefined) {
      unknownCommand(isDefault ? parent : command, command.args[0])
    }
    requireOthers(command)
    const action = await commandAction(path)
    await action(context, ...values.slice(0, -2), command.optsWithGlobals())
  })
}

/** @throws InvalidArgumentError */
function wholeNumber(text: string, least: number, most = Number.MAX_SAFE_INTEGER): number {
  const value = Number(text)
  if (/^\d+$/.test(text) && value >= least && value <= most) return value
  const limits = most < Number.MAX_SAFE_INTEGER ? ` from ${least} to ${most}` : `, ${least} or more`
  throw new InvalidArgumentError(`It must be a whole number${limits}.`)
}

/** Refuses options that have an effect only with another one. Their descriptions begin with "with --other:". */
function requireOthers(command: Command): void {
  for (const option of command.options) {
    const needed = /^with --([a-z-]+): /.exec(option.description)?.[1]
    if (needed === undefined || command.getOptionValue(option.attributeName()) === undefined) continue
    if (!command.getOptionValue(camelCase(needed))) command.error(`error: ${option.long} needs --${needed}.`)
  }
}

const camelCase = (text: string) => text.replace(/[ -]./g, separated => separated[1]!.toUpperCase())

/** Loads the function of a command, such as `runtime install`. */
export async function commandAction(path: string): Promise<Action> {
  const name = camelCase(path)
  const [, load] = MODULES.find(([words]) => words.split(' ').includes(path.split(' ')[0]!))!
  return ((await load()) as Record<string, Action>)[name]!
}

/** Rewords commander's usage errors: first the problem, then what to do. */
const REWORDED: [RegExp, string][] = [
  [/^error: command-argument value '(.*)' is invalid for argument '(.*)'\. (.*)$/s, 'error: "$1" is not a $2. $3'],
  [/^error: option '(?:-\w, )?(\S+?) .*' argument '(.*)' is invalid\. (.*)$/s, 'error: $1 cannot be "$2". $3'],
  [/^error: option '(?:-\w, )?(\S+).*' argument missing$/, 'error: $1 needs a value.'],
  [/^error: option '(\S+).*' cannot be used with option '(\S+?)[ '].*$/, 'error: $1 cannot be combined with $2.'],
  [/^error: missing required argument '(.*)'$/, 'error: <$1> is missing'],
  [/^error: required option '(.*)' not specified$/, 'error: The option $1 is missing.'],
  [
    /^error: (too many arguments).*\. Expected (\d+) arguments? but got (\d+).*$/,
    'error: Got $3 arguments, but at most $2 are allowed.'
  ]
]

/** Commander's command with corral's error texts and suggestions. */
export class CorralCommand extends Command {
  override createCommand(name?: string): CorralCommand {
    return new CorralCommand(name)
  }

  override error(message: string, options: Parameters<Command['error']>[1] = {}): never {
    const [pattern, text] = REWORDED.find(([pattern]) => pattern.test(message)) ?? [message, message]
    const known: Command[] = []
    for (let command: Command | null = this; command; command = command.parent) known.push(command)
    const path = known.map(command => command.name()).reverse()
    const [, typed = ''] = /^error: unknown (?:command|option) '(.*)'$/.exec(message) ?? []
    const candidates: Record<string, string[]> = {
      'commander.unknownCommand': this.commands.map(command => command.name()),
      'commander.unknownOption': known.flatMap(command => command.options.flatMap(({ long }) => long ?? []))
    }
    const near = nearestHarmless(typed, candidates[options.code ?? ''] ?? [])
    const usage = options.code === 'commander.missingArgument' ? `: ${path.join(' ')} ${this.usage()}` : ''
    return super.error(`${message.replace(pattern, text)}${usage}${near ? `\n(Did you mean ${near}?)` : ''}`, options)
  }
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
const unknownCommand = (parent: Command, name: string): never =>
  parent.error(`error: unknown command '${name}'`, { code: 'commander.unknownCommand' })

/** Adds `help [command...]`, which reports unknown commands, unlike commander's own. */
function defineHelp(program: CorralCommand): void {
  program
    .helpCommand(false)
    .command('help')
    .helpGroup('This machine:')
    .argument('[command...]')
    .description('show help for a command')
    .action((names: string[]) => {
      let shown: Command = program
      for (const name of names) {
        const called = (command: Command) => command.name() === name || command.aliases().includes(name)
        shown = shown.commands.find(called) ?? unknownCommand(shown, name)
      }
      shown.help()
    })
}
