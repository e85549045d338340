import { readFileSync } from 'node:fs'
import { join, sep } from 'node:path'
import { type Static, Type } from 'typebox'
import type { Capability, ModelMetadata } from '../../../core/contracts/models.ts'
import { Format } from '../../../core/contracts/native-records.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { errorMessage } from '../../../core/errors.ts'
import { bareName, type ModelName, modelKey } from '../../../core/models/model-name.ts'
import { type ParsedJson, parseJson } from '../../../core/system/json-file.ts'

export const MANIFEST_FILE = 'manifest.json'
const MANIFEST_VERSION = 1

const Sha256 = Type.String({ pattern: '^[0-9a-f]{64}$' })
/** Relative, with forward slashes, and never outside its folder. */
const RelativePath = Type.String({ pattern: '^(?!.*(^|/)\\.\\.?(/|$))[^/\\\\:\\u0000]+(/[^/\\\\:\\u0000]+)*$' })
/** One path component, chosen by corral. */
const FolderName = Type.String({ pattern: '^[a-z0-9][a-z0-9._-]*$' })
const Segment = Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9._-]*$', maxLength: 96 })

const VariantSchema = Type.Object({
  label: Segment,
  /** Also the name of the folder beside the manifest that has the files. */
  revision: FolderName,
  format: Format,
  files: Type.Array(
    Type.Object({
      path: RelativePath,
      size: Type.Integer({ minimum: 0 }),
      sha256: Sha256,
      role: Type.Enum(['model', 'projector', 'draft', 'other'])
    }),
    { minItems: 1 }
  ),
  size: Type.Integer({ minimum: 0 }),
  digest: Sha256,
  modifiedAt: Type.String({ pattern: '^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z$' }),
  origin: Type.Object({
    kind: Type.Enum(['bundled', 'import', 'hub', 'made']),
    from: Type.String(),
    revision: Type.Optional(Type.String()),
    tag: Type.Optional(Type.String())
  }),
  metadata: Type.Object({
    architecture: Type.Optional(Type.String()),
    contextLength: Type.Optional(Type.Number()),
    embeddingLength: Type.Optional(Type.Number()),
    parameters: Type.Optional(Type.Number()),
    quantization: Type.Optional(Type.String()),
    chatTemplate: Type.Optional(Type.String()),
    // Any string, so that this version can still read a manifest from a later version with new capabilities.
    capabilities: Type.Array(Type.Unsafe<Capability>({ type: 'string' })),
    voices: Type.Optional(Type.Array(Type.String())),
    info: Type.Record(Type.String(), Type.Union([Type.String(), Type.Number(), Type.Boolean(), Type.Null()]))
  }),
  /** Absent if none were set, and in manifests written before defaults existed. */
  defaults: Type.Optional(
    Type.Object({
      options: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
      system: Type.Optional(Type.String()),
      messages: Type.Optional(Type.Array(Type.Object({ role: Type.String(), content: Type.String() }))),
      template: Type.Optional(Type.String()),
      license: Type.Optional(Type.String())
    })
  )
})

const ManifestSchema = Type.Object({
  version: Type.Literal(MANIFEST_VERSION),
  owner: Segment,
  name: Segment,
  default: Segment,
  /** Oldest first. */
  variants: Type.Array(VariantSchema, { minItems: 1 })
})

export type VariantRecord = Static<typeof VariantSchema>
/** The content of a model's `manifest.json`, the only source of truth about stored files. */
export type Manifest = Static<typeof ManifestSchema>

export function parseManifest(text: string): ParsedJson<Manifest> {
  const parsed = parseJson(text, ManifestSchema)
  if (parsed.value && !findLabel(parsed.value.variants, parsed.value.default)) {
    return { fault: `its default variant ${parsed.value.default} is not among its variants` }
  }
  return parsed
}

export function findLabel<Variant extends { label: string }>(variants: Variant[], label: string): Variant | undefined {
  const wanted = label.toLowerCase()
  return variants.find(variant => variant.label.toLowerCase() === wanted)
}

/** Returns the variant that a name means: by default the default one, which comes first. */
export function variantNamed<Variant extends { label: string }>(
  variants: Variant[],
  { variant }: { variant?: string }
): Variant | undefined {
  return variant === undefined ? variants[0] : findLabel(variants, variant)
}

