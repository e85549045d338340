import type { Command } from 'commander'
import type { ShownModel } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { type CommandContext, modelArgument } from '../context.ts'
import { formatPairs, printable, printJson, printText, relativeTime } from '../output.ts'
import { withServer } from '../server-connection.ts'

export function defineShow(program: Command, context: CommandContext): void {
  program
    .command('show')
    .description('show the details of a model')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .option('--json', 'print the reply of POST /api/show')
    .option('--template', "print only the model's chat template")
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

/** The details of a model, for people. */
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
