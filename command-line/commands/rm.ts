import type { Command } from 'commander'
import type { CommandContext } from '../context.ts'
import { throwTogether, tryEach } from '../failure.ts'
import { modelArgument } from '../model-argument.ts'
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
Does not ask. Running answers of the model end first. All models are tried, even when one fails.

Examples:
  corral rm me/old-model
  corral rm me/model:Q8_0 me/model:Q4_K_M`
    )
    .action((models: string[]) =>
      withServer(context, 'aside', async ({ client }) => {
        const failures = await tryEach(models, async model => {
          await client.json('DELETE', '/api/delete', { model })
          process.stderr.write(`deleted ${model}\n`)
        })
        throwTogether(failures)
      })
    )
}
