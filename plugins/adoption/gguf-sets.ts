import { parseGgufFileName, projectorFor, shardNames } from '../../core/models/gguf-file-name.ts'
import { type CacheFile, fileProblem } from './candidate.ts'

/** One quantization of a model: its file, or all its shards, and what lets it see. */
export interface GgufSet {
  label: string | undefined
  /** Its file's name without folder, extension and shard number. */
  title: string
  /** In the order of the shards, as far as they are there. */
  files: CacheFile[]
  projector: CacheFile | undefined
  problem: string | undefined
}

/** The models among a folder's files. Drafts, data for quantization and projectors by themselves are none. */
export function ggufSets(files: readonly CacheFile[]): GgufSet[] {
  const byPath = new Map(files.map(file => [file.path, file]))
  const sets = new Map<string, GgufSet>()
  for (const file of files) {
    const { role, label, shard } = parseGgufFileName(file.path)
    const title = titleOf(file.path)
    if (role === 'split') {
      const problem =
        'It was cut into pieces that no engine loads. Join them in order with "cat", then import the file.'
      sets.set(title, { label, title, files: [...(sets.get(title)?.files ?? []), file], projector: undefined, problem })
      continue
    }
    const group = shard?.group ?? file.path
    if (role !== 'model' || sets.has(group)) continue
    const names = shardNames(file.path)
    const present = names.flatMap(name => byPath.get(name) ?? [])
    const missing = names.filter(name => !byPath.has(name))
    const projector = byPath.get(projectorFor(names[0]!, [...byPath.keys()]) ?? '')
    const problem =
      missing.length > 0
        ? `It is not complete: ${missing.length} of its ${names.length} files are missing. Download the rest.`
        : [...present, ...(projector ? [projector] : [])].map(each => fileProblem(each, 'gguf')).find(Boolean)
    sets.set(group, { label, title, files: present, projector, problem })
  }
  return [...sets.values()]
}

function titleOf(path: string): string {
  return path
    .split('/')
    .at(-1)!
    .replace(/\.gguf(?:\.part.*|-split-.*)?$/i, '')
    .replace(/-\d{5}-of-\d{5}$/, '')
}
