import { Command } from 'commander'
import { nearestHarmless } from './context.ts'

/** Rewords commander's usage errors: first the problem, then what to do. */
const REWORDED: [RegExp, string][] = [
  [/^error: command-argument value '(.*)' is invalid for argument '(.*)'\. (.*)$/s, 'error: "$1" is not a $2. $3'],
  [/^error: option '(\S+?)(?:,| ).*' argument '(.*)' is invalid\. (.*)$/s, 'error: $1 cannot be "$2". $3'],
  [/^error: option '(\S+).*' argument missing$/, 'error: $1 needs a value.'],
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
    const near =
      options.code === 'commander.unknownCommand'
        ? nearestHarmless(
            typed,
            this.commands.map(command => command.name())
          )
        : options.code === 'commander.unknownOption'
          ? nearestHarmless(
              typed,
              known.flatMap(command => command.options.flatMap(({ long }) => long ?? []))
            )
          : undefined
    const usage = options.code === 'commander.missingArgument' ? `: ${path.join(' ')} ${this.usage()}` : ''
    return super.error(`${message.replace(pattern, text)}${usage}${near ? `\n(Did you mean ${near}?)` : ''}`, options)
  }
}
