import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import type { Capability, ModelMetadata } from '../../../core/contracts/models.ts'
import { errorMessage } from '../../../core/errors.ts'
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
  format: Type.Enum(['gguf', 'safetensors']),
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
export type CachedManifest = { text: string; safetensors: boolean } | (ShortManifest & { text?: undefined })

export const hasSafetensors = (kept: CachedManifest): boolean =>
  kept.text === undefined ? kept.variants.some(({ format }) => format === 'safetensors') : kept.safetensors

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
