import type { Dirent } from 'node:fs'
import { type FileHandle, lstat, readdir, readlink, realpath } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { Type } from 'typebox'
import type { AdoptedFile } from '../../../core/contracts/adopted-files.ts'
import type { ModelDefaults, StoredFormat } from '../../../core/contracts/models.ts'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import { foreignStart, readGgufHeader, START_SIZE } from '../../../core/models/gguf-file.ts'
import { storedName, withoutShardNumber } from '../../../core/models/gguf-file-name.ts'
import {
  type FolderModel,
  type FolderTexts,
  ggufModels,
  readFolderTexts,
  safetensorsModel,
  singleFiles,
  speechModels
} from '../../../core/models/model-folder.ts'
import { type ModelName, parseModelName } from '../../../core/models/model-name.ts'
import { MAX_DEFAULT_CHARACTERS, type NewDefaults, readDefaults } from '../../../core/models/new-defaults.ts'
import { checkJson, parseJson } from '../../../core/system/json-file.ts'
import { readOpened, withRegularFile } from '../../../core/system/regular-file.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import { RESERVED_NAME } from '../../../core/system/usable-path.ts'

/** Text files in caches (references, manifests, indexes) are far smaller. */
const MAX_TEXT_BYTES = 64_000_000
const MAX_DEPTH = 8

/** Reads the caches of other tools. Skips unreadable paths, and records them in `unreadable`. */
export class CacheDisk {
  readonly unreadable: string[] = []
  readonly #locate: (path: string) => Promise<string>

  /** @param locate resolves symbolic links; throws CorralError for paths that the caller may not read */
  constructor(locate: (path: string) => Promise<string> = path => realpath(path)) {
    this.#locate = locate
  }

