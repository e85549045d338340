import type { PlannedDownload, PullPlan } from '../../../../core/contracts/downloads.ts'
import type { HubFile } from '../../../../core/contracts/hubs.ts'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { labelFromFileName, shardNames, storedName } from '../../../../core/models/gguf-file-name.ts'
import {
  checkpointModels,
  describesSafetensors,
  type FolderModel,
  indexedWeights,
  isTokenizer,
  listed,
  safetensorsLabel,
  speechModels
} from '../../../../core/models/model-folder.ts'
import { formatBytes } from '../../../../core/system/bytes.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import {
  ambiguousFiles,
  asLabel,
  baseName,
  byPath,
  findGgufModels,
  type GgufCandidate,
  type GgufModels,
  type Headers,
  hasTwins,
  isLabel,
  isOneFamily,
  matchingGguf,
  parentFolder,
  totalSize
} from './gguf-models.ts'
import CONTENTS from './other-contents.json' with { type: 'json' }
import QUANTIZATIONS from './quantizations.json' with { type: 'json' }

/** The requested part of a repository. Without any field, the default. */
export interface Wanted {
  /** A label, a file's path or name with or without `.gguf`, or a folder. */
  variant?: string | undefined
  file?: string | undefined
}

/** Bytes of memory on this machine: main memory (at most what the process may use), and graphics memory or 0. */
export interface MemoryFacts {
  ram: number
  /** The part of `ram` that models may use, if it is limited. */
  most?: number
  gpu: number
}

export interface ChoiceRequest extends Wanted {
  /** In the hub's spelling, for messages, and for the label if no file name has one. */
  id: string
  files: readonly HubFile[]
  /** The result of `weightsFromIndex` for the index from `filesToRead`. */
  weightsInIndex?: string[]
  /** Parsed config.json of SafeTensors weights, if it was read: it names their type. */
  config?: unknown
  headers?: Headers
  memory: MemoryFacts
}

/** The part of a pull's plan that follows from the listing and the memory. */
export interface Choice
  extends Pick<PullPlan, 'format' | 'files' | 'size' | 'reason' | 'choices' | 'memory' | 'warnings'> {
  /** Undefined for SafeTensors weights without `config`: see `safetensorsLabel`. */
  label: string | undefined
}

export function toPlannedFile(file: HubFile, role: PlannedDownload['role'], storedPath: string): PlannedDownload {
  const { path, size, sha256, gitSha1 } = file
  return { path, storedPath, role, size, sha256, gitSha1 }
}

/** Removes files whose stored names differ only in case from an earlier one: some disks cannot store both. */
export function withoutNameTwins(files: readonly PlannedDownload[]): PlannedDownload[] {
  const names = new Set<string>()
  return files.filter(({ storedPath }) => names.size < names.add(storedPath.toLowerCase()).size)
}

/** Creates the error for a repository, or a part of it, that cannot be pulled. */
export const refusal = (code: ErrorCode, message: string, details?: Record<string, unknown>): CorralError =>
  new CorralError(code, message, { param: 'model', ...(details ? { details } : {}) })

const GIB = 2 ** 30
const MIN_GPU_BYTES = 4 * GIB

/** Bytes that models may use: in the fastest memory, and in total. */
export interface Budget {
  best: number
  all: number
  gpu: boolean
}

/** Leaves the rest to the system, other programs and the context. */
export function memoryBudget({ ram, most, gpu }: MemoryFacts): Budget {
  const main = Math.min(0.7 * ram, most ?? ram)
  if (gpu < MIN_GPU_BYTES) return { best: main, all: main, gpu: false }
  return { best: 0.9 * gpu, all: main + gpu, gpu: true }
}

/** Estimates the bytes of memory for a model with a context of usual length. */
export const requiredMemory = (weights: number, projector: number): number =>
  Math.round(weights * 1.1 + 0.5 * GIB + projector)

export function memoryCheck(required: number, budget: Budget): PullPlan['memory'] {
  const available = Math.round(required <= budget.best ? budget.best : budget.all)
  return { required, available, fits: required <= available }
}

