import type { HubFile } from '../../../../core/contracts/hubs.ts'
import type { CorralError } from '../../../../core/errors.ts'
import { shardNames } from '../../../../core/models/gguf-file-name.ts'
import { formatBytes } from '../../../../core/system/bytes.ts'
import { baseName, refusal, shortList } from './choice.ts'
import { isUnsupported, quality } from './default-quantization.ts'
import { type GgufCandidate, type GgufModels, isLabel, matchingGguf } from './gguf-models.ts'

const withSize = ({ label, size }: { label: string; size: number }) =>
  size > 0 ? `${label} (${formatBytes(size)})` : label

/** Lists the candidates' labels with their sizes, the best first, unknown ones last. */
export function listChoices(candidates: readonly GgufCandidate[]): { label: string; size: number }[] {
  return [...candidates]
    .sort((a, b) => qualityRank(b) - qualityRank(a) || (a.path < b.path ? -1 : 1))
    .slice(0, MAX_CHOICES)
    .map(({ label, size }) => ({ label, size }))
}

/** A listing may have hundreds of thousands of files. */
const MAX_CHOICES = 200

const qualityRank = ({ quantization }: GgufCandidate) => (quantization ? quality(quantization) : -2)

export function unknownVariant(
  id: string,
  wanted: string,
  choices: { label: string; size: number }[],
  incomplete: GgufModels['incomplete']
): CorralError {
  const broken = incomplete.filter(({ label, path }) =>
    [label, path, baseName(path)].some(name => name?.toLowerCase() === wanted.toLowerCase())
  )
  if (broken.length > 0) return incompleteSet(id, broken)
  const example = choices[0] ? ` Pull one of these, for example ${id}:${choices[0].label}.` : ''
  return refusal('repo_not_found', `${id} has no ${wanted}. It has ${shortList(choices.map(withSize))}.${example}`, {
    choices
  })
}

/** Creates the error for a name that matches several models. Its choices show what to write after the colon. */
export function ambiguous(
  id: string,
  models: GgufModels,
  found: readonly GgufCandidate[],
  wanted?: string
): CorralError {
  // A label that is also a quantization may match other models too.
  const isClear = ({ label }: GgufCandidate) => !isLabel(label) || matchingGguf(models, label).length === 1
  const choices = listChoices(found.map(one => (isClear(one) ? one : { ...one, label: one.path })))
  const what = wanted ? `${found.length} models that match ${wanted}` : `${found.length} models`
  return refusal(
    'invalid_request',
    `${id} has ${what}: ${shortList(choices.map(withSize))}. Name one after a colon, as in ${id}:${choices[0]!.label}.`,
    { choices }
  )
}

function incompleteSet(id: string, sets: readonly { path: string; missing: string[] }[]): CorralError {
  return refusal('unsupported_capability', `${id} is not usable: ${sets.map(incompleteText).join('; ')}.`)
}

export const incompleteText = ({ path, missing }: { path: string; missing: string[] }) =>
  missing.includes(path) && shardNames(path).length === 1
    ? `${path} is empty (0 bytes)`
    : `${path} is part of a set that lacks ${shortList(missing)}`

/** Creates the error for a named file that is not a model. */
export function notAModel(id: string, path: string, { roles, incomplete }: GgufModels): CorralError {
  const broken = incomplete.filter(set => set.path === path || (set.missing.length > 0 && sameSet(set.path, path)))
  if (broken.length > 0) return incompleteSet(id, broken)
  const why = {
    model: 'is not a model by itself',
    projector: 'is a projector, which a model uses to see or hear; it is downloaded with its model',
    draft: 'is a draft model, which runs only beside its main model',
    imatrix: 'has data for quantization (an importance matrix), not a model',
    adapter: 'is a LoRA adapter, which changes a base model and does not run by itself',
    image: 'is a model that makes images or videos, which llama.cpp cannot run',
    split: 'is a piece of a split file, which llama.cpp cannot load before the pieces are joined',
    other: /\.gguf$/i.test(path)
      ? 'is a part of another model (for example a vocoder or a text encoder) and does not run by itself'
      : 'is not a model file'
  }[roles.get(path) ?? 'other']
  return refusal('unsupported_capability', `${path} of ${id} ${why}. Name a GGUF model file, or leave the name out.`)
}

const sameSet = (a: string, b: string) => a.replace(/\d{5}-of-/, '') === b.replace(/\d{5}-of-/, '')

/** Other content that a repository may have: by the roles of its files, and by their names. */
const ROLES = {
  split: 'pieces of split GGUF files, which must be joined first',
  draft: 'draft models, which run beside a main model',
  projector: 'a projector without its model',
  imatrix: 'data for quantization (an importance matrix)',
  adapter: 'a LoRA adapter, which changes a base model',
  image: 'a model that makes images or videos'
}
const KINDS: [RegExp, string][] = [
  [/(^|\/)adapter_(?:config\.json|model\.)/, ROLES.adapter],
  [/^model_index\.json$/, 'a diffusion pipeline, which makes images or sound'],
  [/(^|\/)consolidated[^/]*$/, "weights in their maker's own layout (consolidated)"],
  [/\.onnx(?:_data)?$/, 'ONNX files'],
  [/\.(?:bin|pt|pth|ckpt)$/, 'pickled PyTorch files, which may run any code when they are loaded'],
  [/\.(?:h5|msgpack|tflite|ot)$/, 'weights of TensorFlow, Flax or Rust'],
  [/\.(?:mlmodel|mlpackage)(?:\/|$)/, 'Core ML files'],
  [/\.npz$/, 'MLX files, which run on Apple machines only'],
  [/\.safetensors$/, 'SafeTensors files that are not a language model by themselves']
]

/** Creates the error for a repository with nothing to run. Says what it has instead. */
export function nothingToRun(
  id: string,
  listed: readonly HubFile[],
  { roles, incomplete, candidates }: GgufModels
): CorralError {
  const foreign = candidates.filter(({ quantization }) => quantization && isUnsupported(quantization))
  if (foreign.length > 0) {
    return refusal(
      'unsupported_capability',
      `${id} has only quantizations that llama.cpp does not load: ` +
        `${shortList(foreign.map(({ label }) => label))}. Look for another repository of this model.`
    )
  }
  if (incomplete.length > 0) return incompleteSet(id, incomplete)
  const paths = listed.map(file => file.path)
  const found = new Set<string>(roles.values())
  const kinds = new Set([
    ...Object.entries(ROLES).flatMap(([role, what]) => (found.has(role) ? [what] : [])),
    ...KINDS.filter(([pattern]) => paths.some(path => pattern.test(path))).map(([, what]) => what)
  ])
  const extensions = [...new Set(paths.flatMap(path => /\.[A-Za-z0-9]{1,12}$/.exec(path) ?? []))].sort()
  const files = extensions.length > 0 ? `files with the extensions ${shortList(extensions)}` : 'no files'
  const contents = kinds.size > 0 ? [...kinds].join(', and ') : files
  const hasGguf = extensions.some(extension => /^\.gguf$/i.test(extension))
  const lacks = hasGguf ? '' : ': neither GGUF files nor complete SafeTensors weights'
  return refusal(
    'unsupported_capability',
    `${id} has no model that llama.cpp can run${lacks}. It has ${contents}. ` +
      `Look for ${hasGguf ? 'another repository of the model' : 'a repository with GGUF in its name'}.`,
    { extensions }
  )
}
