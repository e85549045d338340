import { join } from 'node:path'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import { bareName, type ModelName } from '../../core/models/model-name.ts'
import { findLabel, type Manifest, withoutRevisions } from './manifest.ts'

interface Entry {
  directory: string
  /** As it is on disk. */
  manifest: Manifest
  /** What is shown, the default variant first. */
  variants: StoredVariant[]
}

/** All models in memory, by `owner/name` in lower case. */
export class ModelIndex {
  readonly #entries = new Map<string, Entry>()
  /** Folders of revisions that are being removed: still in manifests, but no longer shown. */
  readonly #hidden = new Set<string>()
  #list: StoredVariant[] | undefined
  /** Keys by the name behind the owner, in lower case. */
  readonly #names = new Map<string, Set<string>>()
  readonly #onChange: () => void

  /** @param onChange called after each change of what is listed */
  constructor(onChange: () => void) {
    this.#onChange = onChange
  }

  /** Where a model is and what its manifest says; also while it is being removed. */
  get(key: string): Readonly<Pick<Entry, 'directory' | 'manifest'>> | undefined {
    return this.#entries.get(key)
  }

  /** The variants that are shown, the default one first. */
  variants(key: string): StoredVariant[] {
    return this.#entries.get(key)?.variants ?? []
  }

  /** The shown variants of each model of a name, which is in lower case. */
  namesakes(name: string): StoredVariant[][] {
    return [...(this.#names.get(name) ?? [])].map(key => this.variants(key)).filter(({ length }) => length > 0)
  }

  /** All variants of all models, by name. */
  list(): StoredVariant[] {
    this.#list ??= [...this.#entries.keys()].sort().flatMap(key => this.#entries.get(key)!.variants)
    return this.#list
  }

  /** Records what a manifest on disk now says. */
  put(key: string, directory: string, manifest: Manifest): void {
    const hidden = manifest.variants
      .map(({ revision }) => revision)
      .filter(each => this.#hidden.has(join(directory, each)))
    const shown = withoutRevisions(manifest, new Set(hidden))
    this.#entries.set(key, { directory, manifest, variants: shown ? storedVariants(directory, shown) : [] })
    const name = nameOf(key)
    const keys = this.#names.get(name)
    if (keys) keys.add(key)
    else this.#names.set(name, new Set([key]))
    this.#listChanged()
  }

  /** Hides revisions while they are being removed from the disk, or shows those again that are still there. */
  setHidden(key: string, variants: readonly StoredVariant[], hidden: boolean): void {
    for (const { directory } of variants) hidden ? this.#hidden.add(directory) : this.#hidden.delete(directory)
    const entry = this.#entries.get(key)
    if (entry) this.put(key, entry.directory, entry.manifest)
  }

  delete(key: string): void {
    this.#entries.delete(key)
    const keys = this.#names.get(nameOf(key))
    keys?.delete(key)
    if (keys?.size === 0) this.#names.delete(nameOf(key))
    this.#listChanged()
  }

  #listChanged(): void {
    this.#list = undefined
    this.#onChange()
  }
}

const nameOf = (key: string) => key.slice(key.indexOf('/') + 1)

/** What requests call a variant of a model. */
export function namesOf(model: ModelName, label: string, isDefault: boolean) {
  const bare = bareName(model)
  return {
    model: { owner: model.owner, name: model.name, variant: label },
    label,
    isDefault,
    publicName: isDefault ? bare : `${bare}:${label}`,
    key: `${bare}:${label}`.toLowerCase()
  }
}

/** A manifest's variants as the rest of corral sees them, the default one first. */
export function storedVariants(directory: string, manifest: Manifest): StoredVariant[] {
  const first = findLabel(manifest.variants, manifest.default)
  return manifest.variants
    .map(variant => ({
      ...variant,
      ...namesOf(manifest, variant.label, variant === first),
      directory: join(directory, variant.revision)
    }))
    .sort((a, b) => Number(b.isDefault) - Number(a.isDefault))
}
