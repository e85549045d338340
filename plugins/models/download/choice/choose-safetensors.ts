import type { PlannedDownload } from '../../../../core/contracts/downloads.ts'
import type { HubFile } from '../../../../core/contracts/hubs.ts'
import { labelFromFileName, shardNames, storedName } from '../../../../core/models/gguf-file-name.ts'
import {
  describesSafetensors,
  indexedWeights,
  isTokenizer,
  listed,
  safetensorsLabel
} from '../../../../core/models/model-folder.ts'
import { formatBytes } from '../../../../core/system/bytes.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { type Choice, type ChoiceRequest, refusal, requiredMemory, toChoice, toPlannedFile } from './choice.ts'
import { asLabel, byPath, parentFolder, totalSize } from './gguf-models.ts'

const TEXT = /^(?:readme\.md|licen[cs]e(?:\.(?:md|txt))?|notice(?:\.(?:md|txt))?)$/i
/** Names of weights that were quantized for Apple's MLX, which only MLX reads. */
const MLX_NAME = /^mlx-community\/.*\b\d(?:[._]\d+)?-?bit\b|[-_.]mlx[-_.]?(?:\d|q\d|int\d|mxfp\d).*$/i

/** Chooses the files of the SafeTensors model in a folder. @throws CorralError as `chooseFiles` */
export function chooseSafetensors(request: ChoiceRequest, folder: string): Choice {
  const { id, files, config } = request
  const label = folder !== '' ? folder.slice(0, -1) : config === undefined ? undefined : safetensorsLabel(config)
  refuseOtherTypes(request, folder, label)
  refuseMlx(id, config)
  const { weights, missing } = safetensorsModel(request, folder)
  if (missing.length > 0) {
    throw refusal(
      'unsupported_capability',
      `${id} is not a complete model: it lacks ${listed(missing)}. Look for another repository of this model.`
    )
  }
  const inFolder = ({ path }: HubFile) => path.slice(folder.length)
  const stored = (file: HubFile, role: PlannedDownload['role'], name: string) =>
    toPlannedFile(file, role, name.split('/').map(storedName).join('/'))
  const others = [...files].sort(byPath).filter(file => {
    const name = inFolder(file)
    if (!file.path.startsWith(folder) || weights.includes(file) || name === 'adapter_config.json') return false
    return describesSafetensors(name) || TEXT.test(name)
  })
  const chosen = [
    ...weights.map(file => stored(file, 'model', convertibleName(request, inFolder(file), weights.length))),
    ...others.map(file => stored(file, 'other', inFolder(file)))
  ]
  const bytes = totalSize(weights)
  // Loaded as 16-bit floats unless another type is requested.
  const factor = label === 'F32' ? 0.5 : label === 'FP8' ? 2 : 1
  const isRequested = request.file || request.variant
  const choice = {
    format: 'safetensors' as const,
    label,
    files: chosen,
    reason: isRequested ? 'These weights were requested.' : 'The repository has only SafeTensors weights.',
    choices: [],
    warnings: [
      'These are SafeTensors weights: they are converted to GGUF when the model is first loaded. The first conversion needs ' +
        'some GB of Python packages, and asks before it installs them.'
    ]
  }
  return toChoice(
    request,
    requiredMemory(bytes * factor, 0),
    choice,
    ({ required, available }) =>
      `In 16 bits the model needs about ${formatBytes(required)} of memory, but ${formatBytes(available)} can be used on ` +
      'this machine. Load it with a smaller type, for example "dtype": "q4_k_m".'
  )
}

/** Renames weights to the names that the converter expects. With an index they keep their names. */
function convertibleName({ weightsInIndex }: ChoiceRequest, name: string, count: number): string {
  if (weightsInIndex || name.startsWith('model')) return name
  return count === 1 ? 'model.safetensors' : name.replace(/^.*(?=-\d{5}-of-\d{5}\.safetensors$)/, 'model')
}

