import type { StoredFormat } from '../contracts/models.ts'
import type { StoredFile } from '../contracts/storage.ts'
import type { ParsedJson } from '../system/json-file.ts'
import { isObject } from '../system/json-object.ts'
import { parseUntrustedJson } from '../system/untrusted-json.ts'
import type { GgufHeader } from './gguf-file.ts'
import { companionFinder, parseGgufFileName, shardNames } from './gguf-file-name.ts'

/** A model in a folder, as its file names and small text files describe it. Paths are as in the listing. */
export interface FolderModel {
  format: StoredFormat
  /** Quantization in the name; undefined if it has none. */
  label?: string | undefined
  /** Its existing files: weights in the order of their shards, then the other files. */
  files: { path: string; role: StoredFile['role'] }[]
  /** Why the model cannot be used: a sentence about "it", and a sentence with advice. */
  problem?: string | undefined
}

const filesOf = (role: StoredFile['role'], paths: readonly string[]) => paths.map(path => ({ path, role }))

/** Maximum files whose headers are read because shards seem to be missing. */
const MAX_DOUBTS = 100

/** Finds complete GGUF files, by their headers, that have names of shards although shards are missing. */
export async function singleFiles(
  paths: readonly string[],
  all: readonly string[],
  read: (path: string) => Promise<Pick<GgufHeader, 'keys'>>
): Promise<Set<string>> {
  const present = new Set(all)
  const isDoubtful = (path: string) => /\.gguf$/i.test(path) && shardNames(path).some(name => !present.has(name))
  const single = new Set<string>()
  for (const path of paths.filter(isDoubtful).slice(0, MAX_DOUBTS)) {
    // Unreadable files are reported later.
    const header = await read(path).catch(() => undefined)
    if (header && Number(header.keys['split.count'] ?? 1) <= 1) single.add(path)
  }
  return single
}

const NONE: ReadonlySet<string> = new Set()

/** The models among GGUF files. `single` files are not shards, despite their names. */
export function ggufModels(paths: readonly string[], single = NONE): FolderModel[] {
  const models = new Map<string, FolderModel>()
  for (const path of paths) {
    const { role, label, shard } = parseGgufFileName(path)
    if (role === 'split') {
      const group = path.slice(0, path.toLowerCase().lastIndexOf('.gguf'))
      const problem =
        'It was split into pieces that no engine loads. Join them in order with "cat", then import the file.'
      const files = [...(models.get(group)?.files ?? []), ...filesOf('model', [path])]
      models.set(group, { format: 'gguf', label, files, problem })
    } else {
      const group = shard && !single.has(path) ? shard.group : path
      if (role === 'model' && !models.has(group)) models.set(group, ggufModel(path, paths, single))
    }
  }
  return [...models.values()]
}

/** The model that a GGUF file belongs to, with its other shards and its projector. Its name does not matter. */
export function ggufModel(path: string, paths: readonly string[], single = NONE): FolderModel {
  const shards = single.has(path) ? [path] : shardNames(path)
  const present = shards.filter(shard => paths.includes(shard))
  const companion = (role: 'projector' | 'draft') => {
    const found = companionFinder(role, paths)(shards[0]!)
    return filesOf(role, found === undefined || found === path ? [] : [found])
  }
  return {
    format: 'gguf',
    label: parseGgufFileName(path).label,
    files: [...filesOf('model', present), ...companion('projector'), ...companion('draft')],
    problem: missingProblem(shards.filter(shard => !paths.includes(shard)))
  }
}

/** The models of speech among files. They recognize speech (`ggml-….bin`), or are voices (`….onnx` with `….onnx.json`). */
export function speechModels(paths: readonly string[]): FolderModel[] {
  return paths.flatMap((path): FolderModel[] => {
    const [, recognizer, voice] = /(?:^|\/)(?:ggml-([^/]+)\.bin|([^/]+)\.onnx)$/i.exec(path) ?? []
    const files = filesOf('model', [path])
    if (recognizer !== undefined) return [{ format: 'ggml', label: recognizer, files }]
    const described = `${path}.json`
    if (voice === undefined || !paths.includes(described)) return []
    return [{ format: 'onnx', label: voice, files: [...files, ...filesOf('other', [described])] }]
  })
}

/** The image model in a SafeTensors file. */
export const checkpointModel = (path: string): FolderModel => ({
  format: 'checkpoint',
  label: path.replace(/^.*\/|\.safetensors$/gi, ''),
  files: filesOf('model', [path])
})

/** The image models in the files of a repository. Such repositories also have each part of the model in a folder. */
export const checkpointModels = (paths: readonly string[]): FolderModel[] =>
  paths.includes('model_index.json')
    ? paths.filter(path => /^[^/]+\.safetensors$/i.test(path) && !NOT_WHOLE.test(path)).map(checkpointModel)
    : []
const NOT_WHOLE = /(?:^|[._-])(?:lora|vae|ae|adapter|controlnet)(?:[._-]|$)/i

/** The text files of a SafeTensors folder that describe its weights; undefined for missing files. */
export interface FolderTexts {
  config?: ParsedJson<unknown> | undefined
  /** model.safetensors.index.json */
  index?: ParsedJson<unknown> | undefined
}

/** Reads them. @param read returns the text of a file in the folder; undefined if it does not exist */
export async function readFolderTexts(read: (name: string) => Promise<string | undefined>): Promise<FolderTexts> {
  const parsed = async (name: string) => {
    const text = await read(name)
    return text === undefined ? undefined : await parseUntrustedJson(text, { python: true })
  }
  return { config: await parsed('config.json'), index: await parsed('model.safetensors.index.json') }
}

