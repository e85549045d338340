import type { Command } from 'commander'
import { throwTogether, tryEach } from '../command-failure.ts'
import { type CommandContext, modelArgument } from '../context.ts'
import { printNote } from '../output.ts'
import { withServer } from '../server-connection.ts'

export function defineRm(program: Command, context: CommandContext): void {
  program
    .command('rm')
    .description('delete models from disk')
    .argument('<model...>', 'owner/name (all its variants) or owner/name:variant', (name, others: string[] = []) => [
      ...others,
      modelArgument(name)
    ])
    .addHelpText(
      'after',
      `
Does not ask for confirmation. Running answers of the model end first. When one model fails, the others are still deleted.

Examples:
  corral rm me/old-model
  corral rm me/model:Q8_0 me/model:Q4_K_M`
    )
    .action((models: string[]) =>
      withServer(context, 'aside', async ({ client }) => {
        const failures = await tryEach(models, async model => {
          await client.json('DELETE', '/api/delete', { model })
          printNote(`deleted ${model}`)
        })
        throwTogether(failures)
      })
    )
}