/** Repositories with all quantizations of huge models have a few hundred files. */
const MAX_MODEL_FILES = 2_000
const MODEL_FILE =
  /\.(?:gguf(?:[.-].*)?|gguf_file|safetensors|dat|imatrix|onnx|onnx\.json)$|^ggml-.*\.bin$|^(?:model_index\.json|(?:readme|licen[cs]e|notice)(?:\..*)?|template|system|params)$/i

/** Returns the files to choose among: in a long listing, those whose names may belong to a model. */
export function requireFewModelFiles(id: string, files: readonly HubFile[]): readonly HubFile[] {
  if (files.length <= MAX_MODEL_FILES) return files
  const relevant = files.filter(({ path }) => {
    const name = baseName(path)
    return MODEL_FILE.test(name) || describesSafetensors(name)
  })
  if (relevant.length <= MAX_MODEL_FILES) return relevant
  throw refusal(
    'unsupported_capability',
    `${id} has ${relevant.length} files that could belong to a model, more than ${MAX_MODEL_FILES}. ` +
      'Pull a model by the address of its file, or look for another repository.'
  )
}

/** Small text files that are downloaded with GGUF models: descriptions, licences, chat templates. */
const COMPANION =
  /^(?:readme\.md|licen[cs]e(?:\.(?:md|txt))?|notice(?:\.(?:md|txt))?|config\.json|[^/]+\.jinja|template|system|params)$/i
const MAX_COMPANION_BYTES = 2 ** 20

/**
 * Decides which files of a repository a pull downloads: one quantization of one model. The order of the listing does
 * not matter.
 *
 * 1. What the request names: a GGUF file or label, then a SafeTensors file, folder or type.
 * 2. The only GGUF model of the repository.
 * 3. If all GGUF files are one model, by name and header: the best quantization for the memory (`defaultQuantization`),
 *    or the only file without a known quantization.
 * 4. SafeTensors weights, which must be converted first.
 *
 * A repository without such files may have models for speech or images instead.
 *
 * @throws CorralError `unsupported_capability` if nothing can be run, saying what there is instead; `repo_not_found` if
 * the requested variant is missing, listing the others; `invalid_request` if several models match
 */
export function chooseFiles(request: ChoiceRequest): Choice {
  const { id, files } = request
  const models = findGgufModels(id, files, request.headers)
  const paths = files.map(({ path }) => path).sort()
  const others = [...speechModels(paths), ...checkpointModels(paths)]
  const hasOnlyOthers = models.candidates.length === 0 && safetensorsFolders(files).length === 0 && others.length > 0
  if (hasOnlyOthers) return chooseOther(request, others)
  const route = chooseRoute(request, models)
  if (route.folder !== undefined) return chooseSafetensors(request, route.folder)
  if (route.candidate) return ggufChoice(request, models, route.candidate, route.reason)
  throw nothingToRun(id, files, models)
}

/**
 * Returns the files to read before choosing. For SafeTensors weights: config.json, and the index that lists which of
 * them belong together, for `weightsFromIndex`. For GGUF: files whose names are ambiguous.
 */
export function filesToRead(
  files: readonly HubFile[],
  wanted: Wanted = {}
): { index?: string | undefined; config?: string | undefined; headers?: string[] } {
  const models = findGgufModels('', files)
  const headers = ambiguousFiles(models, wanted.file ?? wanted.variant)
  if (headers.length > 0) return { headers }
  let folder: string | undefined
  try {
    folder = chooseRoute({ id: '', files, memory: { ram: 0, gpu: 0 }, ...wanted }, models).folder
  } catch (error) {
    // `chooseFiles` will refuse this, with the repository's name in its message.
    if (!(error instanceof CorralError)) throw error
  }
  if (folder === undefined) return {}
  const existing = (name: string) => files.find(({ path }) => path === folder + name)?.path
  return { index: existing(INDEX), config: existing('config.json') }
}

type Route = { candidate?: GgufCandidate; reason: string; folder?: string }

