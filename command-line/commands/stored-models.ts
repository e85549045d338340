import type { ConvertedReply, LocalModel, ShownModel } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { forEach } from '../command-failure.ts'
import { type CommandContext, modelArgument, usageFailure } from '../context.ts'
import { installConverter, withConverter } from '../converter-offer.ts'
import type { CorralCommand } from '../corral-command.ts'
import {
  formatPairs,
  formatTable,
  printable,
  printJson,
  printNote,
  printText,
  relativeTime,
  wrapLines
} from '../output.ts'
import { streamWork } from '../progress-display.ts'
import { ask, withServer } from '../server-connection.ts'

export function defineList(program: CorralCommand, context: CommandContext): void {
  program
    .command('list')
    .alias('ls')
    .description('list the models on disk')
    .option('--json', 'print the records of GET /api/tags')
    .notes(`
Examples:
  corral list
  corral list --json | jq -r '.models[].name'`)
    .action(async ({ json }: { json?: boolean }) => {
      const reply = await ask<{ models: LocalModel[] }>(context, 'GET', '/api/tags')
      if (json) return printJson(reply)
      if (process.stderr.isTTY && reply.models.length === 0) {
        printNote('There are no models yet. Download one with: corral pull <owner>/<name>')
      }
      printText(formatModels(reply.models, new Date()))
    })
}

export function formatModels(
  models: Pick<LocalModel, 'name' | 'digest' | 'size' | 'format' | 'modified_at'>[],
  now: Date
): string {
  const rows = models
    .toSorted((a, b) => b.modified_at.localeCompare(a.modified_at))
    .map(({ name, digest, size, format, modified_at }) => [
      name,
      digest.slice(0, 12),
      size > 0 ? formatBytes(size) : 'unknown',
      format,
      relativeTime(modified_at, now)
    ])
  return formatTable(['NAME', 'ID', '>SIZE', 'FORMAT', 'MODIFIED'], rows)
}

export function defineShow(program: CorralCommand, context: CommandContext): void {
  program
    .command('show')
    .description('show the details of a model')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .option('--json', 'print the reply of POST /api/show')
    .option('--template', "print only the model's chat template")
    .notes(`
Examples:
  corral show corral/tiny-chat
  corral show corral/tiny-chat --json | jq .model_info`)
    .action(async (model: string, options: { json?: boolean; template?: boolean }) => {
      const reply = await ask<ShownModel>(context, 'POST', '/api/show', { model })
      if (options.json) printJson(reply)
      else printText(options.template ? printable(reply.template ?? '') : formatModel(reply, new Date()))
    })
}

export function formatModel(reply: ShownModel, now: Date): string {
  const { details, capabilities, origin, files, conversions, license } = reply
  const model = formatPairs([
    ['architecture', details.family || undefined],
    ['parameters', details.parameter_size || undefined],
    ['quantization', details.quantization_level || undefined],
    ['context length', details.context_length?.toString()],
    ['embedding length', details.embedding_length?.toString()],
    ['format', details.format],
    ['size', details.size > 0 ? formatBytes(details.size) : 'unknown'],
    ['digest', details.digest],
    ['modified', relativeTime(details.modified_at, now)],
    ['origin', origin && `${origin.kind}: ${origin.from}`],
    ['license', license?.split('\n')[0] || undefined]
  ])
  const sections = [`${details.name}\n${model}`]
  if (capabilities?.length) {
    const names = capabilities.map(name => (name === 'base' ? 'base model: completes text' : name))
    sections.push(`Capabilities\n  ${names.join(', ')}`)
  }
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
  return wrapLines(printable(sections.join('\n\n')))
}

export function defineRm(program: CorralCommand, context: CommandContext): void {
  program
    .command('rm')
    .description('delete models from disk')
    .argument('<model...>', 'owner/name (all variants) or owner/name:variant', (name, others: string[] = []) => [
      ...others,
      modelArgument(name)
    ])
    .notes(`
Does not ask for confirmation. Active requests of the model are aborted. If one model fails, the others are still deleted.

Examples:
  corral rm me/old-model
  corral rm me/model:Q8_0 me/model:Q4_K_M`)
    .action((models: string[]) =>
      withServer(context, 'aside', async ({ client }) => {
        await forEach(models, async model => {
          await client.json('DELETE', '/api/delete', { model })
          printNote(`deleted ${model}`)
        })
      })
    )
}

export function defineConvert(program: CorralCommand, context: CommandContext): void {
  program
    .command('convert')
    .description('convert a SafeTensors model to GGUF before its first use')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .option('--dtype <type>', 'weight type: f32, f16, bf16, q8_0, q4_k_m, …')
    .option('--remove', 'delete the conversion to this type')
    .notes(`
Without this command, a SafeTensors model is converted when it is first loaded, to the "dtype" of the request (default:
f16). Conversions are stored beside the model and used again. The first conversion needs several gigabytes of Python
packages, which are installed only if you agree ("corral conversion install"). "corral show <model>" lists the conversions.

Examples:
  corral convert me/finetune --dtype q4_k_m
  corral convert me/finetune --dtype q4_k_m --remove`)
    .action((model: string, { dtype, remove }: { dtype?: string; remove?: boolean }) => {
      if (dtype === undefined)
        throw usageFailure('The type is missing. Add --dtype, such as --dtype q4_k_m or --dtype f16.')
      return withServer(context, 'aside', async ({ client }) => {
        if (remove) {
          await client.json('DELETE', '/api/convert', { model, dtype })
          return printNote(`removed the ${dtype} conversion of ${model}`)
        }
        const labels = { first: `preparing ${model}`, what: `conversion of ${model}`, unit: 'parts' } as const
        const last = await withConverter(client, false, () =>
          streamWork<ConvertedReply>(client, '/api/convert', { model, dtype }, labels)
        )
        printNote(
          `Converted ${model} to ${dtype} (${formatBytes(last.size)}). Requests with the option dtype "${dtype}" use it.`
        )
      })
    })
}

export function defineConversion(program: CorralCommand, context: CommandContext): void {
  program
    .command('conversion')
    .description('install the converter for SafeTensors models')
    .command('install')
    .description('install the Python packages of the converter in the data directory')
    .notes(`
They need several gigabytes. At a terminal, "corral run" and "corral convert" offer to install them before the first conversion.
With "conversion.install: auto" in config.yaml, they are installed without asking when any client uses such a model.`)
    .action(() => withServer(context, 'aside', ({ client }) => installConverter(client)))
}