/** The variant of SafeTensors weights can only be the type that they have. */
function refuseOtherTypes({ id, variant }: ChoiceRequest, folder: string, label: string | undefined): void {
  const wanted = variant === undefined || folder !== '' ? undefined : labelFromFileName(variant)
  if (variant === undefined || wanted === undefined || !/^[\w-]+$/.test(variant)) return
  const isType = /^(?:B?F16|F32)$/.test(wanted)
  if (isType && (label === undefined || label === wanted)) return
  const dtype = wanted.toLowerCase()
  throw refusal(
    'repo_not_found',
    `${id} has no ${wanted}, only SafeTensors weights${label ? ` in ${label}` : ''}. Pull ${id}, then load it with the option ` +
      `"dtype": "${dtype}", or convert it now with: corral convert ${id} --dtype ${dtype}`
  )
}

function refuseMlx(id: string, config: unknown): void {
  const { quantization, quantization_config: other } = fields(config)
  const isMlx =
    config === undefined ? MLX_NAME.test(id) : 'bits' in fields(quantization) && !('quant_method' in fields(other))
  if (!isMlx) return
  throw refusal(
    'unsupported_capability',
    `${id} has weights quantized for Apple's MLX, which llama.cpp cannot convert. Look for a repository with GGUF in its name.`
  )
}

export const INDEX = 'model.safetensors.index.json'
/** Not a complete model: adapters, other layouts, other precisions, training states. */
const NO_WEIGHTS =
  /^(?:adapter|consolidated|optimizer|scheduler|diffusion_pytorch_model|ae|vae)[._-]|[._-](?:lora|ema|non_ema|fp16|fp32|bf16|int8)(?:-\d{5}-of-\d{5})?\.safetensors$/i

/** Returns the folders with SafeTensors models: the root, otherwise subfolders, as other corrals list them. */
export function safetensorsFolders(files: readonly HubFile[]): string[] {
  const has = new Set(files.map(file => file.path))
  if (has.has('model_index.json')) return []
  const folders = new Set(files.filter(({ path }) => isWeights(path)).map(({ path }) => parentFolder(path)))
  if (folders.has('')) return ['']
  const whole = (folder: string) =>
    has.has(`${folder}config.json`) &&
    files.some(({ path }) => path.startsWith(folder) && isTokenizer(path.slice(folder.length)))
  return [...folders].filter(folder => asLabel(folder) === folder.slice(0, -1) && whole(folder)).sort()
}

function isWeights(path: string): boolean {
  const name = path.slice(parentFolder(path).length)
  return name.endsWith('.safetensors') && !NO_WEIGHTS.test(name)
}

/** Returns the weights that a parsed index names, in order. @throws CorralError `unsupported_capability` */
export function weightsFromIndex(index: unknown, path = INDEX): string[] {
  const names = indexedWeights(index)
  if (names?.every(name => name.endsWith('.safetensors'))) return names.sort()
  throw refusal(
    'unsupported_capability',
    `The repository's ${path} cannot be used: its "weight_map" does not name SafeTensors files beside it. Pull another ` +
      'revision or another repository of this model.'
  )
}

/**
 * Returns the weights of the model in a folder, in order, and missing files. The weights are those named in its index,
 * otherwise `model.safetensors`, otherwise the only set of shards, otherwise the only other file.
 * @throws CorralError `unsupported_capability` if that is ambiguous
 */
function safetensorsModel({ id, files, weightsInIndex }: ChoiceRequest, folder: string) {
  const byName = new Map(files.map(file => [file.path, file]))
  const names = files.filter(({ path }) => parentFolder(path) === folder && isWeights(path)).map(({ path }) => path)
  const expected = weightsInIndex?.map(name => folder + name) ?? withoutIndex(id, names, folder)
  const needed = byName.has(`${folder}config.json`) ? [] : [`${folder}config.json`]
  if (!files.some(({ path }) => path.startsWith(folder) && isTokenizer(path.slice(folder.length)))) {
    needed.push(`${folder}tokenizer.json`)
  }
  return {
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
  throw refusal(
    'unsupported_capability',
    `${id} has ${choice.length} SafeTensors files, and nothing shows which of them are its model: ` +
      `${listed(names.sort())}. Look for a repository with model.safetensors, or with GGUF files.`
  )
}

const fields = (value: unknown): Record<string, unknown> => (isObject(value) ? value : {})
