import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Capability, ModelMetadata } from '../../../core/contracts/models.ts'
import { errorMessage } from '../../../core/errors.ts'
import { type Manifest, parseManifest, type VariantRecord } from './manifest.ts'
import { MANIFEST_FILE } from './model-folders.ts'

/** The long and seldom needed fields of a manifest. They are read on demand instead of being kept in memory. */
type Details = Pick<VariantRecord['metadata'], 'info' | 'chatTemplate'>

type ShortMetadata = Omit<VariantRecord['metadata'], keyof Details> & {
  hasTemplate: boolean
}
type ShortVariant = Omit<VariantRecord, 'metadata'> & { metadata: ShortMetadata }
/** A manifest without its variants' details: what is in memory for each model. */
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

/** A short manifest as the last start wrote it, not parsed yet. */
interface UnreadManifest {
  text: string
  safetensors: boolean
}
export type CachedManifest = UnreadManifest | (ShortManifest & { text?: undefined })

/** Returns whether a model has SafeTensors variants. */
export function hasSafetensors(kept: CachedManifest): boolean {
  return kept.text === undefined ? kept.variants.some(({ format }) => format === 'safetensors') : kept.safetensors
}

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

/**
 * Reads the details of a model's variants, by revision. Synchronous: it reads a few thousand characters when someone
 * inspects or loads a model. Returns none and warns if the manifest was deleted or damaged since the start.
 */
function readDetails(directory: string, warn: (message: string) => void): Map<string, Details> {
  const path = join(directory, MANIFEST_FILE)
  let fault: string
  try {
    const { value, fault: found } = parseManifest(readFileSync(path, 'utf8'))
    if (value) {
      return new Map(
        value.variants.map(({ revision, metadata: { info, chatTemplate } }) => [
          revision,
          { info, ...(chatTemplate !== undefined && { chatTemplate }) }
        ])
      )
    }
    fault = found
  } catch (error) {
    fault = errorMessage(error)
  }
  warn(`${path}, which was there when corral started, cannot be used, so part of its information is missing: ${fault}`)
  return new Map()
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
