import type { Command } from 'commander'
import { type CommandContext, modelArgument } from '../context.ts'
import { printNote } from '../output.ts'
import { withServer } from '../server-connection.ts'

export function defineStop(program: Command, context: CommandContext): void {
  program
    .command('stop')
    .description('unload a model from memory; running answers are cut off')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .addHelpText(
      'after',
      `
Exit codes: 0 unloaded, 3 no server runs (so nothing is loaded), 4 there is no such model, or it is not loaded.

Example:
  corral stop corral/tiny-chat`
    )
    .action(async (model: string) => {
      await withServer(context, 'fail', ({ client }) => client.json('POST', '/api/stop', { model }), {
        without: 'Nothing is loaded.'
      })
      printNote(`stopped ${model}`)
    })
}