export function withVariant(
  manifest: Manifest | undefined,
  { owner, name }: { owner: string; name: string },
  variant: VariantRecord
): Manifest {
  const empty: Manifest = { version: MANIFEST_VERSION, owner, name, default: variant.label, variants: [] }
  const { variants, ...rest } = manifest ?? empty
  const old = findLabel(variants, variant.label)
  // The label keeps the case in which it was first stored, since `default` and settings refer to it.
  const next = { ...variant, label: old?.label ?? variant.label }
  return { ...rest, variants: old ? variants.map(each => (each === old ? next : each)) : [...variants, next] }
}

/**
 * Returns the manifest without some revisions, or undefined if none is left. If the default is removed, the oldest
 * remaining variant becomes the default. A variant made under a tag becomes the default only if there is no other
 * variant.
 */
export function withoutRevisions<
  Kept extends { default: string; variants: Pick<VariantRecord, 'label' | 'revision' | 'origin'>[] }
>(manifest: Kept, revisions: ReadonlySet<string>): Kept | undefined {
  const variants = manifest.variants.filter(variant => !revisions.has(variant.revision))
  const oldest = variants.find(({ origin }) => origin.tag === undefined) ?? variants[0]
  if (!oldest) return undefined
  return { ...manifest, variants, default: (findLabel(variants, manifest.default) ?? oldest).label }
}

/** The long and seldom needed fields of a manifest. They are read on demand instead of being kept in memory. */
type Details = Pick<VariantRecord['metadata'], 'info' | 'chatTemplate'>

type ShortMetadata = Omit<VariantRecord['metadata'], keyof Details> & { hasTemplate: boolean }
type ShortVariant = Omit<VariantRecord, 'metadata'> & { metadata: ShortMetadata }
/** A manifest without its variants' details, which is in memory for each model. */
export type ShortManifest = Omit<Manifest, 'variants'> & { variants: ShortVariant[] }

export function shortManifest({ variants, ...manifest }: Manifest): ShortManifest {
  return {
    ...manifest,
    variants: variants.map(({ metadata: { info: _, chatTemplate, ...metadata }, ...variant }) => ({
      ...variant,
      metadata: { ...metadata, hasTemplate: chatTemplate !== undefined }
    }))
  }
}

/** A short manifest. With `text`, it is as written by the last start, not parsed yet. */
export type CachedManifest = { text: string } | (ShortManifest & { text?: undefined })

/** Reads a model's whole manifest again. @param warn called if its details are lost */
export function wholeManifest(
  directory: string,
  { variants, ...manifest }: ShortManifest,
  warn: (message: string) => void
): Manifest {
  const details = readDetails(directory, warn)
  return {
    ...manifest,
    variants: variants.map(({ metadata: { hasTemplate: _, ...metadata }, ...variant }) => ({
      ...variant,
      metadata: { ...metadata, ...(details.get(variant.revision) ?? { info: {} }) }
    }))
  }
}

/** Reads the details of variants, by revision. Returns none and warns if the manifest was deleted or damaged. */
function readDetails(directory: string, warn: (message: string) => void): Map<string, Details> {
  const path = join(directory, MANIFEST_FILE)
  try {
    const { value, fault } = parseManifest(readFileSync(path, 'utf8'))
    if (!value) throw new Error(fault)
    return new Map(
      value.variants.map(({ revision, metadata: { info, chatTemplate } }) => [
        revision,
        { info, ...(chatTemplate !== undefined && { chatTemplate }) }
      ])
    )
  } catch (error) {
    const lost = 'cannot be used, so part of its information is missing'
    warn(`${path}, which was there when corral started, ${lost}: ${errorMessage(error)}`)
    return new Map()
  }
}

/** The metadata of a stored variant. Its details are read from the manifest on each access. */
export class StoredMetadata implements ModelMetadata {
  declare architecture?: string
  declare contextLength?: number
  declare embeddingLength?: number
  declare parameters?: number
  declare quantization?: string
  declare capabilities: Capability[]
  declare voices?: string[]
  readonly #directory: string
  readonly #revision: string
  readonly #warn: (message: string) => void
  readonly #hasTemplate: boolean
  #kept: Details | undefined

