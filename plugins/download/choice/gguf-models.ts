import type { HubFile } from '../../../core/contracts/hubs.ts'
import {
  type FileRole,
  labelFromFileName,
  parseGgufFileName,
  projectorFinder,
  shardNames
} from '../../../core/models/gguf-file-name.ts'
import { byPath, fileNameOf, folderOf, sizeOf } from './choice.ts'

/** A complete GGUF model, of one file or of shards. */
export interface GgufCandidate {
  /** Unique in the repository; the quantization wherever that is enough. */
  label: string
  /** As far as names show it. */
  quantization: string | undefined
  base: string
  /** Path of the first file. */
  path: string
  /** In the order of shards. */
  files: HubFile[]
  /** Bytes. */
  size: number
  projector: HubFile | undefined
}

/** The GGUF models of a repository. */
export interface GgufModels {
  candidates: GgufCandidate[]
  /** Incomplete sets of shards, with the missing files. */
  incomplete: { path: string; label: string | undefined; missing: string[] }[]
  /** Projectors that could not be assigned to a model. */
  looseProjectors: string[]
  roles: Map<string, FileRole>
}

/** Groups the files of a listing into models. @param id gives the label of a single file that has none */
export function findGgufModels(id: string, files: readonly HubFile[]): GgufModels {
  const sorted = [...files].sort(byPath)
  const byName = new Map(sorted.map(file => [file.path, file]))
  const roles = new Map(sorted.map(({ path }) => [path, parseGgufFileName(path).role]))
  const found: Found[] = []
  const incomplete: GgufModels['incomplete'] = []
  const seen = new Set<string>()
  for (const { path } of sorted) {
    const { role, label, base, shard } = parseGgufFileName(path)
    const group = shard?.group ?? path
    if (role !== 'model' || seen.has(group)) continue
    seen.add(group)
    const names = shardNames(path)
    const missing = names.filter(name => !byName.has(name))
    if (missing.length > 0) incomplete.push({ path, label, missing })
    else {
      const parts = names.map(name => byName.get(name)!)
      found.push({ quantization: label, base, path: parts[0]!.path, files: parts, size: sizeOf(parts) })
    }
  }
  const paths = sorted.map(file => file.path)
  const projectorOf = projectorFinder(paths)
  const candidates = labelled(id, withoutDuplicates(found)).map(candidate => ({
    ...candidate,
    projector: byName.get(projectorOf(candidate.path) ?? '')
  }))
  const taken = new Set(candidates.map(candidate => candidate.projector?.path))
  const projectors = paths.filter(path => roles.get(path) === 'projector')
  const looseProjectors = projectors.some(path => taken.has(path)) ? [] : projectors
  return { candidates, incomplete, looseProjectors, roles }
}

type Found = Omit<GgufCandidate, 'label' | 'projector'>

/** Leaves out duplicates: the same bytes under another path, or a quantization in shards and in one file. */
function withoutDuplicates(found: Found[]): Found[] {
  const contents = new Set<string>()
  const distinct = found.filter(({ files, quantization }) => {
    const digests = files.map(file => file.sha256 ?? file.gitSha1)
    const content = `${quantization} ${digests.join()}`
    if (contents.has(content)) return false
    if (digests.every(Boolean)) contents.add(content)
    return true
  })
  const identityOf = ({ quantization, base }: Found) => `${quantization} ${base}`
  const whole = new Map(distinct.filter(({ files }) => files.length === 1).map(one => [identityOf(one), one.size]))
  return distinct.filter(candidate => {
    const size = whole.get(identityOf(candidate))
    return candidate.files.length === 1 || size === undefined || Math.abs(candidate.size - size) > size / 100
  })
}

/** Gives each candidate a unique label: its quantization, or else part of its path. */
function labelled(id: string, found: Found[]): Omit<GgufCandidate, 'projector'>[] {
  const nameOf = ({ path }: Found) => withoutExtension(fileNameOf(path)).toLowerCase()
  const isOnly = <Key>(candidate: Found, keyOf: (candidate: Found) => Key) =>
    found.filter(other => keyOf(other) === keyOf(candidate)).length === 1
  return found.map(candidate => {
    const { quantization, path } = candidate
    if (quantization && isOnly(candidate, other => other.quantization)) return { ...candidate, label: quantization }
    const folder = folderOf(path).slice(0, -1)
    const isOwn = asLabel(folder) === folder && isOnly(candidate, other => folderOf(other.path))
    if (found.length === 1) {
      const fromId = labelAtEnd(id)
      return { ...candidate, quantization: fromId, label: fromId ?? (isOwn ? folder : 'GGUF') }
    }
    if (isOwn) return { ...candidate, label: folder }
    return { ...candidate, label: asLabel(isOnly(candidate, nameOf) ? fileNameOf(path) : path) }
  })
}

/** `acme/Tiny-Q8_0-GGUF` is Q8_0. */
function labelAtEnd(id: string): string | undefined {
  const name = id.replace(/[-_.]gguf$/i, '')
  const label = labelFromFileName(name)
  return label && name.toUpperCase().endsWith(label) ? label : undefined
}

/** A path without extension and shard number. */
function withoutExtension(path: string): string {
  return path.replace(/\.gguf$/i, '').replace(/(?:-split)?-\d{5}-of-\d{5}$/, '')
}

/** A path as a label, with the characters and the length that labels may have. */
export function asLabel(path: string): string {
  const text = withoutExtension(path)
    .replace(/[^A-Za-z0-9._-]+/g, '-')
    .replace(/\.{2,}/g, '.')
  return text.slice(-96).replace(/^[^A-Za-z0-9]+|[^A-Za-z0-9]+$/g, '') || 'GGUF'
}

/** The candidates that match a variant or a file name, by the strictest rule that any of them meets. */
export function matchingGguf({ candidates }: GgufModels, wanted: string): GgufCandidate[] {
  const text = wanted.toLowerCase().replace(/\/+$/, '')
  const label = (labelFromFileName(wanted) ?? wanted).toLowerCase()
  const rules: ((candidate: GgufCandidate) => boolean)[] = [
    candidate => candidate.files.some(file => file.path === wanted),
    candidate => candidate.files.some(({ path }) => namesOf(path).includes(text)),
    candidate => candidate.label.toLowerCase() === text,
    candidate => isLabel(wanted) && candidate.quantization?.toLowerCase() === label,
    candidate => isLabel(wanted) && candidate.quantization?.toLowerCase() === `ud-${label}`,
    candidate => folderOf(candidate.path).toLowerCase() === `${text}/`
  ]
  for (const rule of rules) {
    const found = candidates.filter(rule)
    if (found.length > 0) return found
  }
  return []
}

/** Whether a text is nothing but a label. */
function isLabel(text: string): boolean {
  const label = labelFromFileName(text)
  return label !== undefined && label.length >= text.replace(/FP(?=16|32)/gi, 'F').length
}

/** All names of a file: with and without folders, extension and shard number; in lower case. */
function namesOf(path: string): string[] {
  const lower = path.toLowerCase()
  const name = fileNameOf(lower)
  const stems = [lower, name].flatMap(text => [text.replace(/\.gguf$/, ''), withoutExtension(text)])
  return [lower, name, ...stems, ...stems.map(stem => `${stem}.gguf`)]
}
