import type { HubFile } from '../../../../core/contracts/hubs.ts'
import {
  companionFinder,
  type FileRole,
  ggufIdentity,
  ggufPurpose,
  labelFromFileName,
  parseGgufFileName,
  shardNames
} from '../../../../core/models/gguf-file-name.ts'

/** The first keys of GGUF files that were read, by path. */
export type Headers = ReadonlyMap<string, Record<string, unknown>>

/** In byte order: the order of a hub's listing must not change the choice. */
export const byPath = (a: { path: string }, b: { path: string }) => (a.path < b.path ? -1 : Number(a.path > b.path))

export const parentFolder = (path: string) => path.slice(0, path.lastIndexOf('/') + 1)
export const baseName = (path: string) => path.slice(path.lastIndexOf('/') + 1)

export const totalSize = (files: readonly { size: number | undefined }[]) =>
  files.reduce((sum, file) => sum + (file.size ?? 0), 0)

export interface GgufCandidate {
  /** Unique in the repository: the quantization if that is enough. */
  label: string
  quantization: string | undefined
  /** The same for all quantizations of one model, as far as names and headers show. */
  family: string
  path: string
  files: HubFile[]
  size: number
  projector: HubFile | undefined
  /** The small model that guesses ahead for it. */
  draft: HubFile | undefined
}

export interface GgufModels {
  candidates: GgufCandidate[]
  /** Incomplete sets of shards with the missing files. An empty file is listed as missing itself. */
  incomplete: { path: string; label: string | undefined; missing: string[] }[]
  looseProjectors: string[]
  roles: Map<string, FileRole>
}

/** @param id gives the label of a single file without one @param headers take precedence over file names */
export function findGgufModels(id: string, files: readonly HubFile[], headers: Headers = new Map()): GgufModels {
  const sorted = [...files].sort(byPath)
  const byName = new Map(sorted.map(file => [file.path, file]))
  const names = new Map(sorted.map(({ path }) => [path, parseGgufFileName(path)]))
  const roles = new Map<string, FileRole>()
  for (const [path, { role }] of names) {
    // Raw pieces of one file and files in other formats have no header.
    const keys = headers.get(path)
    roles.set(path, keys && Object.keys(keys).length > 0 ? ggufPurpose(keys) : role)
  }
  const isEmpty = (name: string) => byName.get(name)?.size === 0
  const found: Found[] = []
  const incomplete: GgufModels['incomplete'] = []
  const seen = new Set<string>()
  const wordsInFolders = folderWords([...names.keys()])
  for (const [path, { label, base, shard }] of names) {
    const group = shard?.group ?? path
    if (roles.get(path) !== 'model' || seen.has(group)) continue
    seen.add(group)
    const shards = shardNames(path)
    const missing = shards.filter(name => !byName.has(name) || isEmpty(name))
    if (missing.length > 0) incomplete.push({ path, label, missing })
    else {
      const parts = shards.map(name => byName.get(name)!)
      const family = `${wordsInFolders(path)}${base.replace(/[-._ ]+/g, '-')}`
      found.push({ quantization: label, family, path: parts[0]!.path, files: parts, size: totalSize(parts) })
    }
  }
  const models = withoutDuplicates(withoutDrafts(withHeaders(found, headers), roles))
  const paths = sorted.filter(({ path }) => !isEmpty(path)).map(({ path }) => path)
  const companionOf = (role: 'projector' | 'draft') => {
    const candidates = paths.filter(path => ['model', role].includes(roles.get(path)!))
    const find = companionFinder(role, candidates)
    return (path: string) => byName.get(find(path) ?? '')
  }
  const projectorOf = companionOf('projector')
  const draftOf = companionOf('draft')
  const candidates = labelled(id, models).map(candidate => {
    const draft = draftOf(candidate.path)
    const isSmall = draft?.size !== undefined && draft.size > 0 && draft.size <= candidate.size * MAX_DRAFT_SHARE
    return { ...candidate, projector: projectorOf(candidate.path), draft: isSmall ? draft : undefined }
  })
  const taken = new Set(candidates.map(candidate => candidate.projector?.path))
  const projectors = paths.filter(path => roles.get(path) === 'projector')
  const looseProjectors = projectors.some(path => taken.has(path)) ? [] : projectors
  return { candidates, incomplete, looseProjectors, roles }
}

type Found = Omit<GgufCandidate, 'label' | 'projector' | 'draft'>

/** With a draft model of a larger share, guessing ahead is seldom faster. */
const MAX_DRAFT_SHARE = 0.25

/**
 * Returns a function for the words that a folder adds to its models' names. A folder named after a quantization adds
 * none. The same applies to a folder with a file that has the same name as a file in such a folder: it is another
 * variant.
 */
function folderWords(paths: readonly string[]): (path: string) => string {
  const wordsInFolders = (path: string) => {
    const folders = parentFolder(path).split('/').slice(0, -1)
    const words = folders.filter(folder => labelFromFileName(folder.replace(/\.gguf$/i, '')) === undefined)
    return words.map(word => `${word.toLowerCase()}/`).join('')
  }
  const variants = new Set(paths.filter(path => path.includes('/') && wordsInFolders(path) === '').map(baseName))
  return path => {
    const words = wordsInFolders(path)
    return variants.has(baseName(path)) && !SIZE.test(words) ? '' : words
  }
}

