import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { Type } from 'typebox'
import { Path } from '../../../core/config/core-schema.ts'
import type { AdoptedFile, OnCopied } from '../../../core/contracts/adopted-files.ts'
import type { Caller } from '../../../core/contracts/callers.ts'
import type { Adoption, FoundModel } from '../../../core/contracts/found-models.ts'
import type { Storage, StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError } from '../../../core/errors.ts'
import { formatModelName } from '../../../core/models/model-name.ts'
import { isWhole } from '../../../core/models/stored-variant.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { checkJson } from '../../../core/system/json-file.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import {
  CacheDisk,
  type Candidate,
  findHuggingFace,
  findLmStudio,
  findOllama,
  validName,
  withoutDuplicates
} from './hub-caches.ts'

export default definePlugin({
  name: 'adoption',
  api: 1,
  description: 'Models in the caches of Hugging Face, Ollama and LM Studio, for corral import --from',
  offers: ['adoption'],
  needs: ['storage'],
  options: Type.Object(
    {
      huggingface_cache: Path({
        default: '',
        description: "Folder of the Hugging Face client's cache; empty uses HF_HUB_CACHE, HF_HOME and LLAMA_CACHE"
      }),
      ollama_models: Path({
        default: '',
        description: "Folder of Ollama's models; empty uses OLLAMA_MODELS and the folder of Ollama's service"
      }),
      lm_studio_models: Path({
        default: '',
        description: "Folder of LM Studio's models; empty uses LM Studio's own settings"
      })
    },
    { additionalProperties: false, restart: true }
  ),
  setup(context, options) {
    const host = { env: process.env, home: homedir(), platform: process.platform }
    const tool = (name: string, setting: keyof typeof options, folders: FindFolders, models: Tool['models']): Tool => ({
      name,
      setting,
      folders: async disk => (options[setting] ? [options[setting]] : await folders(host, path => disk.text(path))),
      models
    })
    const tools = [
      tool('huggingface', 'huggingface_cache', huggingFaceFolders, findHuggingFace),
      tool('ollama', 'ollama_models', ollamaFolders, findOllama),
      tool('lm-studio', 'lm_studio_models', lmStudioFolders, findLmStudio)
    ]
    return { services: { adoption: createToolImports(tools, context.service('storage')) } }
  }
})

interface HostEnvironment {
  env: Record<string, string | undefined>
  home: string
  platform: NodeJS.Platform
}

type ReadText = (path: string) => Promise<string | undefined>
/** Finds a tool's folders if the settings do not name one. */
type FindFolders = (host: HostEnvironment, read: ReadText) => string[] | Promise<string[]>

/** Returns the folders of the Hugging Face client and of llama.cpp, which uses the same layout. */
export function huggingFaceFolders({ env, home }: HostEnvironment): string[] {
  const ofClient = env.HF_HOME || join(env.XDG_CACHE_HOME || join(home, '.cache'), 'huggingface')
  const hub = env.HF_HUB_CACHE || env.HUGGINGFACE_HUB_CACHE || join(ofClient, 'hub')
  return distinct([...(env.LLAMA_CACHE ? [env.LLAMA_CACHE] : []), hub], home)
}

/** Returns Ollama's folders: the user's own and the system service's. */
export function ollamaFolders({ env, home, platform }: HostEnvironment): string[] {
  const ofService = platform === 'linux' ? ['/usr/share/ollama/.ollama/models'] : []
  return distinct([env.OLLAMA_MODELS || join(home, '.ollama', 'models'), ...ofService], home)
}

const LmStudioSettings = Type.Object({ downloadsFolder: Type.String({ minLength: 1 }) })

/** Returns LM Studio's folders: its own, or those named in its settings.json. */
export async function lmStudioFolders({ home }: HostEnvironment, read: ReadText): Promise<string[]> {
  const pointer = (await read(join(home, '.lmstudio-home-pointer')))?.trim()
  const standard = [join(home, '.lmstudio'), join(home, '.cache', 'lm-studio')]
  const folders: string[] = []
  for (const own of distinct(pointer ? [pointer, ...standard] : standard, home)) {
    // LM Studio itself falls back to its defaults if the file is damaged.
    const settings = await parseUntrustedJson((await read(join(own, 'settings.json'))) ?? '')
    const { value } = checkJson(settings.value, LmStudioSettings)
    folders.push(value?.downloadsFolder ?? join(own, 'models'))
  }
  return distinct(folders, home)
}

