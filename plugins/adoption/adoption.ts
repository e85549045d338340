import type { OnCopied } from '../../core/contracts/adopted-files.ts'
import type { Caller } from '../../core/contracts/callers.ts'
import type { Adoption, FoundModel, FoundModels } from '../../core/contracts/found-models.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import type { Storage, StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import { bareName, type ModelName } from '../../core/models/model-name.ts'
import { CacheDisk } from './cache-disk.ts'
import { type Candidate, validName, withoutDoubles } from './candidate.ts'

/** A tool whose models can be taken over. */
export interface Tool {
  /** As requests name it. */
  name: string
  /** Key of the plugin's setting that says where its cache is. */
  setting: string
  /** Where its cache may be. */
  folders(disk: CacheDisk): Promise<string[]>
  /** The models in one of these folders; none when it is not there. */
  models(folder: string, disk: CacheDisk): Promise<Candidate[]>
}

/** Takes over models from the caches of these tools. */
export function createAdoption(tools: readonly Tool[], storage: Storage): Adoption {
  function toolOf(from: string): Tool {
    const tool = tools.find(tool => tool.name === from)
    if (tool) return tool
    const names = tools.map(tool => tool.name)
    throw refuse(
      'from',
      `corral does not know the models of ${JSON.stringify(from)}. "from" is one of ${names.join(', ')}.`
    )
  }

  return {
    async find(from: string, caller?: Caller): Promise<FoundModels> {
      const tool = toolOf(from)
      const { folders, candidates, unreadable } = await search(tool, storage, caller)
      if (candidates.length === 0 && unreadable.length > 0) {
        throw refuse('from', `${unreadable[0]} Or name another folder with adoption.${tool.setting} in config.yaml.`)
      }
      const stored = storage.list()
      const models = candidates.map((candidate): FoundModel => {
        const { found, name, format, files, path, problem } = candidate
        const twin = problem ? undefined : stored.find(variant => hasFilesOf(variant, candidate))
        return {
          found,
          name: fullName(name),
          format,
          size: files.reduce((sum, file) => sum + file.size, 0),
          path,
          ...(problem && { problem }),
          present: twin !== undefined,
          ...(twin && { storedAs: twin.publicName })
        }
      })
      // Those of one name stay in the order in which they were found.
      models.sort((a, b) => (a.name < b.name ? -1 : Number(a.name > b.name)))
      return { from, folder: folders.join(', '), models, ...(unreadable.length > 0 && { unreadable }) }
    },

    async adopt(from: string, found: string, name: ModelName | undefined, waiting: Waiting, caller?: Caller) {
      const tool = toolOf(from)
      const { folders, candidates, unreadable } = await search(tool, storage, caller)
      const candidate = candidates.find(candidate => candidate.found === found)
      if (!candidate) {
        throw new CorralError(
          'model_not_found',
          `There is no model ${JSON.stringify(found)} in ${folders.join(', ')}. ` +
            [`"corral import --from ${from} --list" shows its models.`, ...unreadable].join(' '),
          { param: 'found' }
        )
      }
      if (candidate.problem) throw refuse('found', `${found} cannot be taken over. ${candidate.problem}`)
      const { owner, name: bare, variant: label } = name ?? candidate.name
      let linked = true
      // Small texts are always copies.
      const onCopied: OnCopied = ({ role }) => {
        if (role !== 'other') linked = false
      }
      const variant = await storage.adopt(
        {
          name: { owner, name: bare },
          format: candidate.format,
          label: label ?? candidate.name.variant,
          origin: { kind: 'import', from: candidate.path },
          files: candidate.files.map(({ size: _, ...file }) => file),
          caller
        },
        { ...waiting, onCopied }
      )
      return { variant, linked }
    }
  }
}

const refuse = (param: string, message: string) => new CorralError('invalid_request', message, { param })

/** Looks into a tool's folders, as far as the caller may. @throws CorralError `path_not_allowed` when into none */
async function search(
  tool: Tool,
  storage: Storage,
  caller: Caller | undefined
): Promise<{ folders: string[]; candidates: Candidate[]; unreadable: string[] }> {
  const disk = new CacheDisk(path => storage.importPath(path, caller))
  const folders: string[] = []
  // Where the folders are may stand in the tool's own settings, which are not the caller's concern.
  for (const folder of await tool.folders(new CacheDisk())) {
    if (await mayRead(folder, storage, caller)) folders.push(folder)
  }
  if (folders.length === 0) {
    throw new CorralError(
      'path_not_allowed',
      `The models of ${tool.name} are not in a folder that models may be imported from over the network. Run ` +
        `"corral import --from ${tool.name}" as the user who runs the server, on its machine, or add the folder to ` +
        'storage.import_roots in config.yaml.',
      { param: 'from' }
    )
  }
  const candidates: Candidate[] = []
  for (const folder of folders) candidates.push(...(await tool.models(folder, disk)))
  // The same model may be in two folders of one tool.
  return { folders, candidates: distinctNames(withoutDoubles(candidates)), unreadable: disk.unreadable }
}

async function mayRead(folder: string, storage: Storage, caller: Caller | undefined): Promise<boolean> {
  try {
    await storage.importPath(folder, caller)
  } catch (error) {
    // What the system says of a folder that may be looked at is said when it is read.
    return !(error instanceof CorralError)
  }
  return true
}

/** Two models that would be stored under one name, where the second would replace the first, get two names. */
function distinctNames(candidates: Candidate[]): Candidate[] {
  const taken = new Set<string>()
  const keyOf = ({ name, format }: Candidate) => `${format} ${fullName(name).toLowerCase()}`
  return [...candidates]
    .sort((a, b) => (a.found < b.found ? -1 : 1))
    .map(candidate => {
      let distinct = candidate
      for (let number = 2; taken.has(keyOf(distinct)); number++) {
        const { owner, name, variant } = candidate.name
        distinct = { ...candidate, name: validName(owner, `${name}-${number}`, variant) }
      }
      taken.add(keyOf(distinct))
      return distinct
    })
}

const fullName = (name: ModelName) => (name.variant ? `${bareName(name)}:${name.variant}` : bareName(name))

/** Whether a stored variant has the files of a candidate, judged by names, sizes and claimed digests. */
function hasFilesOf(variant: StoredVariant, { format, files, path }: Candidate): boolean {
  if (variant.format !== format || variant.files.length !== files.length) return false
  const isFrom = variant.origin.kind === 'import' && variant.origin.from === path
  return files.every(({ path, role, size, claimedSha256 }) =>
    variant.files.some(stored =>
      claimedSha256
        ? stored.sha256 === claimedSha256 && stored.role === role
        : stored.path === path && stored.size === size && (isFrom || role === 'other')
    )
  )
}
