import type { Command } from 'commander'
import type { ConvertedReply } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { CommandContext } from '../context.ts'
import { modelArgument } from '../model-argument.ts'
import { withServer } from '../server-connection.ts'
import { streamWork } from '../streamed-work.ts'

export function defineConvert(program: Command, context: CommandContext): void {
  program
    .command('convert')
    .description('make a GGUF of a SafeTensors model ahead of its first use')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .requiredOption('--dtype <type>', 'what the weights are stored as: f32, f16, bf16, q8_0, q4_k_m, …')
    .option('--remove', 'delete what was made in this type')
    .addHelpText(
      'after',
      `
A SafeTensors model is converted at its first load anyway, to the "dtype" that the request asks for (f16 when it asks
for none); what was made is kept beside the model and used again. The first conversion sets up Python packages in the
data directory, which takes a while and some gigabytes. "corral show <model>" lists what was made.

Examples:
  corral convert me/finetune --dtype q4_k_m
  corral convert me/finetune --dtype q4_k_m --remove`
    )
    .action((model: string, { dtype, remove }: { dtype: string; remove?: boolean }) =>
      withServer(context, 'aside', async ({ client }) => {
        if (remove) {
          await client.json('DELETE', '/api/convert', { model, dtype })
          process.stderr.write(`removed the ${dtype} of ${model}\n`)
          return
        }
        const last = await streamWork<ConvertedReply>(
          client,
          '/api/convert',
          { model, dtype },
          { first: `preparing ${model}`, what: `conversion of ${model}`, unit: 'parts' }
        )
        process.stderr.write(
          `${model} is there as ${dtype} (${formatBytes(last.size)}). Requests with the option dtype "${dtype}" use it.\n`
        )
      })
    )
}
