import type { PlannedDownload } from '../../../../core/contracts/downloads.ts'
import type { HubFile } from '../../../../core/contracts/hubs.ts'
import { CorralError } from '../../../../core/errors.ts'
import { labelFromFileName, shardNames, storedName } from '../../../../core/models/gguf-file-name.ts'
import {
  checkpointModels,
  describesSafetensors,
  type FolderModel,
  listed,
  speechModels
} from '../../../../core/models/model-folder.ts'
import { formatBytes } from '../../../../core/system/bytes.ts'
import {
  type Choice,
  type ChoiceRequest,
  memoryBudget,
  refusal,
  requiredMemory,
  toChoice,
  toPlannedFile,
  type Wanted
} from './choice.ts'
import { chooseSafetensors, INDEX, safetensorsFolders } from './choose-safetensors.ts'
import {
  ambiguousFiles,
  asLabel,
  baseName,
  byPath,
  findGgufModels,
  type GgufCandidate,
  type GgufModels,
  hasTwins,
  isLabel,
  isOneFamily,
  matchingGguf,
  parentFolder,
  totalSize
} from './gguf-models.ts'
import CONTENTS from './other-contents.json' with { type: 'json' }
import { defaultQuantization, isUnsupported, quality, requiredFor } from './quantizations.ts'

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
  const { projector, draft, label } = candidate
  const warnings: string[] = []
  if (isUnsupported(candidate.quantization ?? '')) {
    warnings.push(`${label} is for other engines or old versions: llama.cpp will probably not load it.`)
  }
  if (!projector && models.looseProjectors.length > 0) {
    warnings.push(
      `It is not clear which projector belongs to the model (${models.looseProjectors.join(', ')}), so none is downloaded: ` +
        'the model will read text only.'
    )
  }
  for (const set of models.incomplete) warnings.push(`Not used: ${incompleteText(set)}.`)
  const files = [
    ...candidate.files.map(file => withBareName(file, 'model')),
    ...(projector ? [withBareName(projector, 'projector')] : []),
    ...(draft ? [withBareName(draft, 'draft')] : []),
    ...companions(request.files, parentFolder(candidate.path)).map(file => withBareName(file, 'other'))
  ]
  const choices = listChoices(models.candidates).filter(other => other.label !== label)
  const choice = { format: 'gguf' as const, label, files, reason, choices, warnings }
  return toChoice(request, requiredFor(candidate), choice, misfit(label))
}

/** Chooses one of the models that recognize speech and the voices, by its label or file. */
function chooseOther(request: ChoiceRequest, found: FolderModel[]): Choice {
  const { id, file, variant } = request
  const byName = new Map(request.files.map(each => [each.path, each]))
  const models = found.map(({ format, label, files: parts }) => {
    const files = parts.map(({ path, role }) => withBareName(byName.get(path)!, role))
    return { format, label: asLabel(label!), files, size: totalSize(files) }
  })
  const choices = models.slice(0, MAX_CHOICES).map(({ label, size }) => ({ label, size }))
  const wanted = (file ?? variant)?.toLowerCase()
  const [chosen, other] = models.filter(({ label, files: [first] }) =>
    [undefined, label.toLowerCase(), first!.path.toLowerCase(), baseName(first!.path).toLowerCase()].includes(wanted)
  )
  if (!chosen) throw unknownVariant(id, wanted!, choices, [])
  if (other) throw severalModels(id, `${models.length} models`, choices)
  const { label, size } = chosen
  const reason = wanted === undefined ? `${label} is the only model.` : `${label} was requested.`
  const others = choices.filter(other => other.label !== label)
  const choice = { ...chosen, reason, choices: others, warnings: [] }
  return toChoice(request, requiredMemory(size, 0), choice, misfit(label))
}

const withBareName = (file: HubFile, role: PlannedDownload['role']) =>
  toPlannedFile(file, role, storedName(baseName(file.path)))

/** Returns the warning for a model that does not fit into memory. */
const misfit =
  (label: string) =>
  ({ required, available }: Choice['memory']) =>
    `${label} needs about ${formatBytes(required)} of memory, but ${formatBytes(available)} can be used on this machine. ` +
    'It will be slow or not load at all.'

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
