import { commonStart } from '../system/collections.ts'
import { RESERVED_NAME } from '../system/usable-path.ts'

/** The purpose of a file in a model repository, if its name shows it. */
export type FileRole =
  | 'model'
  /** Adds images or sound to a model (`mmproj`). */
  | 'projector'
  /** Guesses ahead for another model (speculative decoding) and runs only with that model. */
  | 'draft'
  /** Data for quantization. */
  | 'imatrix'
  /** Changes another model (LoRA). */
  | 'adapter'
  /** Generates images or videos, which llama.cpp does not support. */
  | 'image'
  /** A piece of a file that was split at arbitrary bytes: it cannot be loaded before the pieces are joined. */
  | 'split'
  | 'other'

export interface GgufFileName {
  role: FileRole
  /** Quantization, such as `Q4_K_M`, `UD-Q4_K_XL`, `Q4_K_M-F16`. Taken from the folder if the name has none. */
  label: string | undefined
  /** The same for all quantizations of a model: in lower case, without folder, shard number and label. */
  base: string
  /** For a shard: `group` is the same for all shards of a model, `index` counts from 1. */
  shard?: { index: number; count: number; group: string }
}

const FLOAT = 'BF16|FP?16|FP?32'
const QUANTIZED =
  '(?:UD-)?(?:IQ[1-6]_(?:XXS|XS|NL(?:_XL)?|S|M|K(?:SS|S|L|T)?)(?:_R[48])?' +
  '|Q[1-8]_K(?:_(?:XXL|XL|XXS|XS|[SMLP]))?(?:_R[48])?|Q[1-8]_[01](?:_[48]_[48]|_L|_R[48])?' +
  '|TQ[12]_0|I2_S|MXFP4(?:_MOE)?|NVFP4)'
const LABEL = new RegExp(`(?<![A-Za-z0-9])(?:${QUANTIZED}|${FLOAT})(?![A-Za-z0-9])`, 'gi')
/** If embeddings and output have another type than the rest, it is another file. */
const COMPOSITE = new RegExp(`(?<![A-Za-z0-9])(?:(${QUANTIZED})[-._](${FLOAT}|Q[2-8])|(${FLOAT})[-._](Q[2-8]))$`, 'i')
/** `phi-3-q4.gguf`: matched only at the end, because names such as `Q3-30B` begin like this. */
const BARE = /(?<![A-Za-z0-9])Q[2-8]$/i
const RAW_SPLIT = /(\.gguf)(?:\.part-?\d+of\d+|-split-[a-z]|\.part-?[a-z]{1,2})$/i
/** Maximum shards of a model. The largest models have about 200. */
const MAX_SHARDS = 1000
const SHARD = /^(.*)-(\d{5})-of-(\d{5})\.(gguf|safetensors)$/i
/** Added by publishers of quantized models. Not part of the model's name. */
const MAKERS_MARK = /[-._](?:i1|imat|imatrix|pure|ud|gguf|\d+(?:\.\d+)?bpw)(?=[-._]|$)|(?<=MXFP4)_MOE\d+/gi
/** Prefixes by which llama.cpp recognizes draft models, and marks that publishers put elsewhere in the name. */
const DRAFT = /^mtp-|[-._]mtp$|(?:^|[-._])(?:eagle3|dflash|dspark|draft|drafter|speculator)(?:[-._]|$)/i
/** llama.cpp's naming convention ends the names of adapters like this, before or after the label. */
const ADAPTER = /(?:^|[-._])(?:lora|adapter)$/i
/** Parts of speech and image models, and vocabularies that llama.cpp tests with. */
const NO_MODEL =
  /^(?:ggml-vocab|tokenizer|audiodecoder|ae|t5xxl|clip[-_][lgh]|text[-_]encoder)(?:[-._]|$)|(?:^|[-._])(?:vocoder|wavtokenizer|vae|tokenizer-\d+hz)(?:[-._]|$)|[-._]vocab$/i
/** Image and video models whose names differ from those of language models. */
const IMAGE_MODEL =
  /^(?:flux[-._]?[12]|sd(?:xl|[-_]?3)|stable[-_]diffusion|hidream|(?:qwen|z)[-_]image|wan[-_]?2|hunyuan[-_]?video|ltx[-_]?v|cogvideo|aura[-_]?flow)/i
/** Files that a model uses beside its own, with their preferred precisions and how their names are recognized. */
const COMPANIONS = {
  projector: { labels: ['F16', 'BF16', 'F32', 'Q8_0'], name: /mmproj/i },
  // Other draft models are models of their own, which need their own part of each conversation.
  draft: { labels: ['Q8_0', 'F16', 'BF16'], name: /(?:^|[-._/])(?:mtp|eagle3|dflash|dspark)(?:[-._/]|$)/i }
}

