import type { Command } from 'commander'
import { nearest } from '../core/config/suggestion.ts'

/** Ends with the sentence that there is no such command below this one, and the one that was probably meant. */
export function unknownCommand(parent: Command, name: string): never {
  const near = nearest(
    name,
    parent.commands.map(command => command.name())
  )
  return parent.error(`error: unknown command '${name}'${near ? `\n(Did you mean ${near}?)` : ''}`)
}

/** Adds `help [command...]`, which unlike commander's own says when there is no such command. */
export function defineHelp(program: Command): void {
  program
    .helpCommand(false)
    .command('help')
    .argument('[command...]')
    .description('show help on a command')
    .action((names: string[]) => {
      let shown = program
      for (const name of names) {
        const called = (command: Command) => command.name() === name || command.aliases().includes(name)
        shown = shown.commands.find(called) ?? unknownCommand(shown, name)
      }
      shown.help()
    })
}
