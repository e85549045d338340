import { join } from 'node:path'
import type { EngineSettings } from '../../core/config/model-settings.ts'
import type { EngineMode, EngineSpec } from '../../core/contracts/engines.ts'
import type { Capability, Storage, StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import type { LoadOptions } from '../../core/models/options.ts'

/** What each mode is for, and the capabilities of which one is enough: a model that writes can give embeddings too. */
const MODES: Record<EngineMode, { purpose: string; enough: readonly Capability[] }> = {
  chat: { purpose: 'generate text', enough: ['completion'] },
  embedding: { purpose: 'make embeddings', enough: ['embedding', 'completion'] },
  rerank: { purpose: 'rank documents', enough: ['rerank'] }
}
/** Where a model with a capability is asked. */
const PLACES: Partial<Record<Capability, string>> = {
  completion: 'generates text',
  embedding: 'makes embeddings (/v1/embeddings, /api/embed)',
  rerank: 'ranks documents (/v1/rerank)'
}

/**
 * Whether a variant can serve in a mode, by its metadata: llama-server would load it all the same, and answer nonsense.
 * @throws CorralError `unsupported_capability` saying what it can
 */
export function requireServable(mode: EngineMode, variant: StoredVariant): void {
  const { capabilities, architecture } = variant.metadata
  const { purpose, enough } = MODES[mode]
  if (enough.some(capability => capabilities.includes(capability))) return
  const able = capabilities.flatMap(capability => PLACES[capability] ?? [])
  const instead = able.length
    ? `it ${able.join(' and ')}`
    : `llama-server cannot answer with models of its kind${architecture ? ` (${architecture})` : ''}`
  throw new CorralError(
    'unsupported_capability',
    `Model "${variant.publicName}" cannot ${purpose}: ${instead}. Use a model that can.`,
    { param: 'model' }
  )
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
  const chosen = settings.projector === undefined ? own : (settings.projector ?? undefined)
  // Only who talks with a model shows it images.
  const projectorPath = mode === 'chat' ? chosen : undefined
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
