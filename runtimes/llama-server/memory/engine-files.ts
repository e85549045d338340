import { stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { type GgufHeader, readGgufHeader } from '../../../core/models/gguf-file.ts'
import type { LaunchSpec } from '../launch-spec.ts'
import { type ModelShape, modelShape } from './model-shape.ts'

/** A model's files. Sizes are bytes. */
export interface Weights {
  /** Undefined where their metadata do not say. */
  shape: ModelShape | undefined
  size: number
}

/** What is known of the files that an engine loads. */
export interface EngineFiles extends Weights {
  loras: number
  projector?: { size: number; compute: number }
  draft?: Weights
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

/** A file that is not there, or is of another kind, counts as nothing here: the engine says what is wrong with it. */
async function sizeOf(path: string): Promise<number> {
  return (await stat(path).catch(() => undefined))?.size ?? 0
}

async function headerOf(path: string): Promise<GgufHeader | undefined> {
  return readGgufHeader(path).catch(() => undefined)
}

/** @param info what the store knows of the model, where its files cannot be read */
async function weightsIn(path: string, info: Record<string, unknown>, amx: boolean): Promise<Weights> {
  const paths = shardsOf(path)
  const [headers, sizes] = await Promise.all([Promise.all(paths.map(headerOf)), Promise.all(paths.map(sizeOf))])
  const size = sizes.reduce((sum, bytes) => sum + bytes, 0)
  const tensors = headers.flatMap(header => header?.tensors ?? [])
  // The size of a type that is newer than corral is unknown.
  const sized = headers.every(header => header) && tensors.every(({ bytes }) => bytes > 0)
  return { shape: modelShape(headers[0]?.keys ?? info, sized ? tensors : undefined, size, amx), size }
}

async function projectorIn(path: string): Promise<EngineFiles['projector']> {
  const [size, header] = await Promise.all([sizeOf(path), headerOf(path)])
  return { size, compute: projectorCompute(header?.keys, size) }
}

/**
 * Reads what an engine's files say of its need for memory, some milliseconds for each; where a file cannot be read, the
 * store's own record of the model has to do. Never rejects.
 * @param amx whether llama.cpp packs weights for a processor with AMX
 */
export async function engineFiles(spec: LaunchSpec, amx = false): Promise<EngineFiles> {
  const { loras = [], speculation } = spec.settings ?? {}
  const draftPath = spec.mode === 'chat' ? speculation?.draft?.modelPath : undefined
  const [model, projector, draft, ...adapters] = await Promise.all([
    weightsIn(spec.modelPath, spec.variant.metadata.info, amx),
    spec.projectorPath === undefined ? undefined : projectorIn(spec.projectorPath),
    draftPath === undefined ? undefined : weightsIn(draftPath, {}, amx),
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
  const number = (name: string) => Number(keys?.[`clip.vision.${name}`] ?? 0)
  const side = number('patch_size') > 0 ? number('image_size') / number('patch_size') : 0
  const patches = side * side
  const widest = 3 * number('feed_forward_length') + 5 * number('embedding_length')
  if (!(patches > 0 && widest > 0)) return weights
  return F32 * patches * (widest + patches * number('attention.head_count'))
}
