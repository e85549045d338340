import { join } from 'node:path'
import { CorralError } from '../../core/errors.ts'
import { parseModelName } from '../../core/model-name.ts'
import type { EngineSettings } from '../../core/model-settings.ts'
import type { LoadOptions } from '../../core/options.ts'
import type { EngineMode, EngineSpec, Storage, StoredVariant } from '../../core/services.ts'

/** @throws CorralError when this variant cannot be loaded in this mode. */
export function requireServable(mode: EngineMode, variant: StoredVariant): void {
  if (mode === 'chat' && !variant.metadata.capabilities.includes('completion')) {
    throw new CorralError(
      'unsupported_capability',
      `Model "${variant.publicName}" does not generate text (it can: ${variant.metadata.capabilities.join(', ') || 'nothing known'}).`
    )
  }
}

/** The files that an engine loads, absolute. */
export interface EngineFiles {
  modelPath: string
  projectorPath?: string
}

/** The files of a GGUF variant. A sharded model is named by its first shard. */
export function ownFiles(variant: StoredVariant): EngineFiles {
  const first = variant.files.filter(file => file.role === 'model').sort((a, b) => (a.path < b.path ? -1 : 1))[0]
  if (!first) {
    throw new CorralError(
      'load_failed',
      `Model "${variant.publicName}" has no model file. Delete it and import or pull it again.`
    )
  }
  const projector = variant.files.find(file => file.role === 'projector')
  return {
    modelPath: join(variant.directory, first.path),
    ...(projector ? { projectorPath: join(variant.directory, projector.path) } : {})
  }
}

/**
 * What an engine for this variant is started with.
 * @param storage has the draft model, where one is set
 * @throws CorralError `load_failed` when the draft model cannot be used
 */
export function engineSpec(
  variant: StoredVariant,
  mode: EngineMode,
  { modelPath, projectorPath: own }: EngineFiles,
  options: LoadOptions,
  settings: EngineSettings,
  storage: Pick<Storage, 'find'>
): EngineSpec {
  const projectorPath = settings.projector === undefined ? own : (settings.projector ?? undefined)
  return {
    alias: variant.publicName,
    mode,
    variant,
    modelPath,
    ...(projectorPath === undefined ? {} : { projectorPath }),
    options,
    settings: mode === 'chat' ? withDraftFile(variant, settings, storage) : settings
  }
}

function withDraftFile(
  variant: StoredVariant,
  settings: EngineSettings,
  storage: Pick<Storage, 'find'>
): EngineSettings {
  const { draft } = settings.speculation
  if (!draft) return settings
  const found = storage.find(parseModelName(draft.model))
  const fail = (why: string, what: string): never => {
    throw new CorralError(
      'load_failed',
      `The draft model "${draft.model}" of "${variant.publicName}" ${why}. ${what}, or remove "draft" from the model's settings.`,
      { details: { cause: 'draft_unusable' } }
    )
  }
  if (!found) return fail('is not here', 'Pull or import it')
  if (found.format !== 'gguf') return fail('is not a GGUF model', 'Choose a GGUF model')
  const modelPath = ownFiles(found).modelPath
  return { ...settings, speculation: { ...settings.speculation, draft: { ...draft, modelPath } } }
}
