import { join } from 'node:path'
import { CorralError } from '../../core/errors.ts'
import type { LoadOptions } from '../../core/options.ts'
import type { EngineMode, EngineSpec, StoredVariant } from '../../core/services.ts'

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

/** What an engine for this variant is started with. */
export function engineSpec(
  variant: StoredVariant,
  mode: EngineMode,
  { modelPath, projectorPath }: EngineFiles,
  options: LoadOptions
): EngineSpec {
  return { alias: variant.publicName, mode, variant, modelPath, ...(projectorPath ? { projectorPath } : {}), options }
}