function chooseRoute(request: ChoiceRequest, models: GgufModels): Route {
  const { id, files, memory } = request
  const wanted = request.file ?? request.variant
  const folders = safetensorsFolders(files)
  if (wanted !== undefined) return wantedRoute(request, models, folders, wanted)

  const { candidates } = models
  const loadable = candidates.filter(({ quantization }) => !isUnsupported(quantization ?? ''))
  const only = (candidate: GgufCandidate, what: string) => {
    return { candidate, reason: `${baseName(candidate.path)} is the only model ${what}.` }
  }
  if (candidates.length === 1 && loadable[0]) return only(loadable[0], 'in the repository')
  if (hasTwins(candidates) || !isOneFamily(loadable)) throw ambiguous(id, models, candidates)
  const best = defaultQuantization(candidates, memoryBudget(memory))
  if (best) return best
  const unlabelled = candidates.filter(({ quantization }) => !quantization)
  if (unlabelled.length === 1) return only(unlabelled[0]!, 'that llama.cpp loads')
  if (unlabelled.length > 1) throw ambiguous(id, models, candidates)
  return { reason: '', folder: oneFolder(id, folders) }
}

function oneFolder(id: string, folders: string[]): string | undefined {
  if (folders.length <= 1) return folders[0]
  const labels = folders.map(folder => folder.slice(0, -1))
  throw refusal(
    'invalid_request',
    `${id} has ${folders.length} sets of SafeTensors weights: ${labels.join(', ')}. Name one after a colon, as in ${id}:${labels[0]}.`,
    { choices: labels.map(label => ({ label, size: 0 })) }
  )
}

function wantedRoute(request: ChoiceRequest, models: GgufModels, folders: string[], wanted: string): Route {
  const { id, files } = request
  const found = matchingGguf(models, wanted)
  if (found.length > 1) throw ambiguous(id, models, found, wanted)
  const [candidate] = found
  if (candidate) return { candidate, reason: requestedReason(candidate, wanted) }

  const isNamed = (name: string) => name === wanted || name === `${wanted}.gguf`
  const named = files.filter(({ path }) => isNamed(path) || isNamed(baseName(path))).sort(byPath)
  const weights = named.find(({ path }) => path.endsWith('.safetensors') && folders.includes(parentFolder(path)))
  if (weights) return { reason: '', folder: parentFolder(weights.path) }
  if (named.length > 0) throw notAModel(id, named[0]!.path, models)
  const text = wanted.toLowerCase()
  const folder = folders.find(name => name.toLowerCase() === `${text}/`)
  if (folder) return { reason: '', folder }
  // Only the config, which is not read yet, shows whether the weights in the root have this type.
  if (folders[0] === '' && /^(?:safetensors|b?f16|f32|fp16|fp32|fp8)$/.test(text)) return { reason: '', folder: '' }
  const isType = request.file === undefined && labelFromFileName(wanted) !== undefined
  if (models.candidates.length === 0 && folders[0] === '' && isType) return { reason: '', folder: '' }
  if (models.candidates.length + folders.length === 0) throw nothingToRun(id, files, models)
  const choices = [
    ...listChoices(models.candidates),
    ...folders.map(name => ({ label: name === '' ? 'SAFETENSORS' : name.slice(0, -1), size: 0 }))
  ]
  throw unknownVariant(id, wanted, choices, models.incomplete)
}

function requestedReason({ label, quantization, path }: GgufCandidate, wanted: string): string {
  const same = [label, quantization, path, baseName(path)].some(name => name?.toLowerCase() === wanted.toLowerCase())
  return same ? `${wanted} was requested.` : `${label} matches ${wanted}, which was requested.`
}

function ggufChoice(request: ChoiceRequest, models: GgufModels, candidate: GgufCandidate, reason: string): Choice {
  const { projector, draft } = candidate
  const plan = (file: HubFile, role: PlannedDownload['role']) =>
    toPlannedFile(file, role, storedName(baseName(file.path)))
  const files = withoutNameTwins([
    ...candidate.files.map(file => plan(file, 'model')),
    ...(projector ? [plan(projector, 'projector')] : []),
    ...(draft ? [plan(draft, 'draft')] : []),
    ...companions(request.files, parentFolder(candidate.path)).map(file => plan(file, 'other'))
  ])
  const memory = memoryCheck(requiredFor(candidate), memoryBudget(request.memory))
  const warnings = misfit(candidate.label, memory)
  if (isUnsupported(candidate.quantization ?? '')) {
    warnings.push(`${candidate.label} is for other engines or old versions: llama.cpp will probably not load it.`)
  }
  if (!projector && models.looseProjectors.length > 0) {
    warnings.push(
      `It is not clear which projector belongs to the model (${models.looseProjectors.join(', ')}), so none is downloaded: ` +
        'the model will read text only.'
    )
  }
  for (const set of models.incomplete) warnings.push(`Not used: ${incompleteText(set)}.`)
  return {
    format: 'gguf',
    label: candidate.label,
    files,
    size: totalSize(files),
    reason,
    choices: listChoices(models.candidates).filter(({ label }) => label !== candidate.label),
    memory,
    warnings
  }
}

