import type { ConvertedReply, LocalModel, ShownModel } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { forEach } from '../command-failure.ts'
import { type CommandContext, modelArgument, usageFailure } from '../context.ts'
import { installConverter, withConverter } from '../converter-offer.ts'
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

export async function list(context: CommandContext, { json }: { json?: boolean }): Promise<void> {
  const reply = await ask<{ models: LocalModel[] }>(context, 'GET', '/api/tags')
  if (json) return printJson(reply)
  if (process.stderr.isTTY && reply.models.length === 0) {
    printNote('There are no models yet. Download one with: corral pull <owner>/<name>')
  }
  printText(formatModels(reply.models, new Date()))
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

export async function show(
  context: CommandContext,
  model: string,
  { json, template }: { json?: boolean; template?: boolean }
): Promise<void> {
  const reply = await ask<ShownModel>(context, 'POST', '/api/show', { model: modelArgument(model) })
  if (json) printJson(reply)
  else printText(template ? printable(reply.template ?? '') : formatModel(reply, new Date()))
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

export async function rm(context: CommandContext, models: string[]): Promise<void> {
  models.forEach(modelArgument)
  await withServer(context, 'aside', ({ client }) =>
    forEach(models, async model => {
      await client.json('DELETE', '/api/delete', { model })
      printNote(`deleted ${model}`)
    })
  )
}

export async function convert(
  context: CommandContext,
  model: string,
  { dtype, remove }: { dtype?: string; remove?: boolean }
): Promise<void> {
  modelArgument(model)
  if (dtype === undefined) {
    throw usageFailure('The type is missing. Add --dtype, such as --dtype q4_k_m or --dtype f16.')
  }
  await withServer(context, 'aside', async ({ client }) => {
    if (remove) {
      await client.json('DELETE', '/api/convert', { model, dtype })
      return printNote(`removed the ${dtype} conversion of ${model}`)
    }
    const labels = { first: `preparing ${model}`, what: `conversion of ${model}`, unit: 'parts' } as const
    const { size } = await withConverter(client, false, () =>
      streamWork<ConvertedReply>(client, '/api/convert', { model, dtype }, labels)
    )
    printNote(
      `Converted ${model} to ${dtype} (${formatBytes(size)}). Requests with the option dtype "${dtype}" use it.`
    )
  })
}

export async function conversionInstall(context: CommandContext): Promise<void> {
  await withServer(context, 'aside', ({ client }) => installConverter(client))
}

/**
 * Suggests what to do with a new model, as the end of a note. Empty if there is nothing to suggest.
 * @param capabilities capabilities from the model's record
 */
export function nextStep(name: string, capabilities: readonly string[]): string {
  if (capabilities.includes('completion')) return `. Try it with: corral run ${name}`
  const request = (path: string, fields: object) => `POST ${path} ${JSON.stringify({ model: name, ...fields })}`
  if (capabilities.includes('embedding')) {
    return `. It creates embeddings: ${request('/v1/embeddings', { input: 'a text' })}`
  }
  if (capabilities.includes('rerank')) {
    return `. It ranks documents: ${request('/v1/rerank', { query: 'a question', documents: ['a text'] })}`
  }
  return ''
}
