import { join, sep } from 'node:path'
import type { ModelMetadata } from '../../../core/contracts/models.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { bareName, type ModelName } from '../../../core/models/model-name.ts'
import { findLabel, type Manifest, withoutRevisions } from './manifest.ts'
import {
  hasSafetensors,
  type KeptManifest,
  type ShortManifest,
  StoredMetadata,
  wholeManifest
} from './model-details.ts'

interface Entry {
  directory: string
  /** As it is on disk. */
  manifest: KeptManifest
  /** What is shown, the default variant first; made when somebody asks. */
  variants: StoredVariant[] | undefined
  /** What earlier objects for its variants know, by revision: those that are made after a change share it. */
  metadata: ReadonlyMap<string, StoredMetadata> | undefined
}

/** All models in memory, by `owner/name` in lower case. */
export class ModelIndex {
  readonly #entries = new Map<string, Entry>()
  /** Folders of revisions that are being removed: still in manifests, but no longer shown. */
  readonly #hidden = new Set<string>()
  #list: StoredVariant[] | undefined
  /** Keys by the name behind the owner, in lower case: the only one, which it mostly is, or all. */
  readonly #names = new Map<string, string | Set<string>>()
  readonly #onChange: () => void
  readonly #warn: (message: string) => void

  /**
   * @param onChange called after each change of what is listed
   * @param warn called for manifests that can no longer be used
   */
  constructor(onChange: () => void, warn: (message: string) => void = () => {}) {
    this.#onChange = onChange
    this.#warn = warn
  }

  /** Where a model is; also while it is being removed. */
  directory(key: string): string | undefined {
    return this.#entries.get(key)?.directory
  }

  /** What a model's manifest says; also while it is being removed. */
  manifest(key: string): Manifest | undefined {
    const entry = this.#entries.get(key)
    return entry && wholeManifest(entry.directory, manifestOf(entry), this.#warn)
  }

  /** The variants that are shown, the default one first. */
  variants(key: string): StoredVariant[] {
    const entry = this.#entries.get(key)
    if (!entry) return []
    entry.variants ??= this.#shown(entry)
    return entry.variants
  }

  #shown(entry: Entry): StoredVariant[] {
    const manifest = manifestOf(entry)
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

  /** The shown variants of each model of a name, which is in lower case. */
  namesakes(name: string): StoredVariant[][] {
    const keys = this.#names.get(name) ?? []
    return (typeof keys === 'string' ? [keys] : [...keys])
      .map(key => this.variants(key))
      .filter(({ length }) => length > 0)
  }

  /** All variants of all models, by name. */
  list(): StoredVariant[] {
    this.#list ??= [...this.#entries.keys()].sort().flatMap(key => this.variants(key))
    return this.#list
  }

  /** The SafeTensors variants of all models, in no order. */
  safetensors(): StoredVariant[] {
    const variants: StoredVariant[] = []
    for (const [key, { manifest }] of this.#entries) if (hasSafetensors(manifest)) variants.push(...this.variants(key))
    return variants.filter(({ format }) => format === 'safetensors')
  }

  /** Records what a manifest on disk now says. */
  put(key: string, directory: string, manifest: KeptManifest): void {
    const metadata = known(this.#entries.get(key))
    this.#entries.set(key, { directory, manifest, variants: undefined, metadata })
    const name = nameOf(key)
    const keys = this.#names.get(name)
    if (keys === undefined) this.#names.set(name, key)
    else if (typeof keys !== 'string') keys.add(key)
    else if (keys !== key) this.#names.set(name, new Set([keys, key]))
    this.#listChanged()
  }

  /** Hides revisions while they are being removed from the disk, or shows those again that are still there. */
  setHidden(key: string, variants: readonly StoredVariant[], hidden: boolean): void {
    for (const { directory } of variants) hidden ? this.#hidden.add(directory) : this.#hidden.delete(directory)
    const entry = this.#entries.get(key)
    if (entry) this.put(key, entry.directory, entry.manifest)
  }

  /**
   * To be called before a manifest is written or removed: those who have variants that it loses keep what it says of them.
   * @param staying the revisions that it has afterwards
   */
  keepDetails(key: string, staying: ReadonlySet<string>): void {
    for (const [revision, metadata] of known(this.#entries.get(key)) ?? []) {
      if (!staying.has(revision)) metadata.keepDetails()
    }
  }

  delete(key: string): void {
    this.#entries.delete(key)
    const keys = this.#names.get(nameOf(key))
    if (keys instanceof Set) keys.delete(key)
    if (keys === key || (keys instanceof Set && keys.size === 0)) this.#names.delete(nameOf(key))
    this.#listChanged()
  }

  #listChanged(): void {
    this.#list = undefined
    this.#onChange()
  }
}

function manifestOf(entry: Entry): ShortManifest {
  if (entry.manifest.text === undefined) return entry.manifest
  const manifest: ShortManifest = JSON.parse(entry.manifest.text)
  entry.manifest = manifest
  return manifest
}

/** What objects that were made for an entry's variants know. */
function known(entry: Entry | undefined): Entry['metadata'] {
  if (!entry?.variants) return entry?.metadata
  const shown = entry.variants.map(({ revision, metadata }) => [revision, metadata as StoredMetadata] as const)
  return new Map([...(entry.metadata ?? []), ...shown])
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

/**
 * A manifest's variants as the rest of corral sees them, the default one first. Each field is named: of objects that are
 * made of others by `...` V8 may keep a shape each, which takes more than the object.
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
      const { model, isDefault, publicName, key } = namesOf(manifest, label, variant === first)
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
