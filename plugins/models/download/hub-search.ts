import type { SearchRequest } from '../../../core/contracts/downloads.ts'
import type { Hub, HubMatch } from '../../../core/contracts/hubs.ts'
import type { FoundRepository, SearchReply } from '../../../core/contracts/native-records.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { type MemoryFacts, requireFewModelFiles } from './choice/choice.ts'
import { chooseFiles } from './choice/choose-files.ts'
import type { PlannerContext } from './pulls/pull-planner.ts'

type SearchContext = Pick<PlannerContext, 'hubs' | 'search' | 'memory'>

type SearchingHub = Hub & Required<Pick<Hub, 'search'>>

/** Repositories of each hub whose files are listed to find their sizes. Hubs count each listing as a request. */
const MAX_LISTED = 20
const LISTINGS_AT_ONCE = 6

/** Searches hubs for models, and predicts which files a pull of each would choose. See `Downloads.search`. */
export async function searchHubs(
  context: SearchContext,
  request: Pick<SearchRequest, 'words' | 'hub' | 'limit'>,
  waiting: Waiting
): Promise<SearchReply> {
  const hubs = hubsFor(context, request.hub)
  const errors: SearchReply['errors'] = []
  const failures: CorralError[] = []
  const searchOne = async (hub: SearchingHub): Promise<{ hub: SearchingHub; match: HubMatch }[]> => {
    try {
      const found = await hub.search(request.words, request.limit, waiting)
      // A repository with an invalid model name could not be pulled.
      return found.filter(({ id }) => isName(id)).map(match => ({ hub, match }))
    } catch (error) {
      waiting.signal?.throwIfAborted()
      if (!(error instanceof CorralError)) throw error
      failures.push(error)
      errors.push({ hub: hub.name, code: error.code, error: error.message })
      return []
    }
  }
  const found = await Promise.all(hubs.map(searchOne))
  if (failures.length === hubs.length) throw failures[0]!
  const memory = await context.memory()
  const rows = found.flatMap(matches => matches.map((entry, index) => ({ ...entry, isListed: index < MAX_LISTED })))
  const models: FoundRepository[] = []
  const left = rows.entries()
  const worker = async () => {
    for (const [index, { hub, match, isListed }] of left) {
      const files = isListed
        ? await previewPull(hub, match, memory, waiting)
        : { problem: `Only the first ${MAX_LISTED} are inspected. Search for more of its name.` }
      models[index] = { ...toRecord(hub, match, context.search[0] === hub.name), ...files }
    }
  }
  await Promise.all(Array.from({ length: LISTINGS_AT_ONCE }, worker))
  return { models, hubs: hubs.map(({ name }) => name), errors }
}

function hubsFor({ hubs, search }: SearchContext, wanted: string | undefined): SearchingHub[] {
  const place = ({ name }: Hub) => (search.includes(name) ? search.indexOf(name) : search.length)
  const able = hubs
    .filter((hub): hub is SearchingHub => hub.search !== undefined)
    .sort((a, b) => place(a) - place(b) || (a.name < b.name ? -1 : 1))
  const chosen =
    wanted === 'all'
      ? able
      : able.filter(({ name }) => (wanted === undefined ? search.includes(name) : name === wanted))
  if (chosen.length > 0) return chosen
  const names = able.map(({ name }) => name).join(', ')
  const problem =
    wanted === undefined
      ? 'None of the hubs in "downloads.search" can be searched.'
      : `No hub called ${JSON.stringify(wanted.slice(0, 60))} can be searched.`
  const advice =
    names === '' ? 'No hub with a search is enabled.' : `Searchable hubs are ${names}; "all" searches all of them.`
  throw new CorralError('invalid_request', `${problem} ${advice}`, { param: 'hub' })
}

function isName(id: string): boolean {
  try {
    return parseModelName(id).variant === undefined
  } catch {
    return false
  }
}

function toRecord({ name, prefixes }: Hub, match: HubMatch, isFirst: boolean): FoundRepository {
  const { id, updatedAt, downloads, likes, license, ...rest } = match
  // A prefix like `hf:`, not the beginning of an address.
  const prefix = isFirst ? '' : (prefixes.find(text => /^[^/]+:$/.test(text)) ?? '')
  return {
    model: `${prefix}${id}`,
    hub: name,
    id,
    publisher: id.slice(0, id.indexOf('/')),
    ...rest,
    ...(downloads !== undefined && { downloads }),
    ...(likes !== undefined && { likes }),
    ...(updatedAt !== undefined && { updated_at: updatedAt }),
    ...(license !== undefined && { license })
  }
}

/** Returns what a pull of the repository would choose, by its listing alone, or why that is unknown. */
async function previewPull(hub: Hub, { id, formats }: HubMatch, memory: MemoryFacts, waiting: Waiting) {
  try {
    const { files, gated } = await hub.repository({ id }, waiting)
    const choice = chooseFiles({ id, files: requireFewModelFiles(id, files), memory })
    const { format, label, size, choices } = choice
    const isKnown = choice.files.every(file => file.size !== undefined)
    return {
      formats: [...new Set([...formats, format])],
      ...(gated && { gated }),
      ...(label !== undefined && { variant: label }),
      ...(isKnown ? { size, memory: choice.memory } : { problem: 'The hub does not say how large its files are.' }),
      choices: choices.filter(other => other.label !== label)
    }
  } catch (error) {
    waiting.signal?.throwIfAborted()
    if (!(error instanceof CorralError)) throw error
    const choices = error.details?.choices as FoundRepository['choices']
    return { problem: error.message, ...(choices && { choices }) }
  }
}
