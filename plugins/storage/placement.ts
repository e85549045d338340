import type { ModelName } from '../../core/model-name.ts'
import type { ModelDefaults, ModelMetadata, Origin, StoredVariant } from '../../core/services.ts'
import { conflictingVariant, haveSameContent } from '../../core/stored-variant.ts'
import { templateCapabilities } from './capabilities.ts'
import { findLabel } from './manifest.ts'
import { modelExists } from './refusals.ts'
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
  const made = origin.kind === 'made'
  const replaced =
    made && name.variant === undefined ? variants[0] : findLabel(variants, made ? (name.variant ?? label) : label)
  if (made) {
    const isOther = replaced && replaced.origin.kind !== 'made' && !haveSameContent(replaced.files, files)
    if (isOther) throw modelExists(replaced)
  } else {
    const other = conflictingVariant(variants, origin, label)
    if (other) throw modelExists(other)
  }
  const laidDown = made ? defaults : (defaults ?? replaced?.defaults)
  return {
    label: made ? (replaced?.label ?? name.variant ?? label) : label,
    origin: made && replaced ? (replaced.origin.kind === 'made' ? origin : replaced.origin) : origin,
    metadata: laidDown?.template === undefined ? metadata : withTemplate(metadata, laidDown.template),
    defaults: laidDown,
    digest: digestOf(files, laidDown),
    present: replaced
  }
}

/** What is known of a model that is given another chat template. */
function withTemplate(metadata: ModelMetadata, chatTemplate: string): ModelMetadata {
  const others = metadata.capabilities.filter(capability => capability !== 'tools' && capability !== 'thinking')
  const byTemplate = others.includes('completion') ? templateCapabilities(chatTemplate) : []
  return { ...metadata, chatTemplate, capabilities: [...others, ...byTemplate] }
}
