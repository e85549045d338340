import { join } from 'node:path'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import { type ModelName, modelKey, parseModelName } from '../../core/models/model-name.ts'
import { findLabel, type Manifest, withoutRevisions } from './manifest.ts'

interface Entry {
  directory: string
  /** As it lies on disk. */
  manifest: Manifest
  /** Revisions that are being removed: still in the manifest, but no longer shown. */
  dropped: Set<string>
  /** What is shown, the default variant first. */
  variants: StoredVariant[]
}

/** All models in memory, by `owner/name` in lower case. */
export class ModelIndex {
  readonly #entries = new Map<string, Entry>()
  #list: StoredVariant[] | undefined

  /** Where a model lies and what its manifest says; also while it is being removed. */
  get(key: string): Readonly<Pick<Entry, 'directory' | 'manifest'>> | undefined {
    return this.#entries.get(key)
  }

  /** The variants that are shown, the default one first. */
  variants(key: string): StoredVariant[] {
    return this.#entries.get(key)?.variants ?? []
  }

  /** All variants of all models, by name. */
  list(): StoredVariant[] {
    this.#list ??= [...this.#entries.keys()].sort().flatMap(key => this.#entries.get(key)!.variants)
    return this.#list
  }

  /** Records what a manifest on disk now says. */
  put(key: string, directory: string, manifest: Manifest): void {
    const kept = new Set(manifest.variants.map(variant => variant.revision))
    const dropped = [...(this.#entries.get(key)?.dropped ?? [])].filter(revision => kept.has(revision))
    this.#set(key, { directory, manifest, dropped: new Set(dropped), variants: [] })
  }

  /** Hides revisions at once; `put` or `delete` follows when the disk has followed, `restore` when it has not. */
  drop(key: string, revisions: ReadonlySet<string>): void {
    const entry = this.#entries.get(key)
    if (entry) this.#set(key, { ...entry, dropped: new Set([...entry.dropped, ...revisions]) })
  }

  restore(key: string, revisions: ReadonlySet<string>): void {
    const entry = this.#entries.get(key)
    if (!entry) return
    this.#set(key, { ...entry, dropped: new Set([...entry.dropped].filter(revision => !revisions.has(revision))) })
  }

  delete(key: string): void {
    this.#entries.delete(key)
    this.#list = undefined
  }

  #set(key: string, entry: Entry): void {
    const shown = withoutRevisions(entry.manifest, entry.dropped)
    this.#entries.set(key, { ...entry, variants: shown ? storedVariants(entry.directory, shown) : [] })
    this.#list = undefined
  }
}

/** A manifest's variants as the rest of corral sees them, the default one first. */
export function storedVariants(directory: string, manifest: Manifest): StoredVariant[] {
  const { owner, name } = manifest
  const bare = `${owner}/${name}`
  const first = findLabel(manifest.variants, manifest.default)
  return manifest.variants
    .map(variant => ({
      ...variant,
      model: { owner, name, variant: variant.label },
      isDefault: variant === first,
      publicName: variant === first ? bare : `${bare}:${variant.label}`,
      key: `${bare}:${variant.label}`.toLowerCase(),
      directory: join(directory, variant.revision)
    }))
    .sort((a, b) => Number(b.isDefault) - Number(a.isDefault))
}

/** The other names of models that `config.yaml` gives, in lower case, and whose they are. Pure. */
export function aliasesOf(models: CoreConfig['models']): ReadonlyMap<string, ModelName> {
  const aliases = new Map<string, ModelName>()
  for (const [name, settings] of Object.entries(models)) {
    for (const alias of settings.aliases ?? []) aliases.set(modelKey(parseModelName(alias)), parseModelName(name))
  }
  return aliases
}

/**
 * The name that a model is stored under, for a name of a request; undefined where the latter is no alias. A variant that
 * the request names goes before the one that the alias stands for. Pure.
 */
export function behindAlias(aliases: ReadonlyMap<string, ModelName>, name: ModelName): ModelName | undefined {
  const target = aliases.get(modelKey(name))
  return target && (name.variant === undefined ? target : { ...target, variant: name.variant })
}
