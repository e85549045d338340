import { resolve } from 'node:path'
import type { FoundModel, FoundModels } from '../../core/contracts/found-models.ts'
import type { ImportedReply } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { CommandFailure, EXIT, failure, forEach, misuse } from '../command-failure.ts'
import { type CommandContext, newModelArgument, type Options, usageFailure } from '../context.ts'
import { formatTable, printable, printJson, printNote, printText } from '../output.ts'
import { streamWork } from '../progress-display.ts'
import type { ServerClient } from '../server-client.ts'
import { withServer } from '../server-connection.ts'
import { nextStep } from './stored-models.ts'

type ImportOptions = Options<'list' | 'all' | 'json' | 'dryRun', 'from'>

export { importModels as import }

async function importModels(
  context: CommandContext,
  path: string | undefined,
  model: string | undefined,
  more: string[],
  options: ImportOptions
): Promise<void> {
  const given = [path, model, ...more].filter(argument => argument !== undefined)
  const { from, list, all } = options
  checkUsage(given, options)
  if (from === 'llama-swap') {
    const { importSettings } = await import('../swap/import-settings.ts')
    return await importSettings(context, given[0], options.dryRun)
  }
  await withServer(context, 'aside', async ({ client }) => {
    if (from === undefined) {
      const path = resolve(context.cwd, given[0]!)
      const labels = { first: `reading ${path}`, what: `import of ${path}` }
      const { model } = await streamWork<ImportedReply>(client, '/api/import', { path, model: given[1] }, labels)
      const { name, size, capabilities = [] } = model
      printNote(`imported ${name} (${formatBytes(size)})${nextStep(name, capabilities)}`)
    } else if (list || (given.length === 0 && !all)) await listFound(client, from, options)
    else await importFound(client, from, given)
  })
}

/** Checks the arguments before a server is started. @throws CommandFailure */
function checkUsage(given: string[], { from, list, all, json, dryRun }: ImportOptions): void {
  if (dryRun && from !== 'llama-swap') throw usageFailure('--dry-run is for --from llama-swap. Use --list instead.')
  if (from === 'llama-swap') {
    if (!list && !all && given.length < 2) return
    throw usageFailure(
      '--from llama-swap imports a whole configuration. Give its path, and --dry-run to see the changes.'
    )
  }
  if (!from) {
    if (given.length !== 2) {
      throw usageFailure('Nothing to import. Give a path and a name for the model, or a tool with --from.')
    }
    newModelArgument(given[1]!)
  } else if (given.length > 0) {
    if (all) throw usageFailure('Use either model names or --all, not both.')
    if (list || json) throw usageFailure("--list shows all of the tool's models. Leave out the names.")
  }
}

async function listFound(client: ServerClient, from: string, { json }: ImportOptions): Promise<void> {
  const found = await findModels(client, from)
  if (json) return printJson(found)
  printText(formatFound(found))
  for (const reason of found.unreadable ?? []) printNote(printable(reason))
  const importable = found.models.find(model => !model.present && model.problem === undefined)
  if (found.models.length === 0) printNote(nothingFound(found))
  else if (!importable) printNote('There is nothing left to import.')
  else {
    printNote(`Import one with: corral import --from ${from} ${printable(importable.name)}`)
    printNote(`Import all with: corral import --from ${from} --all`)
  }
}

/**
 * Imports models that another tool has downloaded, and continues when one fails.
 * @param names names as in `listFound`; empty imports everything
 */
async function importFound(client: ServerClient, from: string, names: string[]): Promise<void> {
  const found = await findModels(client, from)
  const { models, folder, unreadable = [] } = found
  for (const reason of unreadable) printNote(printable(reason))
  if (models.length === 0) {
    const nothing = nothingFound(found)
    if (names.length > 0) throw new CommandFailure(EXIT.notFound, nothing)
    return printNote(nothing)
  }
  const shown = new Set<string>()
  const importable = models.filter(({ problem }) => problem === undefined)
  let imported = 0
  try {
    await forEach<FoundModel | string>(names.length > 0 ? names : importable, async choice => {
      const model = typeof choice === 'string' ? chooseFound(models, choice) : choice
      if (model.present) return printNote(`${printable(model.name)} is already imported${storedElsewhere(model)}`)
      await importOne(client, from, model, shown)
      imported++
    })
  } finally {
    if (names.length === 0) {
      const left = models.length - importable.length
      const others = left === 0 ? '' : `; ${left} cannot be imported (--list shows why)`
      printNote(`imported ${imported} of ${models.length} in ${printable(folder)}${others}`)
    }
  }
}

/**
 * Finds a model by its name here or in its tool. The label is optional if the name is unique.
 * @throws CommandFailure if no model or several match, or the model cannot be imported
 */
export function chooseFound(models: FoundModel[], name: string): FoundModel {
  const wanted = name.toLowerCase()
  const exact = models.filter(({ name, found }) =>
    [name, found, found.replace(/:latest$/i, '')].some(text => text.toLowerCase() === wanted)
  )
  const matches =
    exact.length > 0 ? exact : models.filter(({ name, found }) => [name, found].some(text => bare(text) === wanted))
  const [model, ...others] = matches
  if (!model) throw new CommandFailure(EXIT.notFound, `The tool has no model "${name}". See its models with --list.`)
  if (others.length > 0) {
    const labels = matches.map(match => match.name).join(', ')
    throw misuse(`"${name}" matches several models: ${labels}. Use one of these names.`)
  }
  if (model.problem === undefined) return model
  throw failure(`${model.name} cannot be imported: ${model.problem}`)
}

export function formatFound({ models }: FoundModels): string {
  const rows = models.map(model => [
    model.name,
    formatBytes(model.size),
    model.format,
    model.present ? `already imported${storedElsewhere(model)}` : (model.problem ?? 'can be imported')
  ])
  return formatTable(['NAME', '>SIZE', 'FORMAT', 'STATE'], rows)
}

const findModels = (client: ServerClient, from: string) =>
  client.json<FoundModels>('GET', `/api/import/found?from=${encodeURIComponent(from)}`)

const TOOLS: Record<string, string> = { huggingface: 'Hugging Face', ollama: 'Ollama', 'lm-studio': 'LM Studio' }

const nothingFound = ({ from, folder }: FoundModels) =>
  `${TOOLS[from] ?? from} has no models in ${printable(folder)}, so nothing was imported.`

/** @param shown warnings already printed for earlier models, which are not repeated */
async function importOne(client: ServerClient, from: string, { found, name }: FoundModel, shown: Set<string>) {
  const labels = { first: `reading ${printable(name)}`, what: `import of ${printable(name)}` }
  try {
    const reply = await streamWork<ImportedReply>(client, '/api/import', { from, found }, labels)
    const { model, linked, notes = [] } = reply
    const how = linked ? 'shared with the original' : 'copied'
    const known = from === 'ollama' && found.toLowerCase() !== model.name.toLowerCase() ? `, as ${model.name}` : ''
    printNote(printable(`imported ${known ? found : model.name}${known} (${formatBytes(model.size)}, ${how})`))
    for (const note of notes.filter(note => !shown.has(note))) printNote(printable(note))
    for (const note of notes) shown.add(note)
  } catch (error) {
    if (!(error instanceof CommandFailure)) throw error
    throw new CommandFailure(error.exitCode, `${printable(name)}: ${error.message}`, error)
  }
}

const storedElsewhere = ({ name, storedAs }: FoundModel) =>
  storedAs === undefined || bare(storedAs) === bare(name) ? '' : ` as ${printable(storedAs)}`

const bare = (name: string) => name.split(':')[0]!.toLowerCase()
