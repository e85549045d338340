import type { StoredFile } from '../contracts/storage.ts'
import { parseGgufFileName, projectorFor, shardNames } from './gguf-file-name.ts'
import { describesSafetensors, isTokenizer } from './safetensors-layout.ts'

/** A model among the files of a folder, as far as their names and small texts tell. Paths are as in the listing. */
export interface FolderModel {
  format: 'gguf' | 'safetensors'
  /** Quantization in the name; undefined if it has none. */
  label?: string | undefined
  /** Its files, as far as they are there: weights in the order of their shards, then what belongs to them. */
  files: { path: string; role: StoredFile['role'] }[]
  /** Why it cannot be used: a sentence about "it", and one with advice. */
  problem?: string | undefined
}

const filesOf = (role: StoredFile['role'], paths: readonly string[]) => paths.map(path => ({ path, role }))

/** The models among GGUF files. Drafts, data for quantization and projectors by themselves are none. */
export function ggufModels(paths: readonly string[]): FolderModel[] {
  const models = new Map<string, FolderModel>()
  for (const path of paths) {
    const { role, label, shard } = parseGgufFileName(path)
    if (role === 'split') {
      const group = path.slice(0, path.toLowerCase().lastIndexOf('.gguf'))
      const problem =
        'It was cut into pieces that no engine loads. Join them in order with "cat", then import the file.'
      const files = [...(models.get(group)?.files ?? []), ...filesOf('model', [path])]
      models.set(group, { format: 'gguf', label, files, problem })
    } else if (role === 'model' && !models.has(shard?.group ?? path)) {
      models.set(shard?.group ?? path, ggufModel(path, paths))
    }
  }
  return [...models.values()]
}

/** The model that a GGUF file belongs to, whatever its name tells: with its other shards and its projector. */
export function ggufModel(path: string, paths: readonly string[]): FolderModel {
  const shards = shardNames(path)
  const present = shards.filter(shard => paths.includes(shard))
  const projector = projectorFor(shards[0]!, paths)
  return {
    format: 'gguf',
    label: parseGgufFileName(path).label,
    files: [
      ...filesOf('model', present),
      ...filesOf('projector', projector === undefined || projector === path ? [] : [projector])
    ],
    problem: missingProblem(shards.filter(shard => !paths.includes(shard)))
  }
}

/** Texts of a SafeTensors folder that say how its weights are to be read; undefined for files that are not there. */
export interface FolderTexts {
  /** config.json */
  config?: string | undefined
  /** model.safetensors.index.json */
  index?: string | undefined
}

/** The SafeTensors model of a folder; undefined if it has no such weights. @param paths also those of subfolders */
export function safetensorsModel(paths: readonly string[], texts: FolderTexts): FolderModel | undefined {
  const present = paths.filter(path => /^[^/]+\.safetensors$/i.test(path))
  if (texts.index === undefined && present.length === 0) return undefined
  const named =
    texts.index === undefined ? paths.filter(path => /^model[^/]*\.safetensors$/.test(path)) : indexed(texts.index)
  const weights = [...new Set(named?.flatMap(shardNames))].sort()
  return {
    format: 'safetensors',
    files: [
      ...filesOf(
        'model',
        weights.filter(path => paths.includes(path))
      ),
      ...filesOf('other', paths.filter(path => !weights.includes(path) && describesSafetensors(path)).sort())
    ],
    problem:
      configProblem(texts.config, paths.includes('adapter_config.json')) ??
      (named ? undefined : 'Its model.safetensors.index.json is damaged. Download the model again.') ??
      (weights.length > 0
        ? missingProblem(weights.filter(path => !paths.includes(path)))
        : `It has no weights named model*.safetensors, which conversion needs, only ${listed(present)}.`) ??
      (paths.some(isTokenizer)
        ? undefined
        : 'It has no tokenizer (tokenizer.json or tokenizer.model). Download the whole model.')
  }
}

function missingProblem(missing: string[]): string | undefined {
  if (missing.length === 0) return undefined
  return `It is not complete: ${listed(missing)} ${missing.length === 1 ? 'is' : 'are'} missing. Download the rest.`
}

function configProblem(text: string | undefined, isAdapter: boolean): string | undefined {
  if (text === undefined) {
    return isAdapter
      ? 'It is a LoRA adapter, no whole model. Merge it into its base model first.'
      : 'It has no config.json. Download the whole model.'
  }
  let config: { quantization?: { group_size?: unknown } } | null
  try {
    config = JSON.parse(text)
  } catch {
    return 'Its config.json is damaged. Download the model again.'
  }
  if (config?.quantization?.group_size === undefined) return undefined
  return 'It is quantized for MLX, which llama.cpp does not read. Download a GGUF of it, or its original weights.'
}

/** The files that an index names; undefined when it is damaged or names files outside of its folder. */
function indexed(index: string): string[] | undefined {
  try {
    const weights = [...new Set(Object.values(JSON.parse(index).weight_map))]
    const areNames = weights.every(weight => typeof weight === 'string' && /^[^/\\]+$/.test(weight))
    return weights.length > 0 && areNames ? (weights as string[]) : undefined
  } catch {
    return undefined
  }
}

/** Names for a message, not too many of them. */
export function listed(names: string[]): string {
  const shown = names.slice(0, 12).join(', ')
  return names.length > 12 ? `${shown} and ${names.length - 12} more` : shown
}
