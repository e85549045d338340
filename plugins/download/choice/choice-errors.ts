import type { HubFile } from '../../../core/contracts/downloads.ts'
import { CorralError } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { fileNameOf, listed } from './choice.ts'
import { isForeign, quality } from './default-quantization.ts'
import type { GgufCandidate, GgufOffer } from './gguf-models.ts'

const refuse = (
  code: 'unsupported_capability' | 'repo_not_found' | 'invalid_request',
  message: string,
  details?: object
) => new CorralError(code, message, { param: 'model', details: details as Record<string, unknown> | undefined })

const withSize = ({ label, size }: { label: string; size: number }) =>
  size > 0 ? `${label} (${formatBytes(size)})` : label

/** Labels with their sizes, the best first; those that nobody knows last. */
export function choicesOf(candidates: readonly GgufCandidate[]): { label: string; size: number }[] {
  return [...candidates]
    .sort((a, b) => rankOf(b) - rankOf(a) || (a.path < b.path ? -1 : 1))
    .map(({ label, size }) => ({ label, size }))
}

const rankOf = ({ quantization }: GgufCandidate) => (quantization ? quality(quantization) : -2)

/** What was asked for is not there. */
export function unknownVariant(
  id: string,
  wanted: string,
  choices: { label: string; size: number }[],
  incomplete: GgufOffer['incomplete']
): CorralError {
  const broken = incomplete.filter(({ label, path }) =>
    [label, path, fileNameOf(path)].some(name => name?.toLowerCase() === wanted.toLowerCase())
  )
  if (broken.length > 0) return incompleteSet(id, broken)
  const example = choices[0] ? ` Pull one of these, such as ${id}:${choices[0].label}.` : ''
  return refuse('repo_not_found', `${id} has no ${wanted}. It has ${listed(choices.map(withSize))}.${example}`, {
    choices
  })
}

/** Several models answer to what was asked for. */
export function ambiguous(id: string, candidates: readonly GgufCandidate[], asked: string | undefined): CorralError {
  const choices = choicesOf(candidates)
  const what = asked ? `${candidates.length} models that ${asked} may mean` : `${candidates.length} models`
  return refuse(
    'invalid_request',
    `${id} has ${what}: ${listed(choices.map(withSize))}. Name one after a colon, as in ${id}:${choices[0]!.label}.`,
    { choices }
  )
}

/** A set of shards that lacks some. */
function incompleteSet(id: string, sets: readonly { path: string; missing: string[] }[]): CorralError {
  return refuse('unsupported_capability', `${id} is not usable: ${sets.map(incompleteText).join('; ')}.`)
}

export const incompleteText = ({ path, missing }: { path: string; missing: string[] }) =>
  `${path} is a part of a set that lacks ${listed(missing)}`

/** A file that was named but is no model. */
export function notAModel(id: string, path: string, { roles, incomplete }: GgufOffer): CorralError {
  const broken = incomplete.filter(set => set.path === path || (set.missing.length > 0 && sameSet(set.path, path)))
  if (broken.length > 0) return incompleteSet(id, broken)
  const why = {
    model: 'is no model that can be had by itself',
    projector: 'is a projector, which a model uses to see or hear; it is fetched along with its model',
    draft: 'is a draft, which runs only beside its main model',
    imatrix: 'holds data for quantization (an importance matrix), no model',
    split: 'is a piece of a file that was cut, which llama.cpp does not load before the pieces are joined',
    other: 'is no model file'
  }[roles.get(path) ?? 'other']
  return refuse('unsupported_capability', `${path} of ${id} ${why}. Name a GGUF model file, or leave the name out.`)
}

const sameSet = (a: string, b: string) => a.replace(/\d{5}-of-/, '') === b.replace(/\d{5}-of-/, '')

/** What else a repository may hold, and what people can do about it. */
const KINDS: [is: (path: string, id: string) => boolean, what: string][] = [
  [path => /(^|\/)adapter_(?:config\.json|model\.)/.test(path), 'a LoRA adapter, which changes a base model'],
  [path => path === 'model_index.json', 'a diffusion pipeline, which makes images or sound'],
  [path => fileNameOf(path).startsWith('consolidated'), "weights in a layout of their maker's own (consolidated)"],
  [path => /\.onnx(?:_data)?$/.test(path), 'ONNX files'],
  [path => /\.(?:bin|pt|pth|ckpt)$/.test(path), 'pickled PyTorch files, which may run any code when they are opened'],
  [path => /\.(?:h5|msgpack|tflite|ot)$/.test(path), 'weights of TensorFlow, Flax or Rust'],
  [path => /\.(?:mlmodel|mlpackage)(?:\/|$)/.test(path), 'Core ML files'],
  [path => path.endsWith('.npz'), 'MLX files, which run on Apple machines only'],
  [path => path.endsWith('.safetensors'), 'SafeTensors files that make no language model by themselves']
]

/** Nothing in the repository can be run; says what there is instead. */
export function nothingUsable(
  id: string,
  files: readonly HubFile[],
  { roles, incomplete, candidates }: GgufOffer
): CorralError {
  const foreign = candidates.filter(({ quantization }) => quantization && isForeign(quantization))
  if (foreign.length > 0) {
    return refuse(
      'unsupported_capability',
      `${id} has only quantizations that llama.cpp does not load (any longer): ` +
        `${listed(foreign.map(({ label }) => label))}. Look for another repository of this model.`
    )
  }
  if (incomplete.length > 0) return incompleteSet(id, incomplete)
  const paths = files.map(file => file.path)
  const has = (role: string) => [...roles.values()].some(found => found === role)
  const kinds = [
    ...(has('split') ? ['pieces of GGUF files that were cut and have to be joined first'] : []),
    ...(has('draft') ? ['drafts that run beside a main model'] : []),
    ...(has('projector') ? ['a projector without its model'] : []),
    ...(has('imatrix') ? ['data for quantization (an importance matrix)'] : []),
    ...KINDS.filter(([is]) => paths.some(path => is(path, id))).map(([, what]) => what)
  ]
  const extensions = [...new Set(paths.map(path => /\.[A-Za-z0-9]{1,12}$/.exec(path)?.[0] ?? ''))]
    .filter(Boolean)
    .sort()
  const found =
    kinds.length > 0
      ? `It holds ${kinds.join(', and ')}.`
      : `It holds ${extensions.length > 0 ? `files of the kinds ${listed(extensions)}` : 'no files'}.`
  return refuse(
    'unsupported_capability',
    `${id} has no model that llama.cpp can run: neither GGUF files nor whole SafeTensors weights. ${found} ` +
      'Look for a repository with GGUF in its name.',
    { extensions }
  )
}

/** SafeTensors weights that are quantized in a way that the converter cannot read. */
export function unreadableWeights(id: string, what: string): CorralError {
  return refuse('unsupported_capability', `${id} ${what}. Look for a repository with GGUF in its name.`)
}

/** Quantizations that a repository of SafeTensors weights cannot give. */
export function onlySafetensors(id: string, wanted: string, label: string | undefined): CorralError {
  return refuse(
    'repo_not_found',
    `${id} has no ${wanted}: it has SafeTensors weights${label ? ` in ${label}` : ''} only. Pull ${id}, then load it with the option ` +
      `"dtype": "${wanted.toLowerCase()}", or make it ahead with: corral convert ${id} --dtype ${wanted.toLowerCase()}`
  )
}