const fileNameOf = (path: string) => path.slice(path.lastIndexOf('/') + 1)
const stemOf = (path: string) =>
  fileNameOf(path)
    .replace(RAW_SPLIT, '$1')
    .replace(/\.gguf$/i, '')
    .replace(/(?:-split)?-\d{5}-of-\d{5}$/, '')

function labelOfStem(stem: string): string | undefined {
  const composite = COMPOSITE.exec(stem)?.slice(1).filter(Boolean).join('-')
  const label = composite ?? stem.match(LABEL)?.at(-1) ?? BARE.exec(stem)?.[0]
  return label?.toUpperCase().replace(/FP(?=16|32)/g, 'F')
}

/** The quantization label in a file's own name, in capitals. The last one counts: `x-F16-to-Q8_0.gguf` is Q8_0. */
export const labelFromFileName = (fileName: string) => labelOfStem(stemOf(fileName))

/** A file's name without folder, extension, shard number and label: the same for all quantizations. */
export function baseOfFileName(fileName: string): string {
  return stemOf(fileName)
    .replace(MAKERS_MARK, '')
    .replace(COMPOSITE, '')
    .replace(LABEL, '')
    .replace(BARE, '')
    .replace(/[-._]+$/, '')
    .toLowerCase()
}

/** Parses the name of a file in a repository. @param path with forward slashes, including folders */
export function parseGgufFileName(path: string): GgufFileName {
  const role = roleOf(path)
  const folders = path.split('/').slice(0, -1).reverse()
  const label =
    labelFromFileName(path) ?? folders.map(folder => labelOfStem(folder.replace(/\.gguf$/i, ''))).find(Boolean)
  const name: GgufFileName = { role, label, base: baseOfFileName(path) }
  const [, stem, index, count] = SHARD.exec(path) ?? []
  if (Number(count) <= MAX_SHARDS && Number(index) > 0 && Number(index) <= Number(count)) {
    name.shard = { index: Number(index), count: Number(count), group: `${stem}-of-${count}` }
  }
  return name
}

