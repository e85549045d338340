import type { CoreConfig } from '../../../core/config/core-schema.ts'
import { nearest } from '../../../core/config/suggestion.ts'
import { labelFromFileName } from '../../../core/models/gguf-file-name.ts'
import {
  type ModelName,
  modelKey,
  parseModelName,
  parseRequestedName,
  type RequestedName
} from '../../../core/models/model-name.ts'

/** The aliases from `config.yaml`, by alias in lower case. The catalog decides when an alias applies. */
export type Aliases = ReadonlyMap<string, { alias: string; target: ModelName }>

/** Returns a function for the current aliases, which rebuilds the table when the configuration changes. */
export function currentAliases(models: () => CoreConfig['models']): () => Aliases {
  let known = { of: models(), aliases: aliasTable(models()) }
  return () => {
    const of = models()
    if (of !== known.of) known = { of, aliases: aliasTable(of) }
    return known.aliases
  }
}

export function aliasTable(models: CoreConfig['models']): Aliases {
  const aliases = new Map<string, { alias: string; target: ModelName }>()
  for (const [name, settings] of Object.entries(models)) {
    for (const alias of settings.aliases ?? []) {
      aliases.set(modelKey(parseRequestedName(alias)), { alias, target: parseModelName(name) })
    }
  }
  return aliases
}

/** Maximum names compared letter by letter. That is slow, and requests for missing models are frequent. */
const MAX_COMPARED = 1000
const MAX_SUGGESTIONS = 3

/** Stems by name. They are slow to compute, and each request for a missing model needs the stems of all models. */
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

/** Returns names with the same stem, otherwise names that begin with it, otherwise the nearest one. */
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
