import { stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { type GgufHeader, readGgufHeader } from '../../../core/models/gguf-file.ts'
import type { LaunchSpec } from '../launch-spec.ts'
import { type ModelShape, modelShape } from './model-shape.ts'

/** What is known of the files that an engine loads. Sizes are bytes. */
export interface EngineFiles {
  shape: ModelShape | undefined
  size: number
  loras: number
  projector?: { size: number; compute: number }
  draft?: { shape: ModelShape | undefined; size: number }
}

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

const F32 = 4

/**
 * Bytes that a projector takes to look at an image, by the keys of its file: the scores of attention between all
 * patches of an image and the widest step of a layer (llama.cpp's tools/mtmd/clip.cpp without flash attention, which
 * not all of them have). Without keys, as much again as its weights.
 */
export function projectorCompute(keys: Readonly<Record<string, unknown>> | undefined, weights: number): number {
  const number = (name: string) => {
    const value = keys?.[`clip.vision.${name}`]
    return typeof value === 'number' ? value : 0
  }
  const side = number('patch_size') > 0 ? number('image_size') / number('patch_size') : 0
  const patches = side * side
  const widest = 3 * number('feed_forward_length') + 5 * number('embedding_length')
  if (patches === 0 || widest === 0) return weights
  return F32 * patches * (widest + patches * number('attention.head_count'))
}