const distinct = (folders: string[], home: string): string[] => [
  ...new Set(folders.map(folder => resolve(folder.replace(/^~(?=$|[\\/])/, () => home))))
]

export interface Tool {
  name: string
  setting: string
  folders(disk: CacheDisk): Promise<string[]>
  /** Returns the models in one of these folders, none if the folder does not exist. */
  models(folder: string, disk: CacheDisk): Promise<Candidate[]>
}

export function createToolImports(tools: readonly Tool[], storage: Storage): Adoption {
  function findTool(from: string): Tool {
    const tool = tools.find(tool => tool.name === from)
    if (tool) return tool
    const names = tools.map(tool => tool.name).join(', ')
    throw refuse('from', `corral does not know the models of ${JSON.stringify(from)}. "from" is one of ${names}.`)
  }

  return {
    async find(from, caller) {
      const tool = findTool(from)
      const { folders, candidates, unreadable } = await search(tool, storage, caller)
      if (candidates.length === 0 && unreadable.length > 0) {
        throw refuse('from', `${unreadable[0]} Or name another folder with adoption.${tool.setting} in config.yaml.`)
      }
      // Keep the order found, but put Ollama's tags before "latest", which then gets a label that differs from all
      // tags.
      const order = (candidate: Candidate) => `${formatModelName(candidate.name)}${isLatest(candidate) ? ':~' : ''}`
      candidates.sort((a, b) => (order(a) < order(b) ? -1 : Number(order(a) > order(b))))
      const models = candidates.map((candidate): FoundModel => {
        const { found, name, format, files, path, problem, notes = [] } = candidate
        const twin = problem ? undefined : storedAs(candidate, storage)
        return {
          found,
          name: formatModelName(name),
          format,
          size: files.reduce((sum, file) => sum + file.size, 0),
          path,
          ...(problem && { problem }),
          ...(notes.length > 0 && { notes }),
          present: twin !== undefined,
          ...(twin && { storedAs: twin.publicName })
        }
      })
      return { from, folder: folders.join(', '), models, ...(unreadable.length > 0 && { unreadable }) }
    },

    async adopt(from, found, name, waiting, caller) {
      const tool = findTool(from)
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
      if (candidate.problem) throw refuse('found', `${found} cannot be imported. ${candidate.problem}`)
      const { variant: label = candidate.name.variant, ...bare } = name ?? candidate.name
      const stored = { ...bare, ...(label !== undefined && { variant: label }) }
      const isOwnName = formatModelName(stored).toLowerCase() === formatModelName(candidate.name).toLowerCase()
      const tag = isOwnName && candidate.tag !== undefined ? candidate.name.variant : undefined
      const { files, release } = await shareFiles(candidate.files, storage, caller)
      let linked = true
      const onCopied: OnCopied = ({ role }) => {
        // Small descriptive files are always copied.
        linked &&= role === 'other'
      }
      const request = {
        name: stored,
        format: candidate.format,
        origin: { kind: 'import' as const, from: candidate.path, ...(tag !== undefined && { tag }) },
        files,
        defaults: candidate.defaults,
        becomesDefault: isOwnName && isLatest(candidate),
        caller
      }
      const variant = await storage.adopt(request, { ...waiting, onCopied }).finally(release)
      return { variant, linked, notes: [...(candidate.notes ?? []), ...templateNotes(candidate, variant)] }
    }
  }
}

const isLatest = ({ tag, name }: Candidate) => tag !== undefined && name.variant === undefined

function templateNotes({ hasGoTemplate }: Candidate, { metadata, defaults }: StoredVariant): string[] {
  if (!hasGoTemplate) return []
  const reason = "Ollama's template is in Go's template language, which llama.cpp does not read"
  if (metadata.chatTemplate !== undefined) {
    const other = defaults?.template === undefined ? "the one in the model's own file" : 'the one that was set here'
    return [`${reason}: the chat template is ${other}.`]
  }
  return [
    `${reason}, and the model's own file has no chat template: here it is a base model, which completes text. Give it ` +
      'a template in Jinja with POST /api/create ("from" and "template").'
  ]
}