/** Chooses one of the models that recognize speech and the voices, by its label or file. */
function chooseOther({ id, file, variant, files, memory: facts }: ChoiceRequest, found: FolderModel[]): Choice {
  const byName = new Map(files.map(each => [each.path, each]))
  const models = found.map(({ format, label, files: parts }) => {
    const planned = parts.map(({ path, role }) => toPlannedFile(byName.get(path)!, role, storedName(baseName(path))))
    return { format, label: asLabel(label!), files: planned, size: totalSize(planned) }
  })
  const choices = models.slice(0, MAX_CHOICES).map(({ label, size }) => ({ label, size }))
  const wanted = (file ?? variant)?.toLowerCase()
  const [chosen, other] = models.filter(({ label, files: [first] }) =>
    [undefined, label.toLowerCase(), first!.path.toLowerCase(), baseName(first!.path).toLowerCase()].includes(wanted)
  )
  if (!chosen) throw unknownVariant(id, wanted!, choices, [])
  if (other) throw severalModels(id, `${models.length} models`, choices)
  const memory = memoryCheck(requiredMemory(chosen.size, 0), memoryBudget(facts))
  const reason = wanted === undefined ? `${chosen.label} is the only model.` : `${chosen.label} was requested.`
  return {
    ...chosen,
    reason,
    choices: choices.filter(({ label }) => label !== chosen.label),
    memory,
    warnings: misfit(chosen.label, memory)
  }
}

/** The warning for a model that does not fit into memory. */
function misfit(label: string, { fits, required, available }: Choice['memory']): string[] {
  if (fits) return []
  const needs = `${label} needs about ${formatBytes(required)} of memory, but ${formatBytes(available)} can be used`
  return [`${needs} on this machine. It will be slow or not load at all.`]
}

function companions(files: readonly HubFile[], folder: string): HubFile[] {
  const isSmall = (size = 0) => size > 0 && size <= MAX_COMPANION_BYTES
  const found = files.filter(({ path, size }) => COMPANION.test(baseName(path)) && isSmall(size)).sort(byPath)
  return [...new Set([folder, ''])].flatMap(place => found.filter(({ path }) => parentFolder(path) === place))
}

const withSize = ({ label, size }: { label: string; size: number }) =>
  size > 0 ? `${label} (${formatBytes(size)})` : label

/** Lists the candidates' labels with their sizes, the best first, unknown ones last. */
function listChoices(candidates: readonly GgufCandidate[]): { label: string; size: number }[] {
  return [...candidates]
    .sort((a, b) => qualityRank(b) - qualityRank(a) || (a.path < b.path ? -1 : 1))
    .slice(0, MAX_CHOICES)
    .map(({ label, size }) => ({ label, size }))
}

const MAX_CHOICES = 200
const qualityRank = ({ quantization }: GgufCandidate) => (quantization ? quality(quantization) : -2)

function unknownVariant(
  id: string,
  wanted: string,
  choices: { label: string; size: number }[],
  incomplete: GgufModels['incomplete']
): CorralError {
  const broken = incomplete.filter(({ label, path }) =>
    [label, path, baseName(path)].some(name => name?.toLowerCase() === wanted.toLowerCase())
  )
  if (broken.length > 0) return incompleteSet(id, broken)
  const example = choices[0] ? ` Pull one of these, for example ${id}:${choices[0].label}.` : ''
  return refusal('repo_not_found', `${id} has no ${wanted}. It has ${listed(choices.map(withSize))}.${example}`, {
    choices
  })
}

