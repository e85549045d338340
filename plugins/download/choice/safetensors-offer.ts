import type { HubFile } from '../../../core/contracts/downloads.ts'
import { CorralError } from '../../../core/errors.ts'
import { shardNames } from '../../../core/models/gguf-file-name.ts'
import { dtypeLabel, isTokenizer } from '../../../core/models/safetensors-layout.ts'
import { folderOf, listed } from './choice.ts'
import { asLabel } from './gguf-offer.ts'

const INDEX = 'model.safetensors.index.json'
/** No whole model by itself: adapters, other layouts, other precisions of the same, states of training. */
const NO_WEIGHTS =
  /^(?:adapter|consolidated|optimizer|scheduler|diffusion_pytorch_model|ae|vae)[._-]|[._-](?:lora|ema|non_ema|fp16|fp32|bf16|int8)(?:-\d{5}-of-\d{5})?\.safetensors$/i

/** A folder of a repository that holds a SafeTensors model, or would if it were whole. */
export interface SafetensorsOffer {
  /** '' for the root, else the folder with its slash. */
  folder: string
  /** In the repository: the weights, in order. */
  weights: HubFile[]
  /** Files that it lacks to be a model. */
  missing: string[]
}

/**
 * The SafeTensors models of a listing: the one in the root, else those in folders of their own, as other corrals list
 * them. Parts of pipelines (text encoders, pooling) are none.
 */
export function safetensorsFolders(files: readonly HubFile[]): string[] {
  const has = new Set(files.map(file => file.path))
  if (has.has('model_index.json')) return []
  const folders = new Set(files.filter(({ path }) => isWeights(path)).map(({ path }) => folderOf(path)))
  if (folders.has('')) return ['']
  const whole = (folder: string) =>
    has.has(`${folder}config.json`) &&
    files.some(({ path }) => path.startsWith(folder) && isTokenizer(path.slice(folder.length)))
  return [...folders].filter(folder => asLabel(folder) === folder.slice(0, -1) && whole(folder)).sort()
}

function isWeights(path: string): boolean {
  const name = path.slice(folderOf(path).length)
  return name.endsWith('.safetensors') && !NO_WEIGHTS.test(name)
}

/** The index that tells which weights belong to a folder's model, if it has one. */
export function indexOf(files: readonly HubFile[], folder: string): string | undefined {
  return files.some(file => file.path === folder + INDEX) ? folder + INDEX : undefined
}

/**
 * The weights that a `model.safetensors.index.json` names, in order.
 * @param text its content
 * @param path for the message
 * @throws CorralError `unsupported_capability` when it is damaged
 */
export function weightsOfIndex(text: string, path = INDEX): string[] {
  let map: unknown
  try {
    map = JSON.parse(text)?.weight_map
  } catch (error) {
    throw damaged(path, 'it is no JSON', error)
  }
  const names = map && typeof map === 'object' ? [...new Set(Object.values(map))] : []
  if (names.length === 0) throw damaged(path, 'it has no "weight_map" with names of files')
  const strange = names.find(name => typeof name !== 'string' || !/^[^/\\]+\.safetensors$/.test(name))
  if (strange !== undefined) throw damaged(path, `${JSON.stringify(strange)} is no SafeTensors file beside it`)
  return (names as string[]).sort()
}

function damaged(path: string, why: string, cause?: unknown): CorralError {
  return new CorralError(
    'unsupported_capability',
    `The repository's ${path} cannot be used: ${why}. Pull another revision or another repository of this model.`,
    { param: 'model', cause }
  )
}

/**
 * Which weights of a folder make up its model: those of its index, else `model.safetensors`, else the one set of shards,
 * else the one other file.
 * @throws CorralError `unsupported_capability` where that cannot be told
 */
export function safetensorsOffer(
  id: string,
  files: readonly HubFile[],
  folder: string,
  weightsInIndex: string[] | undefined
): SafetensorsOffer {
  const byName = new Map(files.map(file => [file.path, file]))
  const names = files.filter(({ path }) => folderOf(path) === folder && isWeights(path)).map(({ path }) => path)
  const expected = weightsInIndex?.map(name => folder + name) ?? withoutIndex(id, names, folder)
  const needed = byName.has(`${folder}config.json`) ? [] : [`${folder}config.json`]
  if (!files.some(({ path }) => path.startsWith(folder) && isTokenizer(path.slice(folder.length)))) {
    needed.push(`${folder}tokenizer.json`)
  }
  return {
    folder,
    weights: expected.flatMap(name => byName.get(name) ?? []),
    missing: [...expected.filter(name => !byName.has(name)), ...needed]
  }
}

function withoutIndex(id: string, names: string[], folder: string): string[] {
  if (names.includes(`${folder}model.safetensors`)) return [`${folder}model.safetensors`]
  const sets = new Map(names.map(name => [shardNames(name)[0]!, shardNames(name)]))
  const named = [...sets.values()].filter(set => set[0]!.startsWith(`${folder}model-`))
  const choice = named.length === 1 ? named : [...sets.values()]
  if (choice.length === 1) return choice[0]!
  throw new CorralError(
    'unsupported_capability',
    `${id} holds ${choice.length} SafeTensors files and nothing tells which of them are its model: ` +
      `${listed(names.sort())}. Look for a repository with model.safetensors, or with GGUF files.`,
    { param: 'model' }
  )
}

type Fields = Record<string, unknown>
const fields = (value: unknown): Fields => (value && typeof value === 'object' ? (value as Fields) : {})
const text = (value: unknown) => (typeof value === 'string' && value !== '' ? value : undefined)

/** The label that SafeTensors weights get (`BF16`, `F16`, `F32`, `FP8`), from their parsed config.json; `SAFETENSORS` where it does not tell. */
export function safetensorsLabel(config: unknown): string {
  const whole = fields(config)
  return dtypeLabel(text(whole.torch_dtype) ?? text(whole.dtype) ?? text(fields(whole.text_config).dtype))
}