/** Chooses the files to import, from another model here if it has them. @returns `release` to call afterwards */
async function shareFiles(files: Candidate['files'], storage: Storage, caller: Caller | undefined) {
  const releases: (() => void)[] = []
  const shared = files.map(async ({ size, ...file }): Promise<AdoptedFile> => {
    for (const variant of file.claimedSha256 === undefined ? [] : storage.list()) {
      const same = variant.files.find(each => each.sha256 === file.claimedSha256 && each.size === size)
      const source = same && join(variant.directory, ...same.path.split('/'))
      // A caller who may not import from the store must not reach its files by naming their digests.
      if (source === undefined || !(await mayRead(source, storage, caller)) || !(await isWhole(variant))) continue
      releases.push(storage.hold(variant))
      return { source, path: file.path, role: file.role, sha256: same!.sha256 }
    }
    return file
  })
  return { files: await Promise.all(shared), release: () => void releases.map(release => release()) }
}

const refuse = (param: string, message: string) => new CorralError('invalid_request', message, { param })

/** Searches a tool's folders that the caller may read. @throws CorralError `path_not_allowed` if none */
async function search(tool: Tool, storage: Storage, caller: Caller | undefined) {
  const disk = new CacheDisk(path => storage.importPath(path, caller))
  const folders: string[] = []
  // The tool's own settings may name the folders. Reading them is not subject to the caller's rights.
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
  return { folders, candidates: distinctNames(withoutDuplicates(candidates)), unreadable: disk.unreadable }
}

async function mayRead(folder: string, storage: Storage, caller: Caller | undefined): Promise<boolean> {
  try {
    await storage.importPath(folder, caller)
  } catch (error) {
    // Other errors are reported when the folder is read.
    return !(error instanceof CorralError)
  }
  return true
}

/** Renames models that would otherwise replace each other. The shortest name in the tool stays. */
function distinctNames(candidates: Candidate[]): Candidate[] {
  const taken = new Map<string, string>()
  const storageKey = ({ name, format }: Candidate) => `${format} ${formatModelName(name).toLowerCase()}`
  return [...candidates]
    .sort((a, b) => a.found.length - b.found.length || (a.found < b.found ? -1 : 1))
    .map(candidate => {
      let distinct = candidate
      for (let number = 2; taken.has(storageKey(distinct)); number++) {
        const { owner, name, variant } = candidate.name
        const other = validName(owner, `${name}-${number}`, variant)
        const wanted = `the name ${formatModelName(candidate.name)} is taken by "${taken.get(storageKey(candidate))}"`
        const notes = [`It is called ${formatModelName(other)} here: ${wanted}.`, ...(candidate.notes ?? [])]
        distinct = { ...candidate, name: other, notes }
      }
      taken.set(storageKey(distinct), candidate.found)
      return distinct
    })
}

/** Returns the variant that a candidate is stored as. Ollama's models are compared by name and settings. */
function storedAs(candidate: Candidate, storage: Storage): StoredVariant | undefined {
  const { name, tag, path, defaults } = candidate
  const named = isLatest(candidate) || name.variant !== undefined ? storage.find(name) : storage.variants(name)
  const imported = tag === undefined ? storage.list().filter(variant => isImportedFrom(variant, path)) : []
  return [named ?? [], imported].flat().find(variant => {
    const lacksSettings = defaults && !variant.defaults && variant.origin.kind === 'import'
    return !lacksSettings && hasSameFiles(variant, candidate)
  })
}

const isImportedFrom = ({ origin }: StoredVariant, path: string) => origin.kind === 'import' && origin.from === path

/** Returns whether a stored variant has the candidate's files, by name, size and claimed digest. */
function hasSameFiles(variant: StoredVariant, { format, files, path }: Candidate): boolean {
  if (variant.format !== format || variant.files.length !== files.length) return false
  const isFrom = isImportedFrom(variant, path)
  return files.every(({ path, role, size, claimedSha256 }) =>
    variant.files.some(stored =>
      claimedSha256
        ? stored.sha256 === claimedSha256 && stored.role === role
        : stored.path === path && stored.size === size && (isFrom || role === 'other')
    )
  )
}