function roleOf(path: string): FileRole {
  const fileName = fileNameOf(path)
  if (RAW_SPLIT.test(fileName)) return 'split'
  if (/imatrix.*\.(?:gguf_file|dat)$|\.imatrix$/i.test(fileName)) return 'imatrix'
  if (!/\.gguf$/i.test(fileName)) return 'other'
  if (/mmproj/i.test(fileName)) return 'projector'
  // `x-imatrix-Q4_K_M.gguf` was quantized with such data, `x-f16-imatrix.gguf` contains it.
  const [, afterImatrix] = /imatrix(.*)$/i.exec(fileName) ?? []
  if (afterImatrix !== undefined && labelFromFileName(afterImatrix) === undefined) return 'imatrix'
  const stem = stemOf(fileName)
  if (DRAFT.test(stem) || /(?:^|\/)mtp\//i.test(path)) return 'draft'
  if (NO_MODEL.test(stem)) return 'other'
  if (ADAPTER.test(stem) || ADAPTER.test(baseOfFileName(fileName))) return 'adapter'
  return IMAGE_MODEL.test(stem) ? 'image' : 'model'
}

/** Renames a GGUF file that is not a shard although its name looks like one. */
export const withoutShardNumber = (path: string) => path.replace(/-\d{5}-of-\d{5}(?=\.gguf$)/i, '')

/** All shards of the set that a file belongs to, in order; the file itself if it is not a shard. */
export function shardNames(path: string): string[] {
  const match = SHARD.exec(path)
  const count = Number(match?.[3] ?? 0)
  if (!match || count === 0 || count > MAX_SHARDS) return [path]
  const [, prefix, , total, extension] = match
  return Array.from(
    { length: count },
    (_, index) => `${prefix}-${String(index + 1).padStart(5, '0')}-of-${total}.${extension}`
  )
}

/** Maximum models and companions of a listing that are compared with each other. Real listings have a few dozen. */
const MAX_COMPARED = 500

/**
 * Finds the projector of a model, or the draft model that was made for it. Considers the files that share the most
 * folders with the model, and prefers a file with the model's name. If there is only this model, a file that names no
 * other model is enough. Chooses the best of several precisions. Returns undefined if the choice is ambiguous.
 * @param paths all files in the listing
 */
export function companionFinder(wanted: keyof typeof COMPANIONS, paths: readonly string[]) {
  const { labels, name } = COMPANIONS[wanted]
  if (!paths.some(path => name.test(path))) return () => undefined
  const files = paths.map(path => ({ path, role: roleOf(path), base: baseOfFileName(path), folders: foldersOf(path) }))
  const found = files.filter(({ role, path }) => role === wanted && name.test(path)).slice(0, MAX_COMPARED)
  const models = files.filter(({ role }) => role === 'model')
  const rank = ({ path }: { path: string }) => {
    const index = labels.indexOf(labelFromFileName(path) ?? '')
    return index === -1 ? labels.length : index
  }
  return (modelPath: string) => {
    const folders = foldersOf(modelPath)
    const shared = (file: { folders: string[] }) => commonStart(file.folders, folders)
    const depth = Math.max(...found.map(shared))
    const nearest = found.filter(file => shared(file) === depth)
    const base = baseOfFileName(modelPath)
    const named = nearest.filter(file => base !== '' && file.base.includes(base))
    const isAlone = () =>
      models.length <= MAX_COMPARED &&
      areRelated(new Set(models.filter(file => shared(file) >= depth).map(file => file.base)))
    const unnamed = nearest.filter(file => !namesAnother(file.base, base))
    const fitting = named.length > 0 ? named : unnamed.length > 0 && isAlone() ? unnamed : []
    if (new Set(fitting.map(file => file.base)).size > 1) return undefined
    return fitting.sort((a, b) => rank(a) - rank(b) || (a.path < b.path ? -1 : 1))[0]?.path
  }
}

const SIZE = /(?<![a-z0-9])\d+(?:\.\d+)?b(?![a-z0-9])/g

/** Whether a companion's name has words of which none is in the model's name, or another size. */
function namesAnother(companion: string, model: string): boolean {
  const [own, other] = [companion.match(SIZE)?.[0], model.match(SIZE)?.[0]]
  if (own && other && own !== other) return true
  const squashed = model.replace(/[^a-z0-9]/g, '')
  const words = companion
    .split(/[^a-z0-9]+/)
    .filter(word => word.length > 1 && !/^(?:mmproj|mtp|eagle3|dflash|dspark|draft|model|ggml|gguf)$/.test(word))
  return squashed !== '' && words.length > 0 && !words.some(word => squashed.includes(word))
}

/** Whether these bases belong to one model whose quantizations have unusual names: their names are mostly the same. */
function areRelated(bases: ReadonlySet<string>): boolean {
  if (bases.size <= 1) return true
  const sorted = [...bases].sort()
  // The common prefix of the first and the last sorted name is common to all.
  const longest = Math.max(...sorted.map(base => base.length))
  return commonStart(sorted[0]!, sorted.at(-1)!) > 0.7 * longest
}

const foldersOf = (path: string) => path.split('/').slice(0, -1)

/** A file's name in the store, without characters that file systems refuse or flags read as a list. */
export function storedName(name: string): string {
  const plain = name
    .replace(/[^A-Za-z0-9._+-]/g, '_')
    .replace(/\.{2,}/g, '.')
    .replace(/^[.-]/, '_')
    .replace(/\.$/, '_')
  return RESERVED_NAME.test(plain) ? `_${plain}` : plain
}

/** Architectures of GGUF files for image and video generation, which llama.cpp cannot load. */
const IMAGE_MODELS = new Set(
  'flux sd1 sdxl sd3 aura hidream cosmos ltxv hyvid wan lumina2 qwen_image z_image chroma kandinsky5 pig'.split(' ')
)
const DRAFTS = new Set('eagle3 dflash gemma4-assistant'.split(' '))
/** Converts the output of a speech model to sound. */
const VOCODERS = new Set(['wavtokenizer-dec'])

export function ggufPurpose(keys: Record<string, unknown>): Exclude<FileRole, 'split'> {
  const { 'general.type': type, 'general.architecture': architecture } = keys
  if (type === 'adapter' || type === 'imatrix') return type
  if (type === 'mmproj' || architecture === 'clip') return 'projector'
  if (typeof architecture !== 'string') return 'model'
  if (IMAGE_MODELS.has(architecture)) return 'image'
  if (DRAFTS.has(architecture)) return 'draft'
  return VOCODERS.has(architecture) ? 'other' : 'model'
}

/** Identifies a model by its names, size and shape. Undefined if the header has no names. */
export function ggufIdentity(keys: Record<string, unknown>): string | undefined {
  const { 'general.architecture': architecture, 'general.name': name, 'general.basename': basename } = keys
  if (typeof architecture !== 'string' || !(name || basename)) return undefined
  const general = ['name', 'basename', 'finetune', 'size_label', 'version'].map(key => keys[`general.${key}`])
  const shape = ['block_count', 'embedding_length', 'feed_forward_length', 'expert_count', 'context_length'].map(
    key => keys[`${architecture}.${key}`]
  )
  return JSON.stringify([architecture, ...general, ...shape])
}