/** The number of parameters in a name: `8B`, `0.5b`, `270M`. */
const SIZE = /(?<![a-z0-9])\d+(?:\.\d+)?[bm](?![a-z0-9])/i
/** Words that mean another model of the same shape. */
const KIND =
  /^(?:instruct|base|chat|it|think(?:ing)?|reason(?:ing|er)?|coder?|math|embed(?:ding)?|rerank(?:er)?|vl|vision|v?\d.*)$/

/** Merges families that headers show to be one model, and splits a family if they show several. */
function withHeaders(found: Found[], headers: Headers): Found[] {
  const headerIdentity = ({ path }: Found) => ggufIdentity(headers.get(path) ?? {})
  const known = found.filter(model => headerIdentity(model) !== undefined)
  return found.map(model => {
    const identity = headerIdentity(model)
    const read = known.filter(({ family }) => family === model.family)
    if (identity === undefined || read.some(other => headerIdentity(other) !== identity)) {
      return read.length === 0 || identity === undefined ? model : { ...model, family: `${model.family} ${identity}` }
    }
    const same = known.find(other => headerIdentity(other) === identity && !areKinds(other.family, model.family))
    return { ...model, family: same?.family ?? model.family }
  })
}

/** Returns whether words in only one of two names make it another model. */
function areKinds(one: string, other: string): boolean {
  const [left, right] = [one.split(/[-/]/), other.split(/[-/]/)]
  const differing = [...left.filter(word => !right.includes(word)), ...right.filter(word => !left.includes(word))]
  return differing.some(word => KIND.test(word) || SIZE.test(word))
}

/** Leaves out models with a word for drafts in the middle of the name, if the model without this word exists. */
function withoutDrafts(found: Found[], roles: Map<string, FileRole>): Found[] {
  const families = new Set(found.map(({ family }) => family))
  return found.filter(({ family, files }) => {
    const main = family.replace(/(^|-)mtp(?=-|$)/, '')
    if (main === family || !families.has(main)) return true
    for (const { path } of files) roles.set(path, 'draft')
    return false
  })
}

/** Leaves out duplicates: the same bytes under another path, or a quantization both in shards and in one file. */
function withoutDuplicates(found: Found[]): Found[] {
  const contents = new Set<string>()
  const distinct = found.filter(({ files, quantization }) => {
    const digests = files.map(file => file.sha256 ?? file.gitSha1)
    const content = `${quantization} ${digests.join()}`
    if (contents.has(content)) return false
    if (digests.every(Boolean)) contents.add(content)
    return true
  })
  const identity = ({ quantization, family }: Found) => `${quantization} ${family}`
  const whole = new Map(distinct.filter(({ files }) => files.length === 1).map(one => [identity(one), one.size]))
  return distinct.filter(candidate => {
    const size = whole.get(identity(candidate))
    return candidate.files.length === 1 || size === undefined || Math.abs(candidate.size - size) > size / 100
  })
}

/** Gives each candidate a unique label, also if case is ignored: its quantization, otherwise part of its path. */
function labelled(id: string, found: Found[]): Omit<GgufCandidate, 'projector' | 'draft'>[] {
  const lowerCaseName = ({ path }: Found) => withoutExtension(baseName(path)).toLowerCase()
  const onlyOne = (keyOf: (candidate: Found) => string | undefined) => {
    const counts = new Map<string | undefined, number>()
    for (const one of found) counts.set(keyOf(one), (counts.get(keyOf(one)) ?? 0) + 1)
    return (candidate: Found) => counts.get(keyOf(candidate)) === 1
  }
  const hasOwnQuantization = onlyOne(({ quantization }) => quantization)
  const hasOwnFolder = onlyOne(({ path }) => parentFolder(path))
  const hasOwnName = onlyOne(lowerCaseName)
  const isOneModel = isOneFamily(found)
  const taken = new Map<string, number>()
  return found.map(candidate => {
    const { quantization, path, family } = candidate
    const folder = parentFolder(path).slice(0, -1)
    const isOwn = asLabel(folder) === folder && hasOwnFolder(candidate)
    let label: string
    if (quantization && hasOwnQuantization(candidate) && (isOneModel || NAMELESS.test(family))) {
      label = quantization
    } else if (found.length === 1) {
      const fromId = labelAtEnd(id)
      return { ...candidate, quantization: fromId, label: fromId ?? (isOwn ? folder : 'GGUF') }
    } else label = isOwn ? folder : asLabel(hasOwnName(candidate) ? baseName(path) : path)
    const twins = (taken.get(label.toLowerCase()) ?? 0) + 1
    taken.set(label.toLowerCase(), twins)
    return { ...candidate, label: twins === 1 ? label : `${label}-${twins}` }
  })
}

/** Names of files that converters give to any model. */
const NAMELESS = /(?:^|\/)(?:ggml-)?(?:model)?$/