/** Creates the error for a name that matches several models. Its choices show the names to write after the colon. */
function ambiguous(id: string, models: GgufModels, found: readonly GgufCandidate[], wanted?: string): CorralError {
  // A label that is also a quantization may match other models too.
  const isClear = ({ label }: GgufCandidate) => !isLabel(label) || matchingGguf(models, label).length === 1
  const choices = listChoices(found.map(one => (isClear(one) ? one : { ...one, label: one.path })))
  const what = wanted ? `${found.length} models that match ${wanted}` : `${found.length} models`
  return severalModels(id, what, choices)
}

const severalModels = (id: string, what: string, choices: { label: string; size: number }[]): CorralError =>
  refusal(
    'invalid_request',
    `${id} has ${what}: ${listed(choices.map(withSize))}. Name one after a colon, as in ${id}:${choices[0]!.label}.`,
    { choices }
  )

const incompleteSet = (id: string, sets: readonly { path: string; missing: string[] }[]): CorralError =>
  refusal('unsupported_capability', `${id} is not usable: ${sets.map(incompleteText).join('; ')}.`)

const incompleteText = ({ path, missing }: { path: string; missing: string[] }) =>
  missing.includes(path) && shardNames(path).length === 1
    ? `${path} is empty (0 bytes)`
    : `${path} is part of a set that lacks ${listed(missing)}`

function notAModel(id: string, path: string, { roles, incomplete }: GgufModels): CorralError {
  const broken = incomplete.filter(set => set.path === path || (set.missing.length > 0 && sameSet(set.path, path)))
  if (broken.length > 0) return incompleteSet(id, broken)
  const { parts, other, alone } = CONTENTS
  const role = roles.get(path) ?? 'other'
  const why = role === 'other' ? (/\.gguf$/i.test(path) ? parts : other) : alone[role]
  return refusal('unsupported_capability', `${path} of ${id} ${why}. Name a GGUF model file, or leave the name out.`)
}

const sameSet = (a: string, b: string) => a.replace(/\d{5}-of-/, '') === b.replace(/\d{5}-of-/, '')

function nothingToRun(id: string, allFiles: readonly HubFile[], { roles, incomplete, candidates }: GgufModels) {
  const foreign = candidates.filter(({ quantization }) => quantization && isUnsupported(quantization))
  if (foreign.length > 0) {
    return refusal(
      'unsupported_capability',
      `${id} has only quantizations that llama.cpp does not load: ` +
        `${listed(foreign.map(({ label }) => label))}. Look for another repository of this model.`
    )
  }
  if (incomplete.length > 0) return incompleteSet(id, incomplete)
  const paths = allFiles.map(file => file.path)
  const found = new Set<string>(roles.values())
  const { roles: byRole, patterns } = CONTENTS
  const kinds = new Set([
    ...Object.entries(byRole).flatMap(([role, what]) => (found.has(role) ? [what] : [])),
    ...patterns.flatMap(([pattern, what]) => {
      const regex = new RegExp(pattern!)
      return paths.some(path => regex.test(path)) ? [what] : []
    })
  ])
  const extensions = [...new Set(paths.flatMap(path => /\.[A-Za-z0-9]{1,12}$/.exec(path) ?? []))].sort()
  const files = extensions.length > 0 ? `files with the extensions ${listed(extensions)}` : 'no files'
  const contents = kinds.size > 0 ? [...kinds].join(', and ') : files
  const hasGguf = extensions.some(extension => /^\.gguf$/i.test(extension))
  const lacks = hasGguf ? '' : ': neither GGUF files nor complete SafeTensors weights'
  return refusal(
    'unsupported_capability',
    `${id} has no model that llama.cpp can run${lacks}. It has ${contents}. ` +
      `Look for ${hasGguf ? 'another repository of the model' : 'a repository with GGUF in its name'}.`,
    { extensions }
  )
}

export const requiredFor = ({ size, projector }: GgufCandidate) => requiredMemory(size, projector?.size ?? 0)

/**
 * Chooses the best quantization that fits the memory, from the class of Q4_K_M up to Q8_0. Chooses a smaller
 * quantization only if none of those fits, and unquantized weights only if there is nothing else. Undefined if no
 * candidate has a label that llama.cpp loads.
 */
