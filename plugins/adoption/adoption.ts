import type { OnCopied } from '../../core/contracts/adopted-files.ts'
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
    async find(from: string): Promise<FoundModels> {
      const tool = toolOf(from)
      const { folders, candidates, unreadable } = await search(tool)
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

    async adopt(from: string, found: string, name: ModelName | undefined, waiting: Waiting) {
      const tool = toolOf(from)
      const { folders, candidates, unreadable } = await search(tool)
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
          files: candidate.files.map(({ size: _, ...file }) => file)
        },
        { ...waiting, onCopied }
      )
      return { variant, linked }
    }
  }
}

const refuse = (param: string, message: string) => new CorralError('invalid_request', message, { param })

async function search(tool: Tool): Promise<{ folders: string[]; candidates: Candidate[]; unreadable: string[] }> {
  const disk = new CacheDisk()
  const folders = await tool.folders(disk)
  const candidates: Candidate[] = []
  for (const folder of folders) candidates.push(...(await tool.models(folder, disk)))
  // The same model may be in two folders of one tool.
  return { folders, candidates: distinctNames(withoutDoubles(candidates)), unreadable: disk.unreadable }
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
