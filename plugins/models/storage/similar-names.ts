import { nearest } from '../../../core/config/suggestion.ts'
import { labelFromFileName } from '../../../core/models/gguf-file-name.ts'
import type { RequestedName } from '../../../core/models/model-name.ts'

/** Maximum names compared letter by letter. That is slow, and requests for missing models are frequent. */
const MAX_COMPARED = 1000
const MAX_SUGGESTIONS = 3

/** Stems by name. They are slow to compute, and each request for a missing model needs those of all models. */
const stems = new Map<string, string>()
const MAX_STEMS = 50_000

function cachedStem(full: string): string {
  let stem = stems.get(full)
  if (stem === undefined) {
    if (stems.size >= MAX_STEMS) stems.clear()
    stem = toStem(full.slice(full.indexOf('/') + 1))
    stems.set(full, stem)
  }
  return stem
}

/** Reduces a name to its stem: without "-GGUF", a trailing quantization label, case and punctuation. */
function toStem(name: string): string {
  const bare = name.replace(/[-._]gguf$/i, '')
  const label = labelFromFileName(bare)
  const short = label && bare.toUpperCase().endsWith(label) ? bare.slice(0, -label.length) : bare
  return short.toLowerCase().replace(/[^a-z0-9]/g, '')
}

/**
 * Returns names that a missing name may have meant, the likeliest first: names with the same stem, then names that
 * begin with it, then the nearest one by edit distance. Names of the same owner come first.
 * @param names `owner/name`, or only a name
 */
export function similarNames({ owner, name, variant }: RequestedName, names: readonly string[]): string[] {
  // Ollama's tags are part of the name elsewhere: qwen3:8b, Qwen3-8B-GGUF.
  const wanted = new Set([toStem(name), ...(variant === undefined ? [] : [toStem(`${name}-${variant}`)])])
  wanted.delete('')
  const models = names.map(full => ({ full, stem: cachedStem(full) }))
  const isOwners = ({ full }: { full: string }) =>
    owner !== undefined && full.toLowerCase().startsWith(`${owner.toLowerCase()}/`)
  const ownersFirst = (found: typeof models) =>
    [...found].sort((a, b) => Number(isOwners(b)) - Number(isOwners(a))).map(({ full }) => full)
  const equal = ownersFirst(models.filter(({ stem }) => wanted.has(stem)))
  if (equal.length > 0) return equal.slice(0, MAX_SUGGESTIONS)
  const beginning = [...wanted].filter(({ length }) => length >= 4)
  const begun = ownersFirst(models.filter(({ stem }) => beginning.some(begin => stem.startsWith(begin))))
  if (begun.length > 0) return begun.slice(0, MAX_SUGGESTIONS)
  const near = models.slice(0, MAX_COMPARED)
  const byStem = new Map(near.map(({ full, stem }) => [stem, full]))
  const found = nearest(toStem(name), [...byStem.keys()])
  return found === undefined ? [] : [byStem.get(found)!]
}