export const isOneFamily = (models: readonly Pick<GgufCandidate, 'family'>[]) =>
  new Set(models.map(({ family }) => family)).size <= 1

/** `acme/Tiny-Q8_0-GGUF` is Q8_0. */
function labelAtEnd(id: string): string | undefined {
  const name = id.replace(/[-_.]gguf$/i, '')
  const label = labelFromFileName(name)
  return label && name.toUpperCase().endsWith(label) ? label : undefined
}

const withoutExtension = (path: string) => path.replace(/\.gguf$/i, '').replace(/(?:-split)?-\d{5}-of-\d{5}$/, '')

/** Converts a path to a label, with the characters and the length that labels may have. */
export function asLabel(path: string): string {
  const text = withoutExtension(path)
    .replace(/[^A-Za-z0-9._-]+/g, '-')
    .replace(/\.{2,}/g, '.')
  return text.slice(-96).replace(/^[^A-Za-z0-9]+|[^A-Za-z0-9]+$/g, '') || 'GGUF'
}

/** Returns the candidates that match a variant or file name, by the strictest rule that matches any. */
export function matchingGguf({ candidates }: Pick<GgufModels, 'candidates'>, wanted: string): GgufCandidate[] {
  const text = wanted.toLowerCase().replace(/\/+$/, '')
  const exact = (candidate: GgufCandidate) => candidate.files.some(file => file.path === wanted)
  const isNamed = (candidate: GgufCandidate) => candidate.files.some(({ path }) => allNames(path).includes(text))
  const isLabelled = ({ label }: GgufCandidate) => label.toLowerCase() === text
  const isInFolder = ({ path }: GgufCandidate) => parentFolder(path).toLowerCase() === `${text}/`
  const quantization = isLabel(wanted) ? labelFromFileName(wanted)!.toLowerCase() : undefined
  const isQuantized = (candidate: GgufCandidate) => candidate.quantization?.toLowerCase() === quantization
  const isDynamic = (candidate: GgufCandidate) => candidate.quantization?.toLowerCase() === `ud-${quantization}`
  const inPlainFamily = ({ family }: GgufCandidate) =>
    candidates.some(other => other.family === family && isQuantized(other))
  const isMeant = (candidate: GgufCandidate) =>
    [isNamed, isLabelled, isQuantized].some(fits => fits(candidate)) ||
    (isDynamic(candidate) && !inPlainFamily(candidate))
  const byName = [({ label }: GgufCandidate) => label === wanted, isNamed, isLabelled]
  const rules = [exact, ...(quantization === undefined ? byName : [isMeant]), isInFolder]
  return rules.map(rule => candidates.filter(rule)).find(({ length }) => length > 0) ?? []
}

/**
 * Returns GGUF files whose headers would resolve ambiguous names, at most `MAX_HEADERS`: one file of each model that a
 * request may mean. If the names show no model, or only parts of models, returns the files that could be one.
 */
export function ambiguousFiles({ candidates, roles }: GgufModels, wanted: string | undefined): string[] {
  const matching = wanted === undefined ? candidates : matchingGguf({ candidates }, wanted)
  const paths = [...roles.keys()]
  const isStrange = paths.some(path => STRANGE.test(path))
  if (matching.length === 0) {
    const hidden = ['draft', 'adapter', 'image', 'other']
    const isMeant = (path: string) => wanted === undefined || matchesFile(path, wanted)
    return paths
      .filter(path => /\.gguf$/i.test(path) && hidden.includes(roles.get(path)!) && isMeant(path))
      .slice(0, MAX_HEADERS)
  }
  if (isOneFamily(matching) && !hasTwins(matching)) return isStrange ? [matching[0]!.path] : []
  const first = hasTwins(matching) ? matching : [...new Map(matching.map(one => [one.family, one])).values()]
  return first.length > MAX_HEADERS ? [] : first.map(({ path }) => path)
}

const MAX_HEADERS = 8
/** Files of adapters and of models that make images. */
const STRANGE = /(?:^|\/)(?:adapter_config\.json|model_index\.json|(?:ae|vae)[^/]*\.safetensors|vae\/.*)$/

const matchesFile = (path: string, wanted: string) =>
  allNames(path).includes(wanted.toLowerCase()) || parseGgufFileName(path).label === labelFromFileName(wanted)

export const hasTwins = (models: readonly GgufCandidate[]) => {
  const quantized = models.flatMap(({ quantization }) => quantization ?? [])
  return new Set(quantized).size < quantized.length
}

export function isLabel(text: string): boolean {
  const label = labelFromFileName(text)
  return label !== undefined && label.length >= text.replace(/FP(?=16|32)/gi, 'F').length
}

/** Returns all names of a file: with and without folders, extension and shard number, in lower case. */
function allNames(path: string): string[] {
  const lower = path.toLowerCase()
  const name = baseName(lower)
  const stems = [lower, name].flatMap(text => [text.replace(/\.gguf$/, ''), withoutExtension(text)])
  return [lower, name, ...stems, ...stems.map(stem => `${stem}.gguf`)]
}
