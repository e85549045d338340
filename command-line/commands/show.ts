import type { Command } from 'commander'
import type { ShownModel } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { CommandContext } from '../context.ts'
import { modelArgument } from '../model-argument.ts'
import { printable, printJson, printText } from '../output.ts'
import { relativeTime } from '../relative-time.ts'
import { withServer } from '../server-connection.ts'
import { formatPairs } from '../table.ts'

export function defineShow(program: Command, context: CommandContext): void {
  program
    .command('show')
    .description('show what is known of a model')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .option('--json', 'print the reply of POST /api/show')
    .option('--template', "print the model's chat template only")
    .addHelpText(
      'after',
      `
Examples:
  corral show corral/tiny-chat
  corral show corral/tiny-chat --json | jq .model_info`
    )
    .action(async (model: string, options: { json?: boolean; template?: boolean }) => {
      const reply = await withServer(context, 'aside', ({ client }) =>
        client.json<ShownModel>('POST', '/api/show', { model })
      )
      if (options.json) printJson(reply)
      else printText(options.template ? printable(reply.template ?? '') : formatModel(reply, new Date()))
    })
}

/** What is known of a model, for people. */
export function formatModel(reply: ShownModel, now: Date): string {
  const { details, capabilities, origin, files, conversions, license } = reply
  const model = formatPairs([
    ['architecture', details.family || undefined],
    ['parameters', details.parameter_size || undefined],
    ['quantization', details.quantization_level || undefined],
    ['context length', details.context_length?.toString()],
    ['embedding length', details.embedding_length?.toString()],
    ['format', details.format],
    ['size', formatBytes(details.size)],
    ['digest', details.digest],
    ['modified', relativeTime(details.modified_at, now)],
    ['origin', origin && `${origin.kind}: ${origin.from}`],
    ['license', license?.split('\n')[0] || undefined]
  ])
  const sections = [`${details.name}\n${model}`]
  if (capabilities?.length) sections.push(`Capabilities\n  ${capabilities.join(', ')}`)
  if (files?.length) {
    sections.push(`Files\n${formatPairs(files.map(({ path, size, role }) => [path, `${formatBytes(size)}  ${role}`]))}`)
  }
  if (conversions?.length) {
    const made = conversions.map(({ dtype, size, created_at }): [string, string] => [
      dtype,
      `${formatBytes(size)}  ${relativeTime(created_at, now)}`
    ])
    sections.push(`Conversions\n${formatPairs(made)}`)
  }
  return printable(sections.join('\n\n'))
}
