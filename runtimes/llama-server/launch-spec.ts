import { join } from 'node:path'
import type { EngineSettings } from '../../core/config/model-settings.ts'
import type { EngineSpec } from '../../core/contracts/engines.ts'
import type { Catalog } from '../../core/contracts/models.ts'
import { hasFiles, type StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import { parseRequestedName } from '../../core/models/model-name.ts'
import type { RpcWorker } from './rpc-workers.ts'

/** How much an engine may take of what it would take more and more of. */
export interface EngineBounds {
  /** Bytes of the machine's memory for the states of earlier prompts (`--cache-ram`). */
  promptCache: number
  /** Most checkpoints of each slot, which models with windows or states have (`--ctx-checkpoints`). */
  checkpoints: number
  /**
   * Bytes of each device that are left free when layers are placed by themselves (`--fit-target`): those of workers, then
   * the build's.
   */
  deviceMargins?: readonly number[]
  /** Shares of the layers on these devices (`--tensor-split`); where absent, llama.cpp's own. */
  shares?: readonly number[]
}

/** What a llama-server is started for. */
export interface LaunchSpec extends EngineSpec {
  variant: StoredVariant
  /** Absolute path of the (first) model file, converted where that was needed. */
  modelPath: string
  projectorPath?: string
  /** Folder that the engine may save its slots' caches in (`--slot-save-path`); none are saved where absent. */
  slotFolder?: string
  /** Where absent, llama-server's defaults and corral's own apply. */
  bounds?: EngineBounds
  /** Machines that hold layers of it too. */
  workers?: readonly RpcWorker[]
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
 * What an engine is started with, once its files are known.
 * @param catalog has the draft model, where one is set
 * @throws CorralError `load_failed` when the draft model cannot be used
 */
export function launchSpec(
  spec: EngineSpec & { variant: StoredVariant },
  { modelPath, projectorPath: own }: EngineFiles,
  catalog: Pick<Catalog, 'find'>
): LaunchSpec {
  const { settings, mode } = spec
  const chosen = settings?.projector === undefined ? own : (settings.projector ?? undefined)
  // Images are shown only in conversations.
  const projectorPath = mode === 'chat' ? chosen : undefined
  return {
    ...spec,
    modelPath,
    ...(projectorPath === undefined ? {} : { projectorPath }),
    ...(settings && mode === 'chat' ? { settings: withDraftFile(spec.variant, settings, catalog) } : {})
  }
}

function withDraftFile(
  variant: StoredVariant,
  settings: EngineSettings,
  catalog: Pick<Catalog, 'find'>
): EngineSettings {
  const { draft } = settings.speculation
  if (!draft) return settings
  const found = catalog.find(parseRequestedName(draft.model))
  const fail = (why: string, what: string): never => {
    throw new CorralError(
      'load_failed',
      `The draft model "${draft.model}" of "${variant.publicName}" ${why}. ${what}, or remove "draft" from the model's settings.`,
      { details: { cause: 'draft_unusable' } }
    )
  }
  if (!found) return fail('is not here', 'Pull or import it')
  if (!hasFiles(found) || found.format !== 'gguf') return fail('is not a GGUF model', 'Choose a GGUF model')
  const modelPath = ownFiles(found).modelPath
  return { ...settings, speculation: { ...settings.speculation, draft: { ...draft, modelPath } } }
}