export function defaultQuantization(
  candidates: readonly GgufCandidate[],
  budget: Budget
): { candidate: GgufCandidate; reason: string } | undefined {
  const usable = candidates.filter(({ quantization }) => quantization && !isUnsupported(quantization))
  const rank = (candidate: GgufCandidate) => quality(candidate.quantization!)
  const ordered = usable.sort((a, b) => rank(a) - rank(b) || (a.path < b.path ? -1 : 1))
  const [first] = ordered
  if (!first) return undefined

  const top = quality('Q8_0')
  const standIns = ordered
    .map(candidate => ({ candidate, order: standInRank(candidate.quantization!) }))
    .filter(entry => entry.order !== undefined)
    .sort((a, b) => a.order! - b.order!)
  const floor =
    standIns[0]?.candidate ?? ordered.find(candidate => rank(candidate) > quality('Q4_K_M') && rank(candidate) <= top)
  const below = floor ? rank(floor) : top
  const ladder = floor ? ordered.filter(candidate => rank(candidate) >= below && rank(candidate) <= top) : []
  const smaller = ordered.filter(candidate => rank(candidate) < below)
  if (!floor && smaller.length === 0) {
    const what = isFloat(first.quantization!) ? 'nothing quantized' : 'nothing smaller'
    return { candidate: first, reason: `${first.label} was chosen because the repository has ${what}.` }
  }

  const largest = (candidates: GgufCandidate[], bytes: number, larger?: GgufCandidate) => {
    const index = candidates.findLastIndex(candidate => requiredFor(candidate) <= bytes)
    if (index === -1) return undefined
    const candidate = candidates[index]!
    return { candidate, reason: reasonOfBest(candidate, candidates[index + 1] ?? larger, budget) }
  }
  const best = largest(ladder, budget.best)
  if (best) return best
  if (floor && requiredFor(floor) <= budget.all) {
    const reason =
      `${floor.label} needs ${formatBytes(requiredFor(floor))}, more than the ${formatBytes(budget.best)} of usable graphics memory; ` +
      'the rest goes to main memory.'
    return { candidate: floor, reason }
  }
  const small = largest(smaller, budget.all, floor)
  if (small) return small
  const candidate = floor ?? smaller[0]!
  const reason = `${candidate.label} was chosen although no quantization fits ${formatBytes(budget.all)} of usable memory.`
  return { candidate, reason }
}

function reasonOfBest(best: GgufCandidate, next: GgufCandidate | undefined, { best: usable, gpu, all }: Budget) {
  const need = requiredFor(best)
  const memory =
    need <= usable
      ? `${formatBytes(usable)} of usable${gpu ? ' graphics' : ''} memory`
      : `${formatBytes(all)} of memory`
  const more = next ? `; ${next.label} would need ${formatBytes(requiredFor(next))}` : ''
  return `${best.label} is the best quantization for this machine: it needs ${formatBytes(need)} of ${memory}${more}.`
}

/**
 * Quantizations by quality, the worst first, and the lowest quantization of the default choice: the first of these that
 * the repository has.
 */
const { quality: QUALITY, standIns: STAND_INS } = QUANTIZATIONS

/** Returns the quantization of most weights: `UD-Q4_K_XL` is Q4_K_XL, `F16-Q5` and `Q5-F16` are Q5. */
function mainQuantization(label: string): string {
  const parts = label.replace(/^UD-/, '').split('-')
  return parts.find(part => !isFloat(part)) ?? parts[0]!
}

const isFloat = (label: string): boolean => /^(?:B?F16|F32)$/.test(label)

/** Ranks a label by quality: higher is better. Unknown labels rank just below the known label they begin with. */
export function quality(label: string): number {
  const extra = (label.startsWith('UD-') ? 0.5 : 0) + (label.replace(/^UD-/, '').includes('-') ? 0.25 : 0)
  const bulk = mainQuantization(label)
  const rank = QUALITY.indexOf(bulk)
  if (rank >= 0) return rank + extra
  const shorter = bulk.replace(/_[^_]*$/, '')
  return shorter === bulk ? -1 : quality(shorter) + 0.1 + extra
}

/** Returns the position of a label in STAND_INS, the lower the better. Undefined for all others. */
export function standInRank(label: string): number | undefined {
  const exact = STAND_INS.indexOf(label)
  // A mixture ranks right after its plain quantization.
  const rank = exact >= 0 ? exact : STAND_INS.indexOf(mainQuantization(label)) + 0.5
  return rank >= 0.5 || exact === 0 ? rank : undefined
}

