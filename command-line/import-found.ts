import type { FoundModel, FoundModels } from '../core/contracts/adoption.ts'
import type { ImportedReply } from '../core/contracts/native-records.ts'
import { formatBytes } from '../core/system/bytes.ts'
import { CommandFailure, EXIT, throwTogether } from './failure.ts'
import { printable, printJson, printText } from './output.ts'
import type { ServerClient } from './server-client.ts'
import { streamWork } from './streamed-work.ts'
import { formatTable } from './table.ts'

/** Shows what another tool has downloaded. */
export async function listFound(client: ServerClient, from: string, { json }: { json?: boolean }): Promise<void> {
  const found = await findModels(client, from)
  if (json) return printJson(found)
  printText(formatFound(found))
  for (const reason of found.unreadable ?? []) process.stderr.write(`${printable(reason)}\n`)
  const some = found.models.find(model => !model.present && model.problem === undefined)
  process.stderr.write(
    found.models.length === 0
      ? `Nothing was found in ${printable(found.folder)}.\n`
      : some
        ? `Take one with: corral import --from ${from} ${printable(some.name)}\nTake all with: corral import --from ${from} --all\n`
        : 'Nothing of it is left to be taken.\n'
  )
}

/**
 * Takes over models that another tool has downloaded, one after the other; all are tried, even when one fails.
 * @param names as `listFound` shows them; none takes all that can be taken
 */
export async function importFound(client: ServerClient, from: string, names: string[]): Promise<void> {
  const { models, folder, unreadable = [] } = await findModels(client, from)
  for (const reason of unreadable) process.stderr.write(`${printable(reason)}\n`)
  const failures: CommandFailure[] = []
  const chosen = names.length === 0 ? models.filter(({ problem }) => problem === undefined) : []
  for (const name of names) {
    const choice = chooseFound(models, name)
    if ('model' in choice) chosen.push(choice.model)
    else failures.push(new CommandFailure(choice.exitCode, choice.refusal))
  }
  let taken = 0
  for (const model of chosen) {
    if (model.present) {
      process.stderr.write(`${printable(model.name)} is here already${storedElsewhere(model)}\n`)
      continue
    }
    try {
      await importOne(client, from, model)
      taken++
    } catch (error) {
      if (!(error instanceof CommandFailure)) throw error
      failures.push(new CommandFailure(error.exitCode, `${printable(model.name)}: ${error.message}`, error))
    }
  }
  if (names.length === 0) {
    const left = models.filter(({ problem }) => problem !== undefined).length
    const others = left === 0 ? '' : `; ${left} cannot be taken, and --list says why`
    process.stderr.write(`${taken} imported of ${models.length} in ${printable(folder)}${others}\n`)
  }
  throwTogether(failures)
}

/** The one that a name means: as it is called here or in its tool, or without its label where that is clear. */
export function chooseFound(
  models: FoundModel[],
  name: string
): { model: FoundModel } | { exitCode: number; refusal: string } {
  const asked = name.toLowerCase()
  const exact = models.filter(({ name, found }) =>
    [name, found, found.replace(/:latest$/i, '')].some(text => text.toLowerCase() === asked)
  )
  const matches =
    exact.length > 0 ? exact : models.filter(({ name, found }) => [name, found].some(text => bare(text) === asked))
  const [model, ...others] = matches
  if (!model) {
    return { exitCode: EXIT.notFound, refusal: `There is no "${name}" there. --list shows what there is.` }
  }
  if (others.length > 0) {
    const labels = matches.map(match => match.name).join(', ')
    return { exitCode: EXIT.usage, refusal: `"${name}" may be several: ${labels}. Name one of them.` }
  }
  if (model.problem !== undefined) {
    return { exitCode: EXIT.failure, refusal: `${model.name} cannot be taken: ${model.problem}` }
  }
  return { model }
}

/** What was found as a table. */
export function formatFound({ models }: FoundModels): string {
  return printable(
    formatTable(
      [{ title: 'NAME' }, { title: 'SIZE', align: 'right' }, { title: 'FORMAT' }, { title: 'STATE' }],
      models.map(model => [
        model.name,
        formatBytes(model.size),
        model.format,
        model.present ? `is here already${storedElsewhere(model)}` : (model.problem ?? 'can be taken')
      ])
    )
  )
}

async function findModels(client: ServerClient, from: string): Promise<FoundModels> {
  return await client.json<FoundModels>('GET', `/api/import/found?from=${encodeURIComponent(from)}`)
}

async function importOne(client: ServerClient, from: string, { found, name }: FoundModel): Promise<void> {
  const { model, linked } = await streamWork<ImportedReply>(
    client,
    '/api/import',
    { from, found },
    { first: `reading ${printable(name)}`, what: `import of ${printable(name)}`, unit: 'bytes' }
  )
  const how = linked ? 'shared with the original' : 'copied'
  process.stderr.write(`imported ${printable(model.name)} (${formatBytes(model.size)}, ${how})\n`)
}

/** The name that it is stored under, where that is another model's. */
function storedElsewhere({ name, storedAs }: FoundModel): string {
  return storedAs === undefined || bare(storedAs) === bare(name) ? '' : ` as ${printable(storedAs)}`
}

function bare(name: string): string {
  return name.split(':')[0]!.toLowerCase()
}