  /** Returns a folder's entries by name, or undefined if it is missing or unreadable. */
  async entries(folder: string): Promise<Dirent[] | undefined> {
    const read = async () => await readdir(await this.#locate(folder), { withFileTypes: true })
    const entries = await this.#reading(folder, read)
    return entries?.sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  async subfolders(folder: string): Promise<string[]> {
    const names: string[] = []
    for (const entry of (await this.entries(folder)) ?? []) {
      if (entry.name.startsWith('.')) continue
      if (entry.isDirectory() || (entry.isSymbolicLink() && (await this.#isFolder(join(folder, entry.name))))) {
        names.push(entry.name)
      }
    }
    return names
  }

  /** Returns the relative paths of all files and links below a folder, except hidden ones. */
  async files(folder: string, prefix = '', depth = 0): Promise<string[]> {
    const paths: string[] = []
    for (const entry of (await this.entries(join(folder, prefix))) ?? []) {
      if (entry.name.startsWith('.')) continue
      const path = prefix ? `${prefix}/${entry.name}` : entry.name
      if (!entry.isDirectory()) paths.push(path)
      else if (depth < MAX_DEPTH) paths.push(...(await this.files(folder, path, depth + 1)))
    }
    return paths
  }

  async text(path: string): Promise<string | undefined> {
    const read = async (file: FileHandle) => {
      const { size } = await file.stat()
      if (size > MAX_TEXT_BYTES) throw new Error(`it has ${size} bytes, which is too much for a file of its kind`)
      return (await readOpened(file, size)).toString('utf8')
    }
    return await this.#reading(path, async () => await withRegularFile(await this.#locate(path), read))
  }

  async #reading<T>(path: string, read: () => Promise<T>): Promise<T | undefined> {
    try {
      return await read()
    } catch (error) {
      if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return undefined
      this.unreadable.push(
        isSystemError(error, 'EACCES', 'EPERM')
          ? `corral may not read ${path}. Let its user read it and enter the folders above it, or copy the models.`
          : `${path} cannot be read: ${errorMessage(error)}.`
      )
      return undefined
    }
  }

  /** Inspects one file of a cache: its real path, its size and its first bytes. */
  async file(path: string, link: string): Promise<CacheFile> {
    try {
      const source = await this.#locate(link)
      // Excludes pipes and folders.
      if (!(await lstat(source)).isFile()) return { path, source, size: 0, content: 'missing' }
      return await withRegularFile(source, async (file): Promise<CacheFile> => {
        const { size } = await file.stat()
        const start = await readOpened(file, Math.min(size, START_SIZE))
        const why = foreignStart(source, start)
        if (why !== undefined) return { path, source, size, content: 'foreign', why }
        return { path, source, size, content: start.toString('latin1', 0, 4) === 'GGUF' ? 'gguf' : 'other' }
      })
    } catch (error) {
      if (isSystemError(error, 'ENOENT', 'ENOTDIR', 'ELOOP')) return { path, source: link, size: 0, content: 'missing' }
      return { path, source: link, size: 0, content: 'unreadable', why: errorMessage(error) }
    }
  }

  async #isFolder(path: string): Promise<boolean> {
    try {
      return (await lstat(await this.#locate(path))).isDirectory()
    } catch {
      // Treat a dangling link as the file that it may have been.
      return false
    }
  }
}

export interface CacheFile {
  /** Relative to the model's folder, with forward slashes. */
  path: string
  /** Absolute, with symbolic links resolved. For a dangling link, the link itself. */
  source: string
  size: number
  /** The kind of content by its first bytes, or why it could not be read. */
  content: 'gguf' | 'foreign' | 'other' | 'missing' | 'unreadable'
  /** Why it is unreadable, or a sentence about a foreign file. */
  why?: string
  claimedSha256?: string
}

/** A model in a cache, and its files that would be imported. */
export interface Candidate {
  found: string
  name: ModelName
  format: StoredFormat
  /** Absolute path that identifies it: its first file, folder or manifest. */
  path: string
  files: (AdoptedFile & { size: number })[]
  tag?: string
  defaults?: ModelDefaults
  hasGoTemplate?: boolean
  /** Sentences about lost content, with the reasons. */
  notes?: string[]
  problem?: string
}

/** Removes duplicates. The first candidate without a problem wins. */
export function withoutDuplicates(candidates: readonly Candidate[]): Candidate[] {
  const byName = new Map<string, Candidate>()
  for (const candidate of candidates) {
    const present = byName.get(candidate.found)
    if (!present || (present.problem && !candidate.problem)) byName.set(candidate.found, candidate)
  }
  return [...byName.values()]
}

export function fileProblem({ source, size, content, why }: CacheFile, format: Candidate['format']) {
  if (content === 'missing') {
    return `${source} is missing: its download was not finished, or it was deleted. Download the model again.`
  }
  if (content === 'unreadable') {
    return `corral cannot read ${source} (${why}). Let its user read that file and enter the folders above it.`
  }
  if (content === 'foreign') return why
  if (size === 0) return `${source} is empty: its download was not finished. Download the model again.`
  if (format === 'gguf' && content !== 'gguf') {
    return `${source} is not a GGUF file: it does not begin with the four letters "GGUF". Download the model again.`
  }
  return undefined
}

/** Returns a candidate's file under a name that every file system accepts. */
export function toImportedFile(file: CacheFile, path: string, role: AdoptedFile['role']): Candidate['files'][number] {
  const { source, size, claimedSha256 } = file
  const stored = path.split('/').map(storedName).join('/')
  return { source, path: stored, role, size, ...(claimedSha256 ? { claimedSha256 } : {}) }
}

const MAX_NAME_LENGTH = 96

/** Returns a valid model name: characters that corral does not allow become `-`. @param variant empty for none */
export function validName(owner: string, name: string, variant?: string): ModelName {
  const bare = `${validPart(owner)}/${validPart(name)}`
  return parseModelName(variant ? `${bare}:${validPart(variant)}` : bare)
}

function validPart(text: string): string {
  const part = text
    .replace(/[^A-Za-z0-9._-]+/g, '-')
    .replace(/\.{2,}/g, '.')
    .replace(/^[._-]+/, '')
    .slice(0, MAX_NAME_LENGTH)
    .replace(/[.-]+$/, '')
  if (part === '') return 'model'
  // Windows reserves some names for devices.
  return RESERVED_NAME.test(part) ? `model-${part}`.slice(0, MAX_NAME_LENGTH) : part
}

/** Owner for repositories from the hub's first days, which had none. */
const WITHOUT_OWNER = 'huggingface'

/** Finds the models in a cache of the Hugging Face client, or of llama.cpp, which uses the same layout. */
export async function findHuggingFace(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  for (const entry of await disk.subfolders(folder)) {
    const [kind, first, ...rest] = entry.split('--')
    if (kind !== 'models' || !first) continue
    const names = rest.length === 0 ? { owner: WITHOUT_OWNER, name: first } : { owner: first, name: rest.join('--') }
    candidates.push(...(await findRepository(join(folder, entry), names, disk)))
  }
  return candidates
}

async function findRepository(folder: string, names: Names, disk: CacheDisk): Promise<Candidate[]> {
  const found: Candidate[] = []
  for (const commit of await listCommits(folder, disk)) {
    const repository = await readModelFolder(join(folder, 'snapshots', commit), names, disk)
    for (const file of repository.files) Object.assign(file, await readClaimedDigest(repository.folder, file))
    found.push(...planRepository(repository))
  }
  // Older snapshots may have more: llama.cpp fetches each quantization at that day's commit.
  const candidates = withoutDuplicates(found)
  const blobs = candidates.length === 0 ? await disk.entries(join(folder, 'blobs')) : undefined
  if (!blobs?.some(({ name }) => /\.(incomplete|downloadInProgress)$/.test(name))) return candidates
  return [
    {
      found: `${names.owner}/${names.name}`,
      name: validName(names.owner, names.name),
      format: /gguf/i.test(names.name) ? 'gguf' : 'safetensors',
      path: folder,
      files: [],
      problem: 'Its download was not finished. Let the tool that started it finish, or pull the model with corral.'
    }
  ]
}

/** Returns the commits with downloaded files: first that of `main`, then other references, then the rest. */
async function listCommits(folder: string, disk: CacheDisk): Promise<string[]> {
  const present = await disk.subfolders(join(folder, 'snapshots'))
  const refs = present.length > 1 ? await disk.files(join(folder, 'refs')) : []
  const named: string[] = []
  for (const ref of [...refs].sort((a, b) => Number(b === 'main') - Number(a === 'main'))) {
    const commit = (await disk.text(join(folder, 'refs', ...ref.split('/'))))?.trim()
    if (commit && present.includes(commit)) named.push(commit)
  }
  return [...new Set([...named, ...present])]
}

/** Returns the digest that a file's first link names. A blob may itself link into a store with other digests. */
async function readClaimedDigest(folder: string, { path }: CacheFile): Promise<Pick<CacheFile, 'claimedSha256'>> {
  try {
    const target = await readlink(join(folder, ...path.split('/')))
    const isDigest = basename(dirname(target)) === 'blobs' && /^[0-9a-f]{64}$/.test(basename(target))
    return isDigest ? { claimedSha256: basename(target) } : {}
  } catch (error) {
    // This is not a link: systems without links get the file itself.
    if (isSystemError(error, 'EINVAL', 'UNKNOWN', 'ENOENT', 'EACCES')) return {}
    throw error
  }
}

type Names = { owner: string; name: string }

/** A model's folder in the layout of hubs: any number of quantizations, or SafeTensors weights, or both. */
interface CachedRepository extends Names {
  folder: string
  files: CacheFile[]
  texts: FolderTexts
  /** Files that are not shards, whatever their names. */
  single?: ReadonlySet<string>
}

export function planRepository({ owner, name, folder, files, texts, single }: CachedRepository): Candidate[] {
  const byPath = new Map(files.map(file => [file.path, file]))
  const paths = [...byPath.keys()]
  const title = `${owner}/${name}`
  const models = [...ggufModels(paths, single), ...speechModels(paths)]
  const candidates = models.map((model): Candidate => {
    const first = model.files[0]!.path
    // Two models of one quantization in one folder are distinguished by their file names.
    const isAlone = models.every(other => other === model || other.label?.toLowerCase() !== model.label?.toLowerCase())
    return {
      found: `${title}/${first}`,
      name: validName(owner, name, isAlone ? model.label : bareFileName(first)),
      path: join(folder, ...first.split('/')),
      ...planFiles(model, byPath)
    }
  })
  const weights = safetensorsModel(paths, texts)
  if (!weights) return candidates
  return [...candidates, { found: title, name: validName(owner, name), path: folder, ...planFiles(weights, byPath) }]
}

function planFiles({ format, files, problem }: FolderModel, byPath: ReadonlyMap<string, CacheFile>) {
  const isSingle = files.filter(({ role }) => role === 'model').length === 1
  // The store puts the shards of one model in a single folder.
  const ggufName = (path: string) => (isSingle ? withoutShardNumber(path) : path).slice(path.lastIndexOf('/') + 1)
  const fileName = (path: string) => (format === 'safetensors' ? path : ggufName(path))
  const why = problem ?? files.map(({ path }) => fileProblem(byPath.get(path)!, format)).find(Boolean)
  return {
    format,
    files: files.map(({ path, role }) => toImportedFile(byPath.get(path)!, fileName(path), role)),
    ...(why && { problem: why })
  }
}

const bareFileName = (path: string): string =>
  basename(path)
    .replace(/\.gguf(?:\.part.*|-split-.*)?$/i, '')
    .replace(/-\d{5}-of-\d{5}$/, '')

async function readModelFolder(folder: string, names: Names, disk: CacheDisk): Promise<CachedRepository> {
  const files: CacheFile[] = []
  for (const path of await disk.files(folder)) {
    files.push(await disk.file(path, join(folder, ...path.split('/'))))
  }
  const texts = await readFolderTexts(async name =>
    files.some(({ path, content }) => path === name && content === 'other')
      ? await disk.text(join(folder, name))
      : undefined
  )
  const sources = new Map(files.map(({ path, source }) => [path, source]))
  const paths = [...sources.keys()]
  const readHeader = (path: string) => withRegularFile(sources.get(path)!, file => readGgufHeader(path, file))
  const single = await singleFiles(paths, paths, readHeader)
  return { ...names, folder, files, texts, single }
}

/** Finds the models in a folder of LM Studio's: `<publisher>/<model>/<files>`. */
export async function findLmStudio(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  for (const owner of await disk.subfolders(folder)) {
    for (const name of await disk.subfolders(join(folder, owner))) {
      candidates.push(...planRepository(await readModelFolder(join(folder, owner, name), { owner, name }, disk)))
    }
  }
  return candidates
}

/** Finds the models in a folder of Ollama's, which has `manifests` and `blobs`. */
export async function findOllama(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  const blobs: Blobs = { weights: new Map(), texts: new Map() }
  for (const manifest of await readManifests(join(folder, 'manifests'), disk)) {
    for (const { kind, sha256, size } of parseLayers(manifest.content) ?? []) {
      const name = `sha256-${sha256}`
      const path = join(folder, 'blobs', name)
      if (WEIGHTS.has(kind) && !blobs.weights.has(sha256)) blobs.weights.set(sha256, await disk.file(name, path))
      if (!SETTINGS.has(kind) || blobs.texts.has(sha256) || size > MAX_SETTING_BYTES) continue
      blobs.texts.set(sha256, await disk.text(path))
    }
    candidates.push(planOllama(manifest, blobs))
  }
  return candidates
}

/** Files below Ollama's `blobs`, by digest: facts about the weights, and the settings as text. */
interface Blobs {
  weights: Map<string, CacheFile>
  texts: Map<string, string | undefined>
}

async function readManifests(folder: string, disk: CacheDisk): Promise<OllamaManifest[]> {
  const manifests: OllamaManifest[] = []
  for (const file of await disk.files(folder)) {
    const [host, namespace, model, tag, ...deeper] = file.split('/') as [string, string, string, ...string[]]
    if (tag === undefined || deeper.length > 0) continue
    const path = join(folder, host, namespace, model, tag)
    const text = await disk.text(path)
    if (text === undefined) continue
    const { value: content } = await parseUntrustedJson(text)
    manifests.push({ host, namespace, model, tag, path, content })
  }
  return manifests
}

/** A manifest below Ollama's `manifests/<host>/<namespace>/<model>/<tag>`. */
interface OllamaManifest {
  host: string
  namespace: string
  model: string
  tag: string
  path: string
  content: unknown
}

const ManifestSchema = Type.Object({
  layers: Type.Optional(
    Type.Array(
      Type.Object({
        mediaType: Type.String(),
        digest: Type.String({ pattern: '^sha256[:-][0-9a-f]{64}$' }),
        size: Type.Number()
      }),
      { maxItems: 1000 }
    )
  )
})

const LAYER = 'application/vnd.ollama.image.'
const WEIGHTS = new Set(['model', 'projector'])
const SETTINGS = new Map([
  ['system', 'system message'],
  ['params', 'parameters'],
  ['template', 'template'],
  ['messages', 'messages'],
  ['license', 'license']
])
/** A character takes up to four bytes, and JSON escapes some. */
const MAX_SETTING_BYTES = 8 * MAX_DEFAULT_CHARACTERS

/** Plans the import of a model. The tag becomes the variant, so that Ollama's name works here too. */
export function planOllama(manifest: OllamaManifest, blobs: Blobs): Candidate {
  const { namespace, model, tag, path } = manifest
  const found = formatOllamaName(manifest)
  const candidate: Candidate = { found, name: validName(namespace, model, tag), tag, format: 'gguf', path, files: [] }
  const layers = parseLayers(manifest.content)
  if (!layers) return { ...candidate, problem: `${path} is damaged. Pull the model again with Ollama.` }
  const models = layers.filter(({ kind }) => kind === 'model')
  const projectors = layers.filter(({ kind }) => kind === 'projector')
  let problem = layersProblem(layers, models, projectors)
  if (problem) return { ...candidate, problem }
  for (const layer of [...models, ...projectors]) {
    const role = layer === models[0] ? 'model' : 'projector'
    const missing = { path: '', source: layer.sha256, size: 0, content: 'missing' as const }
    const blob = blobs.weights.get(layer.sha256) ?? missing
    const file = `${role === 'model' ? '' : 'mmproj-'}${model}-${tag}`.replace(/\.gguf$/i, '')
    candidate.files.push(toImportedFile({ ...blob, claimedSha256: layer.sha256 }, `${file}.gguf`, role))
    problem ??= fileProblem(blob, 'gguf') ?? sizeProblem(blob, layer)
  }
  return { ...candidate, ...readSettings(layers, blobs.texts), ...(problem && { problem }) }
}

const ParametersSchema = Type.Record(Type.String(), Type.Unknown())
const MessagesSchema = Type.Array(Type.Object({ role: Type.String(), content: Type.Optional(Type.String()) }))

/** Reads a model's settings. A setting that cannot be imported is named in the notes. The others are imported. */
function readSettings(layers: readonly Layer[], texts: Blobs['texts']) {
  const notes: string[] = []
  const defaults: ModelDefaults = {}
  const licenses: string[] = []
  let hasGoTemplate = false as boolean
  function take(what: string, given: NewDefaults): void {
    try {
      const { options, ...others } = readDefaults(given)
      Object.assign(defaults, others, options && { options: { ...defaults.options, ...options } })
    } catch (error) {
      if (given.template && error instanceof CorralError && error.code === 'unsupported_capability') {
        // A template that only repeats the prompt is not a chat template.
        hasGoTemplate = !/^\s*\{\{-?\s*\.Prompt\s*-?\}\}\s*$/.test(given.template)
      } else notes.push(`Its ${what} cannot be imported: ${errorMessage(error)}`)
    }
  }
  for (const { kind, sha256 } of layers) {
    const what = SETTINGS.get(kind)
    if (what === undefined) continue
    const text = texts.get(sha256)
    if (text === undefined) notes.push(`Its ${what} cannot be imported: its file is missing, unreadable or too long.`)
    else if (kind === 'license') licenses.push(text)
    else if (kind === 'params') {
      const { value, fault } = parseJson(text, ParametersSchema)
      if (!value) notes.push(`Its ${what} cannot be imported: ${fault}.`)
      for (const [name, setting] of Object.entries(value ?? {})) {
        take(`parameter ${name}`, { parameters: { [name]: setting } })
      }
    } else if (kind === 'messages') {
      const { value, fault } = parseJson(text, MessagesSchema)
      if (value) take(what, { messages: value })
      else notes.push(`Its ${what} cannot be imported: ${fault}.`)
    } else take(what, { [kind]: text })
  }
  if (licenses.length > 0) take('license', { license: licenses })
  return {
    ...(Object.keys(defaults).length > 0 && { defaults }),
    ...(hasGoTemplate && { hasGoTemplate }),
    ...(notes.length > 0 && { notes })
  }
}

function formatOllamaName({ host, namespace, model, tag }: OllamaManifest): string {
  const library = host === 'registry.ollama.ai'
  return `${library ? '' : `${host}/`}${library && namespace === 'library' ? '' : `${namespace}/`}${model}:${tag}`
}

function layersProblem(layers: Layer[], models: Layer[], projectors: Layer[]): string | undefined {
  const has = (wanted: string) => layers.some(({ kind }) => kind === wanted)
  const adapter = layers.find(({ kind }) => kind === 'adapter')
  if (adapter) {
    return (
      `It is a LoRA adapter (blobs/sha256-${adapter.sha256}) on top of another model. Import that model, then name the ` +
      "adapter's file in config.yaml (models.<name>.lora), or merge the two and import the result."
    )
  }
  if (has('tensor')) {
    return "It is in Ollama's own format (a file for each tensor), which llama.cpp does not read. Pull a GGUF of it."
  }
  if (models.length === 0) return "It has no weights on this machine: it runs on Ollama's servers, or is not a model."
  if (models.length > 1 || projectors.length > 1) {
    return `Ollama stores it in ${models.length + projectors.length} files that only Ollama can combine. Pull a GGUF of it.`
  }
  return undefined
}

function sizeProblem({ source, size }: CacheFile, layer: Layer): string | undefined {
  if (size === layer.size) return undefined
  return `${source} has ${size} bytes instead of ${layer.size}: its download was not finished, or it is damaged. Pull the model again with Ollama.`
}

function parseLayers(content: unknown) {
  const { value } = checkJson(content, ManifestSchema)
  if (!value) return undefined
  return (value.layers ?? []).map(({ mediaType, digest, size }) => {
    return { kind: mediaType.replace(LAYER, ''), sha256: digest.slice(-64), size }
  })
}
type Layer = NonNullable<ReturnType<typeof parseLayers>>[number]