/** Types of other engines, and repacked types of old versions, which llama.cpp does not load. */
export const isUnsupported = (label: string): boolean => /_[48]_[48]$|_R[48]$|^(?:UD-)?IQ\d_K|^I2_S$/.test(label)

const TEXT = /^(?:readme\.md|licen[cs]e(?:\.(?:md|txt))?|notice(?:\.(?:md|txt))?)$/i
/** Names of weights that were quantized for Apple's MLX, which only MLX reads. */
const MLX_NAME = /^mlx-community\/.*\b\d(?:[._]\d+)?-?bit\b|[-_.]mlx[-_.]?(?:\d|q\d|int\d|mxfp\d).*$/i

/** Chooses the files of the SafeTensors model in a folder. @throws CorralError as `chooseFiles` */
export function chooseSafetensors(request: ChoiceRequest, folder: string): Choice {
  const { id, files, config } = request
  const label = folder !== '' ? folder.slice(0, -1) : config === undefined ? undefined : safetensorsLabel(config)
  refuseOtherTypes(request, folder, label)
  refuseMlx(id, config)
  const { weights, missing } = safetensorsModel(request, folder)
  if (missing.length > 0) {
    throw refusal(
      'unsupported_capability',
      `${id} is not a complete model: it lacks ${listed(missing)}. Look for another repository of this model.`
    )
  }
  const inFolder = ({ path }: HubFile) => path.slice(folder.length)
  const stored = (file: HubFile, role: PlannedDownload['role'], name: string) =>
    toPlannedFile(file, role, name.split('/').map(storedName).join('/'))
  const others = [...files].sort(byPath).filter(file => {
    const name = inFolder(file)
    if (!file.path.startsWith(folder) || weights.includes(file) || name === 'adapter_config.json') return false
    return describesSafetensors(name) || TEXT.test(name)
  })
  const chosen = withoutNameTwins([
    ...weights.map(file => stored(file, 'model', convertibleName(request, inFolder(file), weights.length))),
    ...others.map(file => stored(file, 'other', inFolder(file)))
  ])
  const bytes = totalSize(weights)
  // Loaded as 16-bit floats unless another type is requested.
  const factor = label === 'F32' ? 0.5 : label === 'FP8' ? 2 : 1
  const memory = memoryCheck(requiredMemory(bytes * factor, 0), memoryBudget(request.memory))
  const warnings = [
    'These are SafeTensors weights: they are converted to GGUF when the model is first loaded. The first conversion needs ' +
      'some GB of Python packages, and asks before it installs them.'
  ]
  if (!memory.fits) {
    warnings.push(
      `In 16 bits the model needs about ${formatBytes(memory.required)} of memory, but ${formatBytes(memory.available)} can be used on ` +
        'this machine. Load it with a smaller type, for example "dtype": "q4_k_m".'
    )
  }
  return {
    format: 'safetensors',
    label,
    files: chosen,
    size: totalSize(chosen),
    reason:
      request.file || request.variant
        ? 'These weights were requested.'
        : 'The repository has only SafeTensors weights.',
    choices: [],
    memory,
    warnings
  }
}

/** Renames weights to the names that the converter expects. With an index they keep their names. */
function convertibleName({ weightsInIndex }: ChoiceRequest, name: string, count: number): string {
  if (weightsInIndex || name.startsWith('model')) return name
  return count === 1 ? 'model.safetensors' : name.replace(/^.*(?=-\d{5}-of-\d{5}\.safetensors$)/, 'model')
}

/** The variant of SafeTensors weights can only be the type that they have. */
function refuseOtherTypes({ id, variant }: ChoiceRequest, folder: string, label: string | undefined): void {
  const wanted = variant === undefined || folder !== '' ? undefined : labelFromFileName(variant)
  if (variant === undefined || wanted === undefined || !/^[\w-]+$/.test(variant)) return
  const isType = /^(?:B?F16|F32)$/.test(wanted)
  if (isType && (label === undefined || label === wanted)) return
  const dtype = wanted.toLowerCase()
  throw refusal(
    'repo_not_found',
    `${id} has no ${wanted}, only SafeTensors weights${label ? ` in ${label}` : ''}. Pull ${id}, then load it with the option ` +
      `"dtype": "${dtype}", or convert it now with: corral convert ${id} --dtype ${dtype}`
  )
}

