import { randomBytes } from 'node:crypto'
import { link, mkdir, readFile, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { nearest } from '../../../../core/config/suggestion.ts'
import type { Conversion } from '../../../../core/contracts/conversion.ts'
import type { FileMirror, PlannedDownload, PullPlan, PullRequest } from '../../../../core/contracts/downloads.ts'
import type { Engines } from '../../../../core/contracts/engines.ts'
import type { Hardware } from '../../../../core/contracts/hardware.ts'
import type { Hooks } from '../../../../core/contracts/hooks.ts'
import type { FileLocation, Hub, HubFile, HubRepository, HubRequest } from '../../../../core/contracts/hubs.ts'
import type { Catalog, Model, Origin } from '../../../../core/contracts/models.ts'
import type { Waiting } from '../../../../core/contracts/progress.ts'
import { requireFiles, type Storage, type StoredVariant } from '../../../../core/contracts/storage.ts'
import { CorralError, whenMissing } from '../../../../core/errors.ts'
import { ggufStart } from '../../../../core/models/gguf-file.ts'
import { safetensorsLabel } from '../../../../core/models/model-folder.ts'
import {
  bareName,
  formatModelName,
  type ModelName,
  modelKey,
  parseModelName,
  parseRequestedName,
  publicModelName,
  type RequestedName
} from '../../../../core/models/model-name.ts'
import { conflictingVariant, isWhole, originInWords } from '../../../../core/models/stored-variant.ts'
import { EVERY_ADDRESS } from '../../../../core/system/allowed-address.ts'
import { formatBytes } from '../../../../core/system/bytes.ts'
import type { DataPaths } from '../../../../core/system/data-paths.ts'
import { printable } from '../../../../core/system/printable.ts'
import { parseUntrustedJson } from '../../../../core/system/untrusted-json.ts'
import { type MemoryFacts, refusal } from '../choice/choice.ts'
import { chooseFiles, filesToRead, requireFewModelFiles } from '../choice/choose-files.ts'
import { weightsFromIndex } from '../choice/choose-safetensors.ts'
import { KNOWN_NAMES, knownName } from '../choice/known-names.ts'
import { type PullReference, parsePullReference } from '../choice/pull-reference.ts'
import { hashFile } from '../transfer/digests.ts'
import { readFileStart } from '../transfer/file-source.ts'
import { partialBytes, removePartial } from '../transfer/part-file.ts'
import { diskSpace } from '../transfer/transfer-errors.ts'
import type { Transfers } from '../transfer/transfers.ts'
import type { FairQueue } from './fair-queue.ts'

export interface DownloadContext {
  storage: Storage
  catalog: Pick<Catalog, 'find' | 'get'>
  transfers: Transfers
  conversion: Pick<Conversion, 'supports'>
  paths: DataPaths
  hubs: readonly Hub[]
  search: readonly string[]
  memory: () => Promise<MemoryFacts>
  privateAddresses: readonly string[]
  partial(plan: Pick<PullPlan, 'name' | 'label'>): string | undefined
  mirrors: readonly FileMirror[]
  queue: FairQueue
  /** Milliseconds after the last watcher has left. */
  pauseAfter: number
  /** Minimum and maximum milliseconds before a retry of a detached pull whose hub does not answer. */
  retryPauses: readonly [number, number]
  hooks: Pick<Hooks, 'pullFinished' | 'pullFailed' | 'stateChanged'>
  onReceived(bytes: number): void
  log: FastifyBaseLogger
}

/** Maximum size of a config or index file that is read before files are chosen. */
const MAX_DESCRIPTION_BYTES = 64_000_000
/** Returns the private addresses that a pull may contact. @param isLocal made over the private socket */
export const allowedAddresses = ({ privateAddresses }: Pick<DownloadContext, 'privateAddresses'>, isLocal: boolean) =>
  isLocal ? [EVERY_ADDRESS] : privateAddresses

/** `owner/name:tag`, or parts of it. Never an address of a hub. */
const PLAIN_NAME = /^[^/:@]+(?:\/[^/:@]+)?(?::[^/:@]+)?$/

const NOTHING_NEEDED = { required: 0, available: 0, fits: true }

export type Locate = (file: HubFile) => Promise<FileLocation>

export async function planPull(context: DownloadContext, request: PullRequest, waiting: Waiting): Promise<PullPlan> {
  const { storage, paths, hubs } = context
  const update = request.update ? findOrigin(context, request.model) : undefined
  const known = update ?? resolveName(context, request.model)
  if (known && 'here' in known) return presentPlan(known.here, `It ${originInWords(known.here.origin)}.`)
  const reference = parsePullReference(known?.model ?? request.model, hubs)
  const isLocal = request.caller.isLocal === true
  const privateAddresses = allowedAddresses(context, isLocal)
  const as = request.as ? parseModelName(request.as) : update?.as
  const wanted = as ?? reference.name
  if (!wanted) {
    throw new CorralError(
      'invalid_model_name',
      `${JSON.stringify(request.model)} contains no name to store the model under. Add one: --as <owner>/<name>, or "as" in a request.`,
      { param: 'as' }
    )
  }
  const isNamed = !as && !reference.hub && !reference.revision && !reference.variant?.includes('/')
  const here = isNamed ? storage.find({ ...wanted, variant: reference.variant }) : undefined
  if (here?.origin.kind === 'bundled') return presentPlan(here, 'It came with corral.')
  context.transfers.prepare()
  let found: { hub: Hub; repository: HubRepository }
  try {
    found = await findRepository(context, { ...reference, privateAddresses }, waiting)
  } catch (error) {
    // A model that was imported or made here needs no hub.
    const isAbsent = error instanceof CorralError && ['repo_not_found', 'hub_unreachable'].includes(error.code)
    if (!here || here.origin.kind === 'hub' || !isAbsent) throw error
    return presentPlan(here, `It ${originInWords(here.origin)}.`, [error.message])
  }
  const { hub, repository } = found
  // Use the hub's spelling if the name differs only in case.
  const isSpelling = bareName(wanted).toLowerCase() === repository.id.toLowerCase()
  const { owner, name } = isSpelling ? parseModelName(repository.id) : wanted
  const signal = waiting.signal ?? new AbortController().signal
  const locate: Locate = file => hub.locate(repository, file, signal, privateAddresses)
  const choice = await choose(context, repository, reference, locate, signal).catch(error => {
    throw withReferences(error, hub, repository.id, reference.revision)
  })
  const files = await withSizes(choice.files, locate)
  const size = files.reduce((sum, file) => sum + (file.size ?? 0), 0)
  const { files: _, page: __, ...place } = repository
  const libraryName = getLibraryName(request, { owner, name })
  const planned = {
    ...choice,
    ...(libraryName !== undefined && { libraryName }),
    reason: [known?.reason, choice.reason].filter(Boolean).join(' '),
    name: { owner, name },
    label: wanted.variant ?? choice.label,
    repository: place,
    files,
    size,
    isLocal
  }
  const variants = storage.variants(planned.name)
  const present = (await variantWithFiles(planned, variants)) !== undefined
  if (!present) refuseOtherOrigin(repository, variants, planned.label)
  const missing = present ? 0 : await missingBytes(planned, context.partial(planned), variants)
  const disk = await diskRoom(paths.downloads, missing)
  const warnings = [...choice.warnings]
  if (!disk.fits) {
    warnings.push(
      `It needs ${formatBytes(disk.required)} more on the disk of the models folder, which has ${formatBytes(disk.available)} free.`
    )
  }
  return { ...planned, disk, warnings, present }
}

/** Returns the requested name of Ollama's library, with its tag. Undefined if the request is not such a name. */
function getLibraryName({ model: text, as }: PullRequest, model: ModelName): string | undefined {
  const whole = text.trim()
  if (as || !PLAIN_NAME.test(whole)) return undefined
  const name = parseRequestedName(whole)
  const known = knownName(name)
  if (!known || modelKey(known.model) !== modelKey(model)) return undefined
  return `${name.name}:${name.variant ?? 'latest'}`
}

/** The meaning of a pull's name: a model here that is not from a hub, or another name, and why. */
type Meaning = { here: StoredVariant } | { model: string; reason?: string }

/**
 * Resolves an alias or short name that is not a hub's own name.
 *
 * 1. A stored model is updated from its origin. If it is not from a hub, its origin has no more variants.
 * 2. A short name with a known publisher refers to the publisher's repository.
 *
 * @returns undefined for names and addresses of hubs
 * @throws CorralError `repo_not_found` for an unknown short name; `model_not_found` if it is ambiguous
 */
export function resolveName({ catalog, hubs }: DownloadContext, text: string): Meaning | undefined {
  const whole = text.trim()
  const isHubs = hubs.some(({ prefixes }) =>
    prefixes.some(prefix => whole.toLowerCase().startsWith(prefix.toLowerCase()))
  )
  if (isHubs || !PLAIN_NAME.test(whole)) return undefined
  const name = parseRequestedName(whole)
  const here = modelHere(catalog, name)
  if (here && name.owner !== undefined && modelKey(here.model) === modelKey(name)) return undefined
  if (here && (here.origin.kind === 'hub' || catalog.find(name))) {
    const stored = requireFiles(here)
    if (stored.origin.kind !== 'hub') return { here: stored }
    // A tag of Ollama's library is not a label here.
    const known = knownName(name)
    const label = known && modelKey(known.model) === modelKey(stored.model) ? known.model.variant : name.variant
    const { variant } = label === undefined ? publicModelName(stored) : { variant: label }
    return { model: formatModelName({ ...stored.model, variant }) }
  }
  if (name.owner !== undefined) return undefined
  const known = knownName(name)
  if (!known) throw unknownName(name)
  const { model, publisher, source } = known
  const repository = bareName(model)
  return {
    model: `hf:${formatModelName(model)}`,
    reason: `${whole} is ${repository} at Hugging Face, published by ${publisher} (source: ${source}).`
  }
}

/** Returns a stored model's reference at its hub and its name here. @throws CorralError `model_not_found` */
function findOrigin({ catalog, hubs }: DownloadContext, text: string): Meaning & { as?: ModelName } {
  const here = requireFiles(catalog.get(parseRequestedName(text)))
  const { kind, from } = here.origin
  if (kind !== 'hub') return { here }
  const as = { ...here.model, variant: here.label }
  const hub = hubs.find(({ name }) => from.startsWith(`${name}:`))
  // Files outside of hubs have their address as origin.
  if (!hub) return { model: from, as }
  const prefix = hub.prefixes.find(text => /^[^/]+:$/.test(text)) ?? hub.prefixes[0]
  return { model: `${prefix}${from.slice(hub.name.length + 1)}:${here.label}`, as }
}

/** Returns the model that a name means here. A missing variant may be at the model's hub. */
function modelHere(catalog: DownloadContext['catalog'], name: RequestedName): Model | undefined {
  try {
    return catalog.find(name) ?? catalog.get({ ...name, variant: undefined })
  } catch (error) {
    const isAbsent = error instanceof CorralError && error.code === 'model_not_found' && !error.details?.candidates
    if (isAbsent) return undefined
    throw error
  }
}

function unknownName(name: RequestedName): CorralError {
  const similar = nearest(modelKey({ name: name.name }), Object.keys(KNOWN_NAMES))
  const hint = similar === undefined || similar === modelKey({ name: name.name }) ? '' : ` Did you mean "${similar}"?`
  return refusal(
    'repo_not_found',
    `"${formatModelName(name)}" is not here, and no publisher's own repository is known by that name.${hint} ` +
      `"corral search ${name.name}" searches the hubs for it; pull it by <owner>/<name>, for example Qwen/Qwen3-8B-GGUF ` +
      'or hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M.'
  )
}

function presentPlan(variant: StoredVariant, reason: string, warnings: string[] = []): PullPlan {
  const { model, label, format, files, size, origin, revision } = variant
  return {
    name: { owner: model.owner, name: model.name },
    label,
    format,
    repository: { hub: origin.kind, id: bareName(model), revision, address: origin.from, gated: false },
    files: files.map(({ path, size, sha256, role }) => ({ path, storedPath: path, role, size, sha256 })),
    size,
    reason,
    choices: [],
    memory: NOTHING_NEEDED,
    disk: NOTHING_NEEDED,
    warnings,
    present: true,
    isLocal: false
  }
}

/** Uses the first hub with the repository. A failed hub is reported only if no later hub has it. */
export async function findRepository(
  { hubs: all, search }: Pick<DownloadContext, 'hubs' | 'search'>,
  { hub: named, id, revision, privateAddresses }: HubRequest & { hub?: string },
  waiting: Waiting
) {
  const names = named === undefined ? search : [named]
  const hubs = names.flatMap(name => all.find(hub => hub.name === name) ?? [])
  const failures: CorralError[] = []
  const request = { id, ...(revision && { revision }), ...(privateAddresses && { privateAddresses }) }
  for (const hub of hubs) {
    waiting.signal?.throwIfAborted()
    try {
      return { hub, repository: await hub.repository(request, waiting) }
    } catch (error) {
      if (!(error instanceof CorralError) || waiting.signal?.aborted) throw error
      failures.push(error)
    }
  }
  const failure = failures.find(({ code }) => code !== 'repo_not_found') ?? failures[0]
  if (failure && (failure.code !== 'repo_not_found' || failures.length === 1)) throw failure
  throw refusal(
    'repo_not_found',
    failure
      ? `There is no "${id}" at ${hubs.map(({ title }) => title).join(', nor at ')}. Check its owner and name; a private ` +
          'repository needs a token.'
      : 'No hub is enabled for names without prefix. Name one ("hf:<owner>/<name>"), or set "search" in the ' +
          'section "downloads" of config.yaml.'
  )
}

/** Adds the full name of each model to the error for an ambiguous name. */
function withReferences(error: unknown, { prefixes }: Hub, id: string, revision?: string): unknown {
  const isQuestion = error instanceof CorralError && error.code === 'invalid_request'
  if (!isQuestion || !Array.isArray(error.details?.choices)) return error
  const at = revision === undefined ? '' : `@${revision}`
  const choices = error.details.choices.map(choice => ({
    ...choice,
    model: `${prefixes[0]}${id}:${choice.label}${at}`
  }))
  return new CorralError(error.code, error.message, { ...error, details: { ...error.details, choices } })
}

async function choose(
  context: DownloadContext,
  repository: HubRepository,
  wanted: PullReference,
  locate: Locate,
  signal: AbortSignal
) {
  const { id } = repository
  const files = requireFewModelFiles(id, repository.files)
  const toRead = filesToRead(files, { variant: wanted.variant, file: wanted.file })
  const { index, config: configPath, headers = [] } = toRead
  const read = async (path: string | undefined) => {
    if (path === undefined) return undefined
    const text = await readText(context, repository, path, locate, signal)
    const { value, fault } = await parseUntrustedJson(text, { python: true })
    if (fault !== undefined) throw unusable(repository, path, fault)
    return value
  }
  const weights = await read(index)
  const config = await read(configPath)
  const choice = chooseFiles({
    variant: wanted.variant,
    file: wanted.file,
    id,
    files,
    memory: await context.memory(),
    weightsInIndex: weights === undefined ? undefined : weightsFromIndex(weights, index),
    config,
    headers: await readHeaders(files, headers, locate, signal)
  })
  if (choice.format === 'safetensors') choice.warnings.push(...(await conversionDoubts(context, repository, config)))
  return { ...choice, label: choice.label ?? safetensorsLabel(config) }
}

/** @throws CorralError `unsupported_capability` if llama.cpp's converter does not support the model */
async function conversionDoubts({ conversion }: DownloadContext, { id, address }: HubRepository, config: unknown) {
  const { architecture, supported } = await conversion.supports(config)
  const shown = architecture === undefined ? 'which config.json does not name' : printable(architecture, 100)
  if (supported) return []
  if (supported === undefined) return [`Whether llama.cpp can convert its architecture (${shown}) is not known yet.`]
  throw refusal(
    'unsupported_capability',
    `"${id}" cannot be converted: llama.cpp's converter does not support its architecture, ${shown} (${address}). ` +
      'Look for a repository of this model with GGUF files, or upgrade llama.cpp with "corral runtime upgrade".'
  )
}

/** Reads the headers of GGUF files. If one cannot be read, its name decides. */
async function readHeaders(files: readonly HubFile[], paths: string[], locate: Locate, signal: AbortSignal) {
  const wanted = files.filter(({ path }) => paths.includes(path))
  const read = async (file: HubFile) =>
    [file.path, await ggufStart(await readFileStart(() => locate(file), file.size, signal))] as const
  return new Map(await Promise.all(wanted.map(read)))
}

/** Downloads a small file of a repository. @throws CorralError as `Hub.locate`, and if the file is too large */
export async function readText(
  { paths, transfers }: Pick<DownloadContext, 'paths' | 'transfers'>,
  repository: HubRepository,
  path: string,
  locate: Locate,
  signal: AbortSignal
): Promise<string> {
  const file = repository.files.find(listed => listed.path === path)!
  // A folder without a record is removed at the next start if corral crashes.
  const folder = join(paths.downloads, `plan-${randomBytes(6).toString('hex')}`)
  const target = join(folder, 'description.json')
  await mkdir(folder, { recursive: true, mode: 0o700 })
  try {
    await transfers.run({
      identity: `${repository.hub} ${repository.id} ${repository.revision}`,
      files: [{ ...file, target }],
      locate: async () => {
        const location = await locate(file)
        const size = file.size ?? location.size ?? 0
        if (size > MAX_DESCRIPTION_BYTES) throw unusable(repository, path, `it has ${size} bytes`)
        return location
      },
      signal,
      onProgress: () => undefined
    })
    return await readFile(target, 'utf8')
  } finally {
    await rm(folder, { recursive: true, force: true, maxRetries: 3 })
  }
}

function unusable({ address }: HubRepository, path: string, why: string): CorralError {
  return refusal(
    'unsupported_capability',
    `${path} of ${address} cannot be used: ${why}. Ask its author, or choose another repository.`
  )
}

/** Locates files without a size, and the first file, to find out whether it may be downloaded. */
async function withSizes(files: PullPlan['files'], locate: Locate): Promise<PullPlan['files']> {
  const sized: PullPlan['files'] = []
  for (const [index, file] of files.entries()) {
    const isKnown = index > 0 && file.size !== undefined
    const located: Partial<FileLocation> = isKnown ? {} : await locate(file)
    const sha256 = file.gitSha1 ? file.sha256 : (file.sha256 ?? located.sha256)
    sized.push({ ...file, size: file.size ?? located.size, ...(sha256 ? { sha256 } : {}) })
  }
  return sized
}

/** @throws CorralError `model_exists` if a model of this name has another origin */
function refuseOtherOrigin(repository: HubRepository, variants: StoredVariant[], label: string): void {
  const other = conflictingVariant(variants, hubOrigin(repository), label)
  if (!other) return
  const name = bareName(other.model)
  throw refusal(
    'model_exists',
    `"${name}" already exists and ${originInWords(other.origin)}; the files of ${repository.address} are different. ` +
      `Store them under another name ("as"), or remove the model first with "corral rm ${name}".`
  )
}

/** Returns the memory for models, within the scheduler's limits: the machine's or container's, and its GPUs'. */
export function machineMemory(
  { memory, gpus }: Hardware,
  settings: Pick<Engines['settings'], 'memory' | 'gpuMemory'>
): MemoryFacts {
  const own = gpus.filter(gpu => gpu.usable && !gpu.unifiedMemory)
  return {
    ram: Math.min(memory.limit ?? memory.total, memory.total),
    most: settings.memory ?? Number.POSITIVE_INFINITY,
    gpu: own.reduce(
      (sum, gpu) => sum + Math.min(gpu.totalMemory ?? 0, settings.gpuMemory ?? Number.POSITIVE_INFINITY),
      0
    )
  }
}

/** Returns whether files fit on a folder's disk. @param missing bytes that must still be downloaded */
export async function diskRoom(folder: string, missing: number): Promise<PullPlan['disk']> {
  // The folder may have been deleted by hand.
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const { free: available, reserve } = await diskSpace(folder)
  const required = missing === 0 ? 0 : missing + reserve
  return { required, available, fits: available >= required }
}

// ---- in the folder of a pull ---------------------------------------------------------------------------------------

export const fileTarget = (folder: string, { storedPath }: Pick<PlannedDownload, 'storedPath'>): string =>
  join(folder, 'files', ...storedPath.split('/'))

/** Identifies the content of each file by its stored path: its digest, otherwise its revision. */
function contentByPath({ repository: { hub, id, revision }, files }: PullPlan): Map<string, string> {
  return new Map(
    files.map(file => [file.storedPath, file.sha256 ?? file.gitSha1 ?? `${hub} ${id} ${revision} ${file.path}`])
  )
}

export function sameFiles(one: PullPlan, other: PullPlan): boolean {
  const [left, right] = [contentByPath(one), contentByPath(other)]
  return left.size === right.size && [...left].every(([path, content]) => right.get(path) === content)
}

/** Removes files and partial data of one plan whose content differs in another plan. */
export async function dropChangedPartials(folder: string, from: PullPlan, to: PullPlan): Promise<void> {
  const kept = contentByPath(to)
  for (const [storedPath, content] of contentByPath(from)) {
    if (kept.get(storedPath) === content) continue
    const target = fileTarget(folder, { storedPath })
    await rm(target, { force: true })
    await removePartial(target)
  }
}

export async function fetchedBytes(folder: string, { files }: Pick<PullPlan, 'files'>): Promise<number[]> {
  const completed: number[] = []
  for (const file of files) {
    const target = fileTarget(folder, file)
    const found = await stat(target).catch(whenMissing)
    completed.push(found?.size ?? (await partialBytes(target)))
  }
  return completed
}

// ---- in storage ----------------------------------------------------------------------------------------------------

export const plannedOrigin = ({ origin, repository }: Pick<PullPlan, 'origin' | 'repository'>): Origin =>
  origin ?? hubOrigin(repository)

/** Returns the recorded origin of a hub's model. It names no server, since mirrors are the same origin. */
export function hubOrigin({ hub, id, address, revision }: Omit<HubRepository, 'files'>): Origin {
  // An id that is an address may be signed.
  return { kind: 'hub', from: id.includes('://') ? address : `${hub}:${id}`, revision }
}

/** Returns the variant that has exactly a plan's files, still on disk. */
export async function variantWithFiles(
  plan: Pick<PullPlan, 'label' | 'format' | 'files' | 'repository' | 'origin'>,
  variants: StoredVariant[]
): Promise<StoredVariant | undefined> {
  const isLabelled = ({ label }: StoredVariant) => label.toLowerCase() === plan.label.toLowerCase()
  for (const variant of [...variants].sort((a, b) => Number(isLabelled(b)) - Number(isLabelled(a)))) {
    if (variant.format !== plan.format || variant.files.length !== plan.files.length) continue
    const has = await Promise.all(plan.files.map(file => hasFile(variant, file, plannedOrigin(plan))))
    if (has.every(Boolean) && (await isWhole(variant))) return variant
  }
  return undefined
}

async function hasFile({ directory, files, origin }: StoredVariant, file: PlannedDownload, from: Origin) {
  const { sha256, gitSha1, size } = file
  if (sha256) return files.some(stored => stored.role === file.role && stored.sha256 === sha256)
  const stored = files.find(({ path }) => path === file.storedPath)
  if (!stored || (size !== undefined && stored.size !== size)) return false
  const isSameOrigin = origin.kind === 'hub' && origin.from === from.from
  // The content of a revision never changes.
  if (isSameOrigin && origin.revision === from.revision) return true
  if (!gitSha1) return isSameOrigin && size !== undefined
  // Computed each time, since only small files lack a SHA-256.
  const digests = await hashFile(join(directory, stored.path), stored.size, true).catch(whenMissing)
  return digests?.gitSha1 === gitSha1
}

/** Returns the files of a plan that variants already have, with their absolute paths there. */
function storedFiles({ files }: Pick<PullPlan, 'files'>, variants: StoredVariant[]) {
  const all = variants.flatMap(({ directory, files }) => files.map(stored => ({ directory, ...stored })))
  return files.flatMap(file => {
    const same = file.sha256 === undefined ? undefined : all.findLast(({ sha256 }) => sha256 === file.sha256)
    return same ? [{ file, source: join(same.directory, ...same.path.split('/')) }] : []
  })
}

/** Returns the bytes of a plan's files that still have to be downloaded. @param folder of an unfinished pull */
export async function missingBytes(
  plan: Pick<PullPlan, 'files'>,
  folder: string | undefined,
  variants: StoredVariant[]
): Promise<number> {
  const stored = new Set(storedFiles(plan, variants).map(({ file }) => file))
  const fetched = folder === undefined ? [] : await fetchedBytes(folder, plan)
  const missing = plan.files.map((file, index) => Math.max(0, (file.size ?? 0) - (fetched[index] ?? 0)))
  return missing.reduce((sum, bytes, index) => sum + (stored.has(plan.files[index]!) ? 0 : bytes), 0)
}

/** Links files that other variants already have, for example a projector. The transfer verifies them too. */
export async function linkStored(plan: PullPlan, folder: string, variants: StoredVariant[]): Promise<void> {
  for (const { file, source } of storedFiles(plan, variants)) {
    const target = fileTarget(folder, file)
    await mkdir(dirname(target), { recursive: true })
    // If the target exists, or the source cannot be linked or was deleted, the transfer verifies or downloads it.
    await link(source, target).catch(() => undefined)
  }
}