  /** @param directory the model's folder */
  constructor(
    directory: string,
    { revision, metadata: { hasTemplate, ...metadata } }: ShortVariant,
    warn: (message: string) => void
  ) {
    Object.assign(this, metadata)
    // Computed, because manifests do not store it.
    if (!hasTemplate && metadata.capabilities.includes('completion')) {
      this.capabilities = metadata.capabilities.flatMap(each => (each === 'completion' ? [each, 'base'] : each))
    }
    this.#directory = directory
    this.#revision = revision
    this.#warn = warn
    this.#hasTemplate = hasTemplate
  }

  get info(): ModelMetadata['info'] {
    return this.#details().info
  }

  get chatTemplate(): string | undefined {
    return this.#hasTemplate ? this.#details().chatTemplate : undefined
  }

  /** Call this before the manifest loses this revision, for callers that still use it. */
  keepDetails(): void {
    this.#kept ??= this.#details()
  }

  /** Includes the getters, which are not own properties. */
  toJSON(): ModelMetadata {
    return { ...this, ...this.#details() }
  }

  #details(): Details {
    return this.#kept ?? readDetails(this.#directory, this.#warn).get(this.#revision) ?? { info: {} }
  }
}

interface Entry {
  directory: string
  manifest: CachedManifest
  /** The visible variants, the default one first. Created on demand. */
  variants: StoredVariant[] | undefined
  /** The metadata objects of the variants, by revision. After a change, new variants share them. */
  metadata: ReadonlyMap<string, StoredMetadata> | undefined
}

/** The models in memory. Keys are as `modelKey` returns them. */
export class ModelIndex {
  readonly #entries = new Map<string, Entry>()
  /** Folders of revisions that are being removed: still in manifests, but no longer visible. */
  readonly #hidden = new Set<string>()
  #list: StoredVariant[] | undefined
  /** Keys by name without owner, in lower case. */
  readonly #names = new Map<string, readonly string[]>()
  readonly #warn: (message: string) => void
  onChange: () => void = () => {}

  /** @param warn called for manifests that have become unusable */
  constructor(warn: (message: string) => void = () => {}) {
    this.#warn = warn
  }

  /** Returns a model's folder, even while the model is being removed. */
  directory(key: string): string | undefined {
    return this.#entries.get(key)?.directory
  }

  /** Returns a model's manifest, even while the model is being removed. */
  manifest(key: string): Manifest | undefined {
    const entry = this.#entries.get(key)
    return entry && wholeManifest(entry.directory, parsedManifest(entry), this.#warn)
  }

  variants(name: ModelName): StoredVariant[] {
    return this.#variants(modelKey(name)).slice()
  }

  #variants(key: string): StoredVariant[] {
    const entry = this.#entries.get(key)
    if (!entry) return []
    entry.variants ??= this.#shown(entry)
    return entry.variants
  }

  #shown(entry: Entry): StoredVariant[] {
    const manifest = parsedManifest(entry)
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

  /** Returns the visible variants of each model with a name, whatever its owner. */
  namesakes(name: string): StoredVariant[][] {
    const keys = this.#names.get(name.toLowerCase()) ?? []
    return keys.map(key => this.#variants(key)).filter(({ length }) => length > 0)
  }

  list(): StoredVariant[] {
    this.#list ??= [...this.#entries.keys()].sort().flatMap(key => this.#variants(key))
    return this.#list.slice()
  }

  put(key: string, directory: string, manifest: CachedManifest): void {
    const metadata = known(this.#entries.get(key))
    this.#entries.set(key, { directory, manifest, variants: undefined, metadata })
    const name = nameFromKey(key)
    const keys = this.#names.get(name) ?? []
    if (!keys.includes(key)) this.#names.set(name, [...keys, key])
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
    const name = nameFromKey(key)
    const others = this.#names.get(name)?.filter(other => other !== key) ?? []
    if (others.length > 0) this.#names.set(name, others)
    else this.#names.delete(name)
    this.#listChanged()
  }

  #listChanged(): void {
    this.#list = undefined
    this.onChange()
  }
}

function parsedManifest(entry: Entry): ShortManifest {
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
export function storedVariants(
  directory: string,
  manifest: ShortManifest,
  metadataOf: (variant: ShortVariant) => ModelMetadata
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