function refuseMlx(id: string, config: unknown): void {
  const { quantization, quantization_config: other } = fields(config)
  const isMlx =
    config === undefined ? MLX_NAME.test(id) : 'bits' in fields(quantization) && !('quant_method' in fields(other))
  if (!isMlx) return
  throw refusal(
    'unsupported_capability',
    `${id} has weights quantized for Apple's MLX, which llama.cpp cannot convert. Look for a repository with GGUF in its name.`
  )
}

export const INDEX = 'model.safetensors.index.json'
/** Not a complete model: adapters, other layouts, other precisions, training states. */
const NO_WEIGHTS =
  /^(?:adapter|consolidated|optimizer|scheduler|diffusion_pytorch_model|ae|vae)[._-]|[._-](?:lora|ema|non_ema|fp16|fp32|bf16|int8)(?:-\d{5}-of-\d{5})?\.safetensors$/i

/** Returns the folders with SafeTensors models: the root, otherwise subfolders, as other corrals list them. */
export function safetensorsFolders(files: readonly HubFile[]): string[] {
  const has = new Set(files.map(file => file.path))
  if (has.has('model_index.json')) return []
  const folders = new Set(files.filter(({ path }) => isWeights(path)).map(({ path }) => parentFolder(path)))
  if (folders.has('')) return ['']
  const whole = (folder: string) =>
    has.has(`${folder}config.json`) &&
    files.some(({ path }) => path.startsWith(folder) && isTokenizer(path.slice(folder.length)))
  return [...folders].filter(folder => asLabel(folder) === folder.slice(0, -1) && whole(folder)).sort()
}

function isWeights(path: string): boolean {
  const name = path.slice(parentFolder(path).length)
  return name.endsWith('.safetensors') && !NO_WEIGHTS.test(name)
}

/** Returns the weights that a parsed index names, in order. @throws CorralError `unsupported_capability` */
export function weightsFromIndex(index: unknown, path = INDEX): string[] {
  const names = indexedWeights(index)
  if (names?.every(name => name.endsWith('.safetensors'))) return names.sort()
  throw refusal(
    'unsupported_capability',
    `The repository's ${path} cannot be used: its "weight_map" does not name SafeTensors files beside it. Pull another ` +
      'revision or another repository of this model.'
  )
}

/**
 * Returns the weights of the model in a folder, in order, and missing files. The weights are those named in its index,
 * otherwise `model.safetensors`, otherwise the only set of shards, otherwise the only other file.
 * @throws CorralError `unsupported_capability` if that is ambiguous
 */
function safetensorsModel({ id, files, weightsInIndex }: ChoiceRequest, folder: string) {
  const byName = new Map(files.map(file => [file.path, file]))
  const names = files.filter(({ path }) => parentFolder(path) === folder && isWeights(path)).map(({ path }) => path)
  const expected = weightsInIndex?.map(name => folder + name) ?? withoutIndex(id, names, folder)
  const needed = byName.has(`${folder}config.json`) ? [] : [`${folder}config.json`]
  if (!files.some(({ path }) => path.startsWith(folder) && isTokenizer(path.slice(folder.length)))) {
    needed.push(`${folder}tokenizer.json`)
  }
  return {
    weights: expected.flatMap(name => byName.get(name) ?? []),
    missing: [...expected.filter(name => !byName.has(name)), ...needed]
  }
}

function withoutIndex(id: string, names: string[], folder: string): string[] {
  if (names.includes(`${folder}model.safetensors`)) return [`${folder}model.safetensors`]
  const sets = new Map(names.map(name => [shardNames(name)[0]!, shardNames(name)]))
  const named = [...sets.values()].filter(set => set[0]!.startsWith(`${folder}model-`))
  const choice = named.length === 1 ? named : [...sets.values()]
  if (choice.length === 1) return choice[0]!
  throw refusal(
    'unsupported_capability',
    `${id} has ${choice.length} SafeTensors files, and nothing shows which of them are its model: ` +
      `${listed(names.sort())}. Look for a repository with model.safetensors, or with GGUF files.`
  )
}

const fields = (value: unknown): Record<string, unknown> => (isObject(value) ? value : {})
