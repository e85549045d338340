import type { ModelDefaults, ModelMetadata } from '../../../core/contracts/models.ts'
import type { StoredFile, StoredVariant } from '../../../core/contracts/storage.ts'
import type { ModelName } from '../../../core/models/model-name.ts'
import { conflictingVariant, haveSameContent } from '../../../core/models/stored-variant.ts'
import { templateCapabilities } from './capabilities.ts'
import { findLabel, type VariantRecord } from './manifest.ts'
import { labelTaken, modelExists } from './refusals.ts'
import { contentDigest, type StagedRevision } from './staging.ts'

/** How a staged revision becomes part of a model. */
export interface Placement extends Pick<VariantRecord, 'label' | 'origin' | 'metadata' | 'defaults' | 'digest'> {
  /** The variant of this label, which it replaces. */
  present: StoredVariant | undefined
  /** The bare name refers to it from now on. */
  becomesDefault: boolean
}

/**
 * Decides under which label files are stored, and with which defaults.
 *
 * A model made by a client replaces the model made under the same name. It replaces a model from elsewhere only if the
 * files stay the same. Files from elsewhere keep the defaults of the variant that they replace, and never take a label
 * that was made as a tag for a model without a tag.
 *
 * @param name its variant, if given, is the label
 * @param variants those of the model, the default one first
 * @throws CorralError `model_exists` naming the existing model
 */
export function decidePlacement(
  name: ModelName,
  { files, label, origin, metadata, defaults, becomesDefault = false }: StagedRevision,
  variants: StoredVariant[]
): Placement {
  if (origin.kind !== 'made') {
    const other = conflictingVariant(variants, origin, label)
    if (other) throw modelExists(other)
    const named = findLabel(variants, label)
    const isOthersTag = named?.origin.tag !== undefined && origin.tag === undefined && name.variant === undefined
    const present = isOthersTag ? variants.find(({ origin: { from } }) => from === origin.from) : named
    const hasOwnTag = origin.tag !== undefined && present?.origin.tag === undefined
    if (present && hasOwnTag && !haveSameContent(present.files, files)) throw labelTaken(present)
    const placed = withDefaults(files, metadata, defaults ?? present?.defaults)
    return {
      label: present?.label ?? freeLabel(label, variants),
      origin: present && hasOwnTag ? present.origin : origin,
      ...placed,
      present,
      becomesDefault
    }
  }
  const tag = name.variant
  const replaced = replacedByMade(tag, variants)
  const isMade = replaced?.origin.kind === 'made'
  if (replaced && !isMade && !haveSameContent(replaced.files, files)) throw modelExists(replaced)
  // This label has the model that was made without a tag, known by the bare name.
  if (isMade && replaced.origin.tag === undefined && tag !== undefined) throw labelTaken(replaced)
  return {
    label: replaced?.label ?? tag ?? freeLabel(label, variants),
    origin: replaced && !isMade ? replaced.origin : { ...origin, ...(tag !== undefined && { tag }) },
    ...withDefaults(files, metadata, defaults),
    present: replaced,
    becomesDefault: tag === undefined
  }
}

/** Returns the variant that a made model replaces: the one made under the same tag, or without a tag. */
function replacedByMade(tag: string | undefined, variants: StoredVariant[]): StoredVariant | undefined {
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

/** Returns the model's metadata with these defaults, which may include another chat template. */
function withDefaults(files: StoredFile[], metadata: ModelMetadata, defaults: ModelDefaults | undefined) {
  const digest = contentDigest(files, defaults)
  const chatTemplate = defaults?.template
  if (chatTemplate === undefined) return { metadata, defaults, digest }
  const others = metadata.capabilities.filter(capability => capability !== 'tools' && capability !== 'thinking')
  const byTemplate = others.includes('completion') ? templateCapabilities(chatTemplate) : []
  return { metadata: { ...metadata, chatTemplate, capabilities: [...others, ...byTemplate] }, defaults, digest }
}
