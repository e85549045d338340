import type { ModelDefaults, ModelMetadata, Origin } from '../../core/contracts/models.ts'
import type { StoredFile, StoredVariant } from '../../core/contracts/storage.ts'
import type { ModelName } from '../../core/models/model-name.ts'
import { conflictingVariant, haveSameContent } from '../../core/models/stored-variant.ts'
import { templateCapabilities } from './capabilities.ts'
import { findLabel } from './manifest.ts'
import { labelTaken, modelExists } from './refusals.ts'
import { digestOf, type StagedRevision } from './staging.ts'

/** How a staged revision becomes part of a model. */
export interface Placement {
  label: string
  origin: Origin
  metadata: ModelMetadata
  defaults: ModelDefaults | undefined
  digest: string
  /** The variant of this label, whose place it takes. */
  present: StoredVariant | undefined
  /** The bare name means it from now on. */
  becomesDefault: boolean
}

/**
 * Decides under which label files are stored, and what holds for them.
 *
 * What is made replaces what was made under that name, but never the files of a model that came from elsewhere: those
 * are laid hands on only where they stay the same. What comes from elsewhere keeps the defaults that were laid down for
 * the variant whose place it takes.
 *
 * @param name its variant, if given, is the label
 * @param variants those of the model, the default one first
 * @throws CorralError `model_exists` naming what is there
 */
export function placementOf(
  name: ModelName,
  { files, label, origin, metadata, defaults }: StagedRevision,
  variants: StoredVariant[]
): Placement {
  if (origin.kind === 'made') {
    const replaced = replacedByMade(name, variants)
    const isOther = replaced && replaced.origin.kind !== 'made' && !haveSameContent(replaced.files, files)
    if (isOther) throw modelExists(replaced)
    // Under this label lies what was made without a tag, and goes by the bare name.
    if (replaced?.origin.kind === 'made' && replaced.origin.tag === undefined && name.variant !== undefined) {
      throw labelTaken(replaced)
    }
    return {
      label: replaced?.label ?? name.variant ?? freeLabel(label, variants),
      origin:
        replaced && replaced.origin.kind !== 'made'
          ? replaced.origin
          : { ...origin, ...(name.variant !== undefined && { tag: name.variant }) },
      ...whatHolds(files, metadata, defaults),
      present: replaced,
      becomesDefault: name.variant === undefined
    }
  }
  const other = conflictingVariant(variants, origin, label)
  if (other) throw modelExists(other)
  const present = findLabel(variants, label)
  return { label, origin, ...whatHolds(files, metadata, defaults ?? present?.defaults), present, becomesDefault: false }
}

/** The variant that something made under a name takes the place of; without a tag it is the one made without. */
function replacedByMade({ variant: tag }: ModelName, variants: StoredVariant[]): StoredVariant | undefined {
  if (tag !== undefined) return findLabel(variants, tag)
  const [first] = variants
  if (first && first.origin.kind !== 'made') return first
  return variants.find(({ origin }) => origin.kind === 'made' && origin.tag === undefined)
}

function freeLabel(wanted: string, variants: StoredVariant[]): string {
  let label = wanted
  for (let number = 2; findLabel(variants, label); number++) label = `${wanted}-${number}`
  return label
}

function whatHolds(files: StoredFile[], metadata: ModelMetadata, defaults: ModelDefaults | undefined) {
  return {
    metadata: defaults?.template === undefined ? metadata : withTemplate(metadata, defaults.template),
    defaults,
    digest: digestOf(files, defaults)
  }
}

/** What is known of a model that is given another chat template. */
function withTemplate(metadata: ModelMetadata, chatTemplate: string): ModelMetadata {
  const others = metadata.capabilities.filter(capability => capability !== 'tools' && capability !== 'thinking')
  const byTemplate = others.includes('completion') ? templateCapabilities(chatTemplate) : []
  return { ...metadata, chatTemplate, capabilities: [...others, ...byTemplate] }
}
