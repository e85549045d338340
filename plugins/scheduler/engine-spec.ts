import { join } from 'node:path'
import { CorralError } from '../../core/errors.ts'
import { bareName } from '../../core/model-name.ts'
import type { LoadOptions } from '../../core/options.ts'
import type { EngineMode, EngineSpec, StoredVariant } from '../../core/services.ts'

/** @throws CorralError when this variant cannot be loaded, or not in this mode. */
export function requireServable(mode: EngineMode, variant: StoredVariant): void {
  if (variant.format !== 'gguf') {
    throw new CorralError(
      'not_implemented',
      `Model "${variant.publicName}" is in the ${variant.format} format, and this version of corral does not convert it yet. Import a GGUF of it instead: corral import <file.gguf> ${bareName(variant.model)}.`
    )
  }
  if (mode === 'chat' && !variant.metadata.capabilities.includes('completion')) {
    throw new CorralError(
      'unsupported_capability',
      `Model "${variant.publicName}" does not generate text (it can: ${variant.metadata.capabilities.join(', ') || 'nothing known'}).`
    )
  }
}

/** What an engine for this variant is started with. A sharded model is named by its first shard. */
export function engineSpec(variant: StoredVariant, mode: EngineMode, options: LoadOptions): EngineSpec {
  const first = variant.files.filter(file => file.role === 'model').sort((a, b) => (a.path < b.path ? -1 : 1))[0]
  if (!first) {
    throw new CorralError(
      'load_failed',
      `Model "${variant.publicName}" has no model file. Delete it and import or pull it again.`
    )
  }
  const projector = variant.files.find(file => file.role === 'projector')
  return {
    alias: variant.publicName,
    mode,
    variant,
    modelPath: join(variant.directory, first.path),
    ...(projector ? { projectorPath: join(variant.directory, projector.path) } : {}),
    options
  }
}
