import { stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { type GgufHeader, readGgufHeader } from '../../../core/models/gguf-file.ts'
import type { LaunchSpec } from '../launch-spec.ts'
import type { EngineFiles } from './engine-need.ts'
import { type ModelShape, modelShape } from './model-shape.ts'
import { projectorCompute } from './projector-size.ts'

const SHARD = /^(.*)-00001-of-(\d{5})\.gguf$/i

/** All files of a model that is named by its first one. */
export function shardsOf(path: string): string[] {
  const match = SHARD.exec(basename(path))
  if (!match) return [path]
  const [, name, count] = match
  const shard = (at: number) => join(dirname(path), `${name}-${String(at).padStart(5, '0')}-of-${count}.gguf`)
  return Array.from({ length: Math.min(Number(count), 1000) }, (_, at) => shard(at + 1))
}

/** A file that is not there, or is none of the kind, takes nothing here: the engine says what is wrong with it. */
async function factsOf(path: string): Promise<{ size: number; mtimeMs: number }> {
  return (await stat(path).catch(() => undefined)) ?? { size: 0, mtimeMs: 0 }
}

async function sizeOf(path: string): Promise<number> {
  return (await factsOf(path)).size
}

async function headerOf(path: string): Promise<GgufHeader | undefined> {
  return readGgufHeader(path).catch(() => undefined)
}

/** What was read of files that have not changed since. */
const read = new Map<string, Weights>()
const KEPT = 100

interface Weights {
  shape: ModelShape | undefined
  size: number
}

async function weightsIn(path: string, info: Record<string, unknown>): Promise<Weights> {
  const paths = shardsOf(path)
  const facts = await Promise.all(paths.map(factsOf))
  const key = JSON.stringify([path, facts.map(({ size, mtimeMs }) => [size, mtimeMs])])
  const before = read.get(key)
  if (before) return before
  const headers = await Promise.all(paths.map(headerOf))
  const size = facts.reduce((sum, file) => sum + file.size, 0)
  const tensors = headers.every(header => header) ? headers.flatMap(header => header!.tensors) : undefined
  // Of a type that is newer than corral nobody knows the size.
  const sized = tensors?.every(({ bytes }) => bytes > 0) ? tensors : undefined
  const weights = { shape: modelShape(headers[0]?.keys ?? info, sized, size), size }
  if (!headers[0]) return weights
  read.set(key, weights)
  if (read.size > KEPT) read.delete(read.keys().next().value!)
  return weights
}

async function projectorIn(path: string): Promise<EngineFiles['projector']> {
  const [size, header] = await Promise.all([sizeOf(path), headerOf(path)])
  return { size, compute: projectorCompute(header?.keys, size) }
}

/**
 * Reads what an engine's files say of its need for memory, some milliseconds for each; where a file cannot be read, the
 * store's own record of the model has to do. Never rejects.
 */
export async function engineFiles(spec: LaunchSpec): Promise<EngineFiles> {
  const { loras = [], speculation } = spec.settings ?? {}
  const draftPath = spec.mode === 'chat' ? speculation?.draft?.modelPath : undefined
  const [model, projector, draft, ...adapters] = await Promise.all([
    weightsIn(spec.modelPath, spec.variant.metadata.info),
    spec.projectorPath === undefined ? undefined : projectorIn(spec.projectorPath),
    draftPath === undefined ? undefined : weightsIn(draftPath, {}),
    ...loras.map(({ path }) => sizeOf(path))
  ])
  return {
    shape: model.shape,
    size: model.size || spec.variant.size,
    loras: adapters.reduce((sum, bytes) => sum + bytes, 0),
    ...(projector ? { projector } : {}),
    ...(draft ? { draft } : {})
  }
}
