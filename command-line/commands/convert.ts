import type { Command } from 'commander'
import type { ConvertedReply } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { type CommandContext, modelArgument } from '../context.ts'
import { printNote } from '../output.ts'
import { streamWork } from '../progress-display.ts'
import { withServer } from '../server-connection.ts'

export function defineConvert(program: Command, context: CommandContext): void {
  program
    .command('convert')
    .description('convert a SafeTensors model to GGUF ahead of its first use')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .requiredOption('--dtype <type>', 'type of the weights: f32, f16, bf16, q8_0, q4_k_m, …')
    .option('--remove', 'delete the conversion to this type')
    .addHelpText(
      'after',
      `
A SafeTensors model is converted at its first load anyway, to the "dtype" of the request (f16 by default); the
conversion is kept beside the model and used again. The first conversion installs Python packages in the data directory,
which takes a while and some gigabytes. "corral show <model>" lists the conversions.

Examples:
  corral convert me/finetune --dtype q4_k_m
  corral convert me/finetune --dtype q4_k_m --remove`
    )
    .action((model: string, { dtype, remove }: { dtype: string; remove?: boolean }) =>
      withServer(context, 'aside', async ({ client }) => {
        if (remove) {
          await client.json('DELETE', '/api/convert', { model, dtype })
          return printNote(`removed the ${dtype} conversion of ${model}`)
        }
        const last = await streamWork<ConvertedReply>(
          client,
          '/api/convert',
          { model, dtype },
          { first: `preparing ${model}`, what: `conversion of ${model}`, unit: 'parts' }
        )
        printNote(
          `${model} is converted to ${dtype} (${formatBytes(last.size)}). Requests with the option dtype "${dtype}" use it.`
        )
      })
    )
}
