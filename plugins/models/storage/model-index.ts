import { join, sep } from 'node:path'
import type { ModelMetadata } from '../../../core/contracts/models.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { bareName, type ModelName } from '../../../core/models/model-name.ts'
import {
  type CachedManifest,
  findLabel,
  hasSafetensors,
  type Manifest,
  type ShortManifest,
  StoredMetadata,
  wholeManifest,
  withoutRevisions
} from './manifest.ts'

interface Entry {
  directory: string
  manifest: CachedManifest
  /** The visible variants, the default one first. Created on demand. */
  variants: StoredVariant[] | undefined
  /** The metadata objects of the variants, by revision. After a change, new variants share them. */
  metadata: ReadonlyMap<string, StoredMetadata> | undefined
}

export class ModelIndex {
  readonly #entries = new Map<string, Entry>()
  /** Folders of revisions that are being removed: still in manifests, but no longer visible. */
  readonly #hidden = new Set<string>()
  #list: StoredVariant[] | undefined
  /** Keys by name without owner, in lower case: a single key (the usual case) or a set. */
  readonly #names = new Map<string, string | Set<string>>()
  readonly #onChange: () => void
  readonly #warn: (message: string) => void

  /** @param warn called for manifests that have become unusable */
  constructor(onChange: () => void, warn: (message: string) => void = () => {}) {
    this.#onChange = onChange
    this.#warn = warn
  }

  /** Returns a model's folder, even while the model is being removed. */
  directory(key: string): string | undefined {
    return this.#entries.get(key)?.directory
  }

  /** Returns a model's manifest, even while the model is being removed. */
  manifest(key: string): Manifest | undefined {
    const entry = this.#entries.get(key)
    return entry && wholeManifest(entry.directory, shortManifest(entry), this.#warn)
  }

  variants(key: string): StoredVariant[] {
    const entry = this.#entries.get(key)
    if (!entry) return []
    entry.variants ??= this.#shown(entry)
    return entry.variants
  }

  #shown(entry: Entry): StoredVariant[] {
    const manifest = shortManifest(entry)
    const { directory, metadata } = entry
    const revisions = this.#hidden.size === 0 ? [] : manifest.variants.map(({ revision }) => revision)
    const hidden = new Set(revisions.filter(each => this.#hidden.has(join(directory, each))))
    const shown = hidden.size === 0 ? manifest : withoutRevisions(manifest, hidden)
    if (!shown) return []
    return storedVariants(
      directory,
      shown,
      variant => metadata?.get(variant.revision) ?? new StoredMetadata(directory, variant, this.#warn)
    )
  }

  /** Returns the visible variants of each model with a name, which is in lower case. */
  namesakes(name: string): StoredVariant[][] {
    const keys = this.#names.get(name) ?? []
    return (typeof keys === 'string' ? [keys] : [...keys])
      .map(key => this.variants(key))
      .filter(({ length }) => length > 0)
  }

  list(): StoredVariant[] {
    this.#list ??= [...this.#entries.keys()].sort().flatMap(key => this.variants(key))
    return this.#list
  }

  safetensors(): StoredVariant[] {
    const variants: StoredVariant[] = []
    for (const [key, { manifest }] of this.#entries) if (hasSafetensors(manifest)) variants.push(...this.variants(key))
    return variants.filter(({ format }) => format === 'safetensors')
  }

  put(key: string, directory: string, manifest: CachedManifest): void {
    const metadata = known(this.#entries.get(key))
    this.#entries.set(key, { directory, manifest, variants: undefined, metadata })
    const name = nameFromKey(key)
    const keys = this.#names.get(name)
    if (keys === undefined) this.#names.set(name, key)
    else if (typeof keys !== 'string') keys.add(key)
    else if (keys !== key) this.#names.set(name, new Set([keys, key]))
    this.#listChanged()
  }

  /** Hides revisions during their removal from the disk, or shows them again if it failed. */
  setHidden(key: string, variants: readonly StoredVariant[], hidden: boolean): void {
    for (const { directory } of variants) hidden ? this.#hidden.add(directory) : this.#hidden.delete(directory)
    const entry = this.#entries.get(key)
    if (entry) this.put(key, entry.directory, entry.manifest)
  }

  /** Call this before writing or removing a manifest: revisions not `staying` keep their details for their users. */
  keepDetails(key: string, staying: ReadonlySet<string>): void {
    for (const [revision, metadata] of known(this.#entries.get(key)) ?? []) {
      if (!staying.has(revision)) metadata.keepDetails()
    }
  }

  delete(key: string): void {
    this.#entries.delete(key)
    const keys = this.#names.get(nameFromKey(key))
    if (keys instanceof Set) keys.delete(key)
    if (keys === key || (keys instanceof Set && keys.size === 0)) this.#names.delete(nameFromKey(key))
    this.#listChanged()
  }

  #listChanged(): void {
    this.#list = undefined
    this.#onChange()
  }
}

function shortManifest(entry: Entry): ShortManifest {
  if (entry.manifest.text === undefined) return entry.manifest
  const manifest: ShortManifest = JSON.parse(entry.manifest.text)
  entry.manifest = manifest
  return manifest
}

function known(entry: Entry | undefined): Entry['metadata'] {
  if (!entry?.variants) return entry?.metadata
  const shown = entry.variants.map(({ revision, metadata }) => [revision, metadata as StoredMetadata] as const)
  return new Map([...(entry.metadata ?? []), ...shown])
}

const nameFromKey = (key: string) => key.slice(key.indexOf('/') + 1)

export function variantNames(model: ModelName, label: string, isDefault: boolean) {
  const bare = bareName(model)
  return {
    model: { owner: model.owner, name: model.name, variant: label },
    label,
    isDefault,
    publicName: isDefault ? bare : `${bare}:${label}`,
    key: `${bare}:${label}`.toLowerCase()
  }
}

/**
 * Converts a manifest's variants for the rest of corral, the default one first. Every field is listed: V8 may create a
 * hidden class for each object built with `...`, which takes more memory than the object.
 */
export function storedVariants<Variant extends ShortManifest['variants'][number]>(
  directory: string,
  manifest: Omit<ShortManifest, 'variants'> & { variants: Variant[] },
  metadataOf: (variant: Variant) => ModelMetadata
): StoredVariant[] {
  const first = findLabel(manifest.variants, manifest.default)
  return manifest.variants
    .map((variant): StoredVariant => {
      const { label, revision, format, size, digest, modifiedAt, origin, files, defaults } = variant
      const { model, isDefault, publicName, key } = variantNames(manifest, label, variant === first)
      const stored: StoredVariant = {
        model,
        label,
        isDefault,
        publicName,
        key,
        revision,
        format,
        size,
        digest,
        modifiedAt,
        origin,
        metadata: metadataOf(variant),
        directory: `${directory}${sep}${revision}`,
        files
      }
      if (defaults) stored.defaults = defaults
      return stored
    })
    .sort((a, b) => Number(b.isDefault) - Number(a.isDefault))
}