/** Describes the SafeTensors model in a folder with these paths, including those of subfolders. */
export function safetensorsModel(paths: readonly string[], texts: FolderTexts): FolderModel | undefined {
  const present = paths.filter(path => /^[^/]+\.safetensors$/i.test(path))
  if (texts.index === undefined && present.length === 0) return undefined
  const named = texts.index
    ? indexedWeights(texts.index.value)
    : paths.filter(path => /^model[^/]*\.safetensors$/.test(path))
  const weights = [...new Set(named?.flatMap(shardNames))].sort()
  const [stored = [], missing = []] = [true, false].map(is => weights.filter(path => paths.includes(path) === is))
  const weightsProblem = () => {
    if (!named) return 'Its model.safetensors.index.json is damaged. Download the model again.'
    if (weights.length === 0) {
      return `It has no weights named model*.safetensors, which conversion needs, only ${listed(present)}.`
    }
    const tokenizer = 'It has no tokenizer (tokenizer.json or tokenizer.model). Download the whole model.'
    return missingProblem(missing) ?? (paths.some(isTokenizer) ? undefined : tokenizer)
  }
  return {
    format: 'safetensors',
    files: [
      ...filesOf('model', stored),
      ...filesOf('other', paths.filter(path => !weights.includes(path) && describesSafetensors(path)).sort())
    ],
    problem: configProblem(texts.config, paths.includes('adapter_config.json')) ?? weightsProblem()
  }
}

function missingProblem(missing: string[]): string | undefined {
  if (missing.length === 0) return undefined
  return `It is not complete: ${listed(missing)} ${missing.length === 1 ? 'is' : 'are'} missing. Download the rest.`
}

function configProblem(config: FolderTexts['config'], isAdapter: boolean): string | undefined {
  if (config === undefined) {
    return isAdapter
      ? 'It is a LoRA adapter, not a whole model. Merge it into its base model first.'
      : 'It has no config.json. Download the whole model.'
  }
  if (config.fault !== undefined) {
    return `Its config.json is damaged: ${config.fault}. Download the model again.`
  }
  const quantization = isObject(config.value) ? config.value.quantization : undefined
  if (!isObject(quantization) || quantization.group_size === undefined) return undefined
  return 'It is quantized for MLX, which llama.cpp does not read. Download a GGUF of it, or its original weights.'
}

/** The files that an index names; undefined if it is damaged or names files outside of its folder. */
export function indexedWeights(value: unknown): string[] | undefined {
  const map = isObject(value) ? value.weight_map : undefined
  const weights = isObject(map) ? [...new Set(Object.values(map))] : []
  const areNames = weights.every(weight => typeof weight === 'string' && /^[^/\\]+$/.test(weight))
  return weights.length > 0 && areNames ? (weights as string[]) : undefined
}

/** Lists names for a message, up to a maximum. */
export function listed(names: string[]): string {
  const shown = names.slice(0, 12).join(', ')
  return names.length > 12 ? `${shown} and ${names.length - 12} more` : shown
}

/** Files of a SafeTensors folder, besides the weights, that the converter reads. */
const DESCRIPTION =
  /^(.*config.*\.json|params\.json|chat_template\.json|tokenizer.*\.(json|model|txt)|tokenizer\.model\.v\w+|special_tokens_map\.json|added_tokens\.json|tekken\.json|vocab\.(json|txt)|merges\.txt|.*\.model|.*\.tiktoken|.*\.jinja|modules\.json|model\.safetensors\.index\.json)$/i
/** Pooling and dense layers of sentence-transformers. */
const MODULE_FILE = /^\d+_\w+\/(config\.json|model\.safetensors)$/
const TEMPLATE_FILE = /^additional_chat_templates\/[^/]+\.jinja$/
const TOKENIZER = /^(tokenizer\.json|tokenizer\.model|tekken\.json|vocab\.(json|txt)|.*\.model|.*\.tiktoken)$/i

/** Whether a file beside SafeTensors weights is needed to convert or run them. @param path in the model's folder */
export function describesSafetensors(path: string): boolean {
  return MODULE_FILE.test(path) || TEMPLATE_FILE.test(path) || (!path.includes('/') && DESCRIPTION.test(path))
}

/** Whether a file contains a tokenizer. @param path in the model's folder */
export function isTokenizer(path: string): boolean {
  return !path.includes('/') && TOKENIZER.test(path)
}

const TYPES: [pattern: RegExp, label: string][] = [
  [/^(bfloat16|bf16)$/, 'BF16'],
  [/^(float16|half|f16)$/, 'F16'],
  [/^(float32|float|f32)$/, 'F32'],
  [/^(float8|f8)/, 'FP8']
]

/** Returns the label for the type in a config.json, otherwise for that of the weights. `SAFETENSORS` if unknown. */
export function safetensorsLabel(config: unknown, own = ''): string {
  const levels = isObject(config) ? [config, config.text_config].filter(isObject) : []
  const named = levels.flatMap(({ torch_dtype, dtype }) => [torch_dtype, dtype])
  const dtype = named.find((value): value is string => typeof value === 'string' && value !== '') ?? own
  const name = dtype.toLowerCase().replace(/^torch\./, '')
  return TYPES.find(([pattern]) => pattern.test(name))?.[1] ?? 'SAFETENSORS'
}
