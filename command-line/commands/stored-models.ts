import type { ConvertedReply, LocalModel, ShownModel } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { failure, forEach } from '../command-failure.ts'
import { type CommandContext, modelArgument, type Options, usageFailure } from '../context.ts'
import { formatPairs, formatTable, printable, printNote, printResult, relativeTime, wrapLines } from '../output.ts'
import { streamWork } from '../progress-display.ts'
import { atTerminal, confirm } from '../questions.ts'
import { type ServerClient, ServerRefusal } from '../server-client.ts'
import { ask, withServer } from '../server-connection.ts'

export async function list(context: CommandContext, { json }: Options): Promise<void> {
  const reply = await ask<{ models: LocalModel[] }>(context, 'GET', '/api/tags')
  if (!json && process.stderr.isTTY && reply.models.length === 0) {
    printNote('There are no models yet. Download one with: corral pull <owner>/<name>')
  }
  printResult(json, reply, ({ models }) => formatModels(models))
}

export function formatModels(
  models: Pick<LocalModel, 'name' | 'digest' | 'size' | 'format' | 'modified_at'>[],
  now = new Date()
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

type ShowOptions = Options<'json' | 'template'>

export async function show(context: CommandContext, model: string, { json, template }: ShowOptions): Promise<void> {
  const reply = await ask<ShownModel>(context, 'POST', '/api/show', { model: modelArgument(model) })
  printResult(json, reply, () => (template ? printable(reply.template ?? '') : formatModel(reply)))
}

export function formatModel(reply: ShownModel, now = new Date()): string {
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

type ConvertOptions = Options<'remove', 'dtype'>

export async function convert(context: CommandContext, model: string, { dtype, remove }: ConvertOptions) {
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

/** Suggests what to do with a new model, as the end of a note. Empty if there is nothing to suggest. */
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

/** Installs the Python packages that convert SafeTensors models, and shows progress. */
async function installConverter(client: ServerClient): Promise<void> {
  const labels = { first: 'preparing the converter', what: 'installation of the converter', unit: 'parts' } as const
  await streamWork(client, '/api/conversion/install', {}, labels)
  printNote('The converter for SafeTensors models is installed.')
}

/**
 * Runs work that may convert a model. If the converter is missing, offers to install it and then runs the work again.
 * @throws errors of `work`, or CommandFailure if the user declines
 */
export async function withConverter<T>(client: ServerClient, yes: boolean, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof ServerRefusal) || error.code !== 'conversion_not_installed') throw error
    if (!yes && !atTerminal()) throw error
    if (!yes) {
      printNote(error.message)
      if (!(await confirm('Install them now?', true))) {
        throw failure('Nothing was installed. Install it later with: corral conversion install')
      }
    }
    await installConverter(client)
    return await work()
  }
}
