import type { Command } from 'commander'
import type { CommandContext } from '../context.ts'
import { modelArgument } from '../model-argument.ts'
import { withServer } from '../server-connection.ts'

export function defineStop(program: Command, context: CommandContext): void {
  program
    .command('stop')
    .description('unload a model from memory; its running answers end')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .addHelpText(
      'after',
      `
Exit codes: 0 unloaded, 3 no server runs (so nothing is loaded), 4 the model is not there or not loaded.

Example:
  corral stop corral/tiny-chat`
    )
    .action(async (model: string) => {
      await withServer(context, 'fail', ({ client }) => client.json('POST', '/api/stop', { model }), {
        without: 'Nothing is loaded.'
      })
      process.stderr.write(`stopped ${model}\n`)
    })
}
