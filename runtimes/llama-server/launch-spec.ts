import { join } from 'node:path'
import type { EngineSettings } from '../../core/config/model-settings.ts'
import type { EngineSpec } from '../../core/contracts/engines.ts'
import type { Catalog } from '../../core/contracts/models.ts'
import { hasFiles, type StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import { parseRequestedName } from '../../core/models/model-name.ts'
import type { RpcWorker } from './rpc-workers.ts'

/** Limits for memory that an engine would otherwise keep filling. */
export interface EngineBounds {
  /** Maximum checkpoints per slot, for models with windows or states (`--ctx-checkpoints`). */
  checkpoints: number
  /** Bytes of each device to leave free (`--fit-target`): first workers' devices, then the build's. */
  deviceMargins?: readonly number[]
  /** Shares of the layers on these devices (`--tensor-split`). If absent, llama.cpp decides. */
  shares?: readonly number[]
}

export interface LaunchSpec extends EngineSpec {
  variant: StoredVariant
  /** Absolute path of the (first) model file, after conversion if it was needed. */
  modelPath: string
  projectorPath?: string
  /** Folder in which the engine may save its slots' caches (`--slot-save-path`). None are saved if absent. */
  slotFolder?: string
  bounds?: EngineBounds
  workers?: readonly RpcWorker[]
}

export type EngineFiles = Pick<LaunchSpec, 'modelPath' | 'projectorPath'>

/** Returns the files of a GGUF variant. A sharded model is named by its first shard. */
export function ownFiles(variant: StoredVariant): EngineFiles {
  const first = variant.files.filter(file => file.role === 'model').sort((a, b) => (a.path < b.path ? -1 : 1))[0]
  if (!first) {
    const message = `Model "${variant.publicName}" has no model file. Delete it and import or pull it again.`
    throw new CorralError('load_failed', message)
  }
  const projector = variant.files.find(file => file.role === 'projector')
  return {
    modelPath: join(variant.directory, first.path),
    ...(projector ? { projectorPath: join(variant.directory, projector.path) } : {})
  }
}

/** Describes how an engine is started. @throws CorralError `load_failed` if the draft model cannot be used */
export function launchSpec(
  spec: EngineSpec & { variant: StoredVariant },
  { modelPath, projectorPath: own }: EngineFiles,
  catalog: Pick<Catalog, 'find'>
): LaunchSpec {
  const { settings, mode } = spec
  const chosen = settings?.projector === undefined ? own : (settings.projector ?? undefined)
  // Only conversations contain images.
  const projectorPath = mode === 'chat' ? chosen : undefined
  return {
    ...spec,
    modelPath,
    ...(projectorPath === undefined ? {} : { projectorPath }),
    ...(settings && mode === 'chat' ? { settings: withDraftFile(spec.variant, settings, catalog) } : {})
  }
}

function withDraftFile(variant: StoredVariant, settings: EngineSettings, catalog: Pick<Catalog, 'find'>) {
  const { draft } = settings.speculation
  if (!draft) return settings
  const found = catalog.find(parseRequestedName(draft.model))
  const fail = (why: string, what: string): never => {
    const message = `The draft model "${draft.model}" of "${variant.publicName}" ${why}. ${what}, or remove "draft" from the model's settings.`
    throw new CorralError('load_failed', message, { details: { cause: 'draft_unusable' } })
  }
  if (!found) return fail('is not here', 'Pull or import it')
  if (!hasFiles(found) || found.format !== 'gguf') return fail('is not a GGUF model', 'Choose a GGUF model')
  const modelPath = ownFiles(found).modelPath
  return { ...settings, speculation: { ...settings.speculation, draft: { ...draft, modelPath } } }
}
