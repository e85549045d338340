import type { FileHandle } from 'node:fs/promises'
import type { AdoptedFile } from '../../../core/contracts/adopted-files.ts'
import type { Capability, ModelMetadata, StoredFormat } from '../../../core/contracts/models.ts'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import {
  foreignStart,
  type GgufFile,
  listLength,
  readGguf,
  readGgufHeader,
  START_SIZE
} from '../../../core/models/gguf-file.ts'
import { type FileRole, ggufPurpose, labelFromFileName } from '../../../core/models/gguf-file-name.ts'
import { safetensorsLabel } from '../../../core/models/model-folder.ts'
import { templateCapabilities } from '../../../core/models/template-code.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { printable } from '../../../core/system/printable.ts'
import { type FileIdentity, readOpened, withRegularFile } from '../../../core/system/regular-file.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import NAMES from './llama-cpp-names.json' with { type: 'json' }
import { readRecognizer, readVoice } from './speech-metadata.ts'

/** A file to take into the store. `source` has no symbolic links. */
export type SourceFile = AdoptedFile & FileIdentity & { size: number }

/** Opens a file that was found before, and fails if another file has replaced it. */
const reading = <T>(found: Found, read: (file: FileHandle) => Promise<T>) => withRegularFile(found.source, read, found)
type Found = FileIdentity & { source: string }

/** A model on disk whose headers show that it is complete. */
export interface ModelSource {
  format: StoredFormat
  label: string
  files: SourceFile[]
  metadata: ModelMetadata
}

/** Files that describe a model are read whole. No real one is this large. */
const MAX_DESCRIPTION_BYTES = 64_000_000

export const refuseSource = (message: string, cause?: unknown) =>
  new CorralError('invalid_request', message, { param: 'path', cause })

/** Explains why the system refuses to read a file. Other errors are returned unchanged. */
export function explainReadError(path: string, error: unknown): unknown {
  if (isSystemError(error, 'ENOENT', 'ENOTDIR')) {
    return refuseSource(`There is no ${error.path ?? path} on the machine corral runs on. Check the path.`, error)
  }
  if (isSystemError(error, 'EACCES', 'EPERM')) {
    return refuseSource(
      `corral may not read ${error.path ?? path}. Let its user read the file and enter its folders.`,
      error
    )
  }
  if (isSystemError(error, 'ELOOP', 'EINVAL', 'ENAMETOOLONG', 'EIO')) {
    return refuseSource(`${error.path ?? path} cannot be read: ${errorMessage(error)}.`, error)
  }
  return error
}

/** Reads the headers of a complete model's files. @param files model files first, in the order of their shards */
export function readModelFiles(format: StoredFormat, files: SourceFile[], named: string): Promise<ModelMetadata> {
  if (format === 'gguf') return readGgufModel(files, named)
  if (format === 'safetensors') return readSafetensorsModel(files)
  if (format === 'checkpoint') return readCheckpoint(files[0]!)
  const [model, description] = files as [SourceFile, ...SourceFile[]]
  return reading(model, async opened => {
    if (format === 'ggml') return await readRecognizer(model.source, opened, named)
    return await readVoice(model.source, opened, named, description && (await readJson(description)))
  })
}

async function readGgufModel(files: SourceFile[], named: string): Promise<ModelMetadata> {
  const shards: GgufFile[] = []
  let projector: GgufFile | undefined
  for (const file of files) {
    if (file.role === 'other') continue
    const gguf = await reading(file, opened => readGguf(file.source, opened, FILL_IN_TOKENS))
    const purpose = ggufPurpose(gguf.metadata)
    if (file.role === 'draft') continue
    if (file.role === 'projector') {
      if (purpose !== 'projector')
        throw refuseSource(`${file.source} is named like a projector but is not one. Rename it.`)
      projector = gguf
    } else {
      const refusal = NOT_A_MODEL[purpose]
      if (refusal) throw refuseSource(refusal(file.source))
      shards.push(gguf)
    }
  }
  const { source } = files[0]!
  if (shards.every(shard => shard.tensorCount === 0)) {
    throw refuseSource(`${source} has no weights (only a vocabulary). Name a file with the whole model.`)
  }
  checkShards(source, shards)
  return ggufMetadata(shards, ggufLabel(named, shards[0]!.metadata['general.file_type']), projector)
}

/** Draft models and parts of speech models are missing here: models refer to them by name. */
const NOT_A_MODEL: Partial<Record<FileRole, (path: string) => string>> = {
  projector: (path: string) =>
    `${path} is a projector, which a model uses to see or hear. Import the model's own file; a projector beside it is included.`,
  adapter: (path: string) => `${path} is a LoRA adapter, not a whole model. Merge it into its base model first.`,
  imatrix: (path: string) => `${path} has data for quantization (an importance matrix), not a model.`,
  image: (path: string) =>
    `${path} is a model that makes images or videos, which llama.cpp cannot run. Use a program for such models.`
}

function checkShards(path: string, shards: GgufFile[]): void {
  const { metadata } = shards[0]!
  const count = Number(metadata['split.count'] ?? 1)
  if (count > 1 && shards.length !== count) {
    throw refuseSource(
      `${path} is one of ${count} shards, but its name is not of the form <name>-00001-of-${String(count).padStart(5, '0')}.gguf, ` +
        'which is needed to find the others. Give all shards their original names.'
    )
  }
  const tensors = shards.reduce((sum, shard) => sum + shard.tensorCount, 0)
  const expected = Number(metadata['split.tensors.count'] ?? tensors)
  if (expected !== tensors) {
    throw refuseSource(
      `The shards of ${path} do not belong together: they have ${tensors} tensors, the first one declares ${expected}. ` +
        'Download them again.'
    )
  }
}

async function readSafetensorsModel(files: SourceFile[]): Promise<ModelMetadata> {
  const weights = []
  for (const file of files) {
    if (file.role === 'model') weights.push(await reading(file, opened => readSafetensors(file.source, opened)))
  }
  const read = async <T>(path: string, how: (found: Found) => Promise<T>) => {
    const found = files.find(file => file.path === path)
    return found && (await how(found))
  }
  const config = await read('config.json', readJson)
  if (!config) {
    throw refuseSource(`The SafeTensors model of ${files[0]!.source} has no config.json. Get the model's whole folder.`)
  }
  const modules = await read('modules.json', readJson)
  // The sentence-transformers module that pools token embeddings into one.
  const pooling = Object.values(modules ?? {})
    .filter(isObject)
    .find(({ type }) => /Pooling$/.test(String(type)))
  const description = {
    config,
    tokenizerConfig: await read('tokenizer_config.json', readJson),
    chatTemplate: await read('chat_template.jinja', readDescription),
    isSentenceTransformer: modules !== undefined,
    pooling: pooling && (await read(`${pooling.path}/config.json`, readJson)),
    readme: await read('README.md', readDescription)
  }
  return safetensorsMetadata(description, weights)
}

/** The beginning of the names of tensors, as in the original files of Stable Diffusion. */
const IMAGE_PART = 'model.diffusion_model'
const OTHER_PARTS = {
  'text encoder': /^(?:cond_stage_model|conditioner|text_encoders|te)\b/,
  decoder: /^(?:first_stage_model|vae|tae)\b/
}

/** Whether a SafeTensors file has an image model, or a part of one. @throws CorralError if it is damaged */
export async function isImageModel(found: Found): Promise<boolean> {
  const { parts } = await reading(found, opened => readSafetensors(found.source, opened))
  return parts.has(IMAGE_PART)
}

async function readCheckpoint(found: SourceFile): Promise<ModelMetadata> {
  const { parameters, dtype, parts } = await reading(found, opened => readSafetensors(found.source, opened))
  const missing = Object.entries(OTHER_PARTS).filter(([, begin]) => ![...parts].some(part => begin.test(part)))
  if (!parts.has(IMAGE_PART)) throw refuseSource(`${found.source} is not an image model. Name another file.`)
  if (missing.length > 0) {
    const names = missing.map(([name]) => name).join(' and ')
    throw refuseSource(
      `${found.source} has an image model without its ${names}. Import a file with the whole model, which interfaces such as ComfyUI call a checkpoint.`
    )
  }
  return {
    architecture: 'diffusion',
    parameters,
    quantization: safetensorsLabel(undefined, dtype),
    capabilities: ['draw', 'edit_image'],
    info: { 'general.architecture': 'diffusion', 'general.parameter_count': parameters }
  }
}

export const readHeader = (found: Found) => reading(found, opened => readGgufHeader(found.source, opened))

async function readJson(found: Found): Promise<Record<string, unknown>> {
  const path = found.source
  const text = await readDescription(found)
  const { value, fault } = await parseUntrustedJson(text, { python: true })
  if (fault !== undefined) {
    const foreign = foreignStart(path, Buffer.from(text.slice(0, START_SIZE)))
    throw refuseSource(foreign ?? `${path} is damaged: ${fault}. Download it again.`)
  }
  if (typeof value === 'object' && value !== null) return value as Record<string, unknown>
  throw refuseSource(`${path} is damaged: it is not a JSON object. Download it again.`)
}

export async function readDescription(found: Found): Promise<string> {
  return await reading(found, async file => {
    const { size } = await file.stat()
    if (size > MAX_DESCRIPTION_BYTES) {
      throw refuseSource(`${found.source} is too large (${size} bytes) to describe a model.`)
    }
    return (await readOpened(file, size)).toString('utf8')
  })
}

/** llama.cpp's encoder-only architectures, which give embeddings but never text. */
const ENCODERS = new Set(NAMES.encoders)
/** Architectures that llama.cpp loads but llama-server cannot answer with, such as encoder-decoders and drafts. */
const NOT_SERVED = new Set(NAMES.notServed)
/** Vocabulary entries that llama.cpp recognizes as the start token of a fill-in-the-middle prompt. */
export const FILL_IN_TOKENS = NAMES.fillInTokens

/** llama.cpp's LLAMA_POOLING_TYPE_NONE and _RANK. */
const POOLING_NONE = 0
const POOLING_RANK = 4

/** With more labels, a classifier sorts texts into classes instead of scoring them. */
const MAX_RERANKER_LABELS = 2

/** Hugging Face's tags of models published for embeddings, and tags that show a model also generates text. */
const EMBEDDING_TAGS = new Set(['feature-extraction', 'sentence-similarity', 'sentence-transformers'])
const TEXT_TAGS = new Set(['text-generation', 'text2text-generation', 'conversational', 'image-text-to-text'])

export interface CapabilityFacts {
  architecture?: string
  poolingType?: number
  /** False if tokens also attend to later tokens. Such a model cannot generate text. */
  isCausal?: boolean
  /** The model has a classification layer, with this many labels (0 if it names none). */
  classifier?: { labels: number }
  tags?: readonly unknown[]
  chatTemplate?: string
  /** The metadata names a fill-in-the-middle token, or the vocabulary has one of `FILL_IN_TOKENS`. */
  hasFillInToken: boolean
  projector?: { vision: boolean; audio: boolean }
}

export function getCapabilities(facts: CapabilityFacts): Capability[] {
  const { architecture = '', classifier, tags = [] } = facts
  if (NOT_SERVED.has(architecture)) return []
  const pooling = facts.poolingType ?? POOLING_NONE
  // Without the layer, llama-server would return an arbitrary number of the embedding as the score.
  if (pooling === POOLING_RANK && classifier) return ['rerank']
  if (pooling !== POOLING_NONE && pooling !== POOLING_RANK) return ['embedding']
  if (classifier) return classifier.labels <= MAX_RERANKER_LABELS ? ['rerank'] : []
  if (ENCODERS.has(architecture) || facts.isCausal === false) return ['embedding']
  // Decoders converted before converters wrote the pooling type.
  if (tags.some(tag => EMBEDDING_TAGS.has(tag as string)) && !tags.some(tag => TEXT_TAGS.has(tag as string))) {
    return ['embedding']
  }
  const capabilities: Capability[] = ['completion']
  capabilities.push(...templateCapabilities(facts.chatTemplate))
  if (facts.projector?.vision) capabilities.push('vision')
  if (facts.projector?.audio) capabilities.push('audio')
  if (facts.hasFillInToken) capabilities.push('insert')
  return capabilities
}

/** Limits on the parts of a file's header that a manifest stores. */
const MAX_INFO_ENTRIES = 2_000
const MAX_INFO_STRING = 1_024
const MAX_TEMPLATE = 1_000_000

const nonEmptyString = (value: unknown) => (typeof value === 'string' && value !== '' ? value : undefined)
const number = (value: unknown) => (typeof value === 'number' && Number.isFinite(value) ? value : undefined)
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])

/** Derives a GGUF model's metadata from the headers of its shards. @param quantization from the files' names */
export function ggufMetadata(shards: GgufFile[], quantization: string, projector?: GgufFile): ModelMetadata {
  const keys = shards[0]?.metadata ?? {}
  const architecture = nonEmptyString(keys['general.architecture'])
  const ofArchitecture = (key: string) => number(keys[`${architecture}.${key}`])
  const parameters = shards.reduce((sum, shard) => sum + shard.parameters, 0)
  const template = nonEmptyString(keys['tokenizer.chat_template'])
  const chatTemplate = template && template.length <= MAX_TEMPLATE ? template : undefined
  // llama.cpp uses this template, if present, for requests with tools.
  const toolTemplate = nonEmptyString(keys['tokenizer.chat_template.tool_use'])?.slice(0, MAX_TEMPLATE)
  return {
    architecture,
    contextLength: ofArchitecture('context_length'),
    embeddingLength: ofArchitecture('embedding_length'),
    parameters,
    quantization,
    chatTemplate,
    capabilities: getCapabilities({
      architecture,
      poolingType: ofArchitecture('pooling_type'),
      isCausal: keys[`${architecture}.attention.causal`] !== false,
      classifier: shards.some(shard => shard.classifies)
        ? { labels: listLength(keys[`${architecture}.classifier.output_labels`]) ?? 0 }
        : undefined,
      tags: list(keys['general.tags']),
      chatTemplate: [chatTemplate, toolTemplate].join(''),
      hasFillInToken:
        keys['tokenizer.ggml.fim_pre_token_id'] !== undefined ||
        keys['tokenizer.ggml.prefix_token_id'] !== undefined ||
        shards[0]?.hasToken === true,
      projector: projector && projectorFacts(projector)
    }),
    // Ollama's clients look for the count under this key, which converters do not write.
    info: { ...scalars(keys), 'general.parameter_count': parameters }
  }
}

/** The keys with a single value: no arrays, and no strings as long as a chat template. */
function scalars(keys: Record<string, unknown>): ModelMetadata['info'] {
  const entries: [string, string | number | boolean | null][] = []
  for (const [key, value] of Object.entries(keys)) {
    if (key.startsWith('tokenizer.chat_template')) continue
    if (typeof value === 'boolean') entries.push([key, value])
    else if (typeof value === 'string' && value.length <= MAX_INFO_STRING) entries.push([key, value])
    else if (typeof value === 'number') entries.push([key, number(value) ?? null])
    if (entries.length === MAX_INFO_ENTRIES) break
  }
  return Object.fromEntries(entries)
}

function projectorFacts({ metadata }: GgufFile): { vision: boolean; audio: boolean } {
  const has = (encoder: string) => metadata[`clip.has_${encoder}_encoder`] === true
  const audio = has('audio')
  // Files from before audio support do not state their modality.
  return { audio, vision: has('vision') || !(audio || has('gen_audio')) }
}

/** Returns the name of a GGUF's `general.file_type` (enum llama_ftype). Bit 1024 marks a guess and is ignored. */
export const labelFromFileType = (fileType: unknown): string | undefined =>
  typeof fileType === 'number' ? (NAMES.fileTypes[fileType & ~1024] ?? undefined) : undefined

/** The file name takes precedence: the header does not know mixtures like `UD-Q4_K_XL`. */
export const ggufLabel = (fileName: string, fileType: unknown): string =>
  labelFromFileName(fileName) ?? labelFromFileType(fileType) ?? 'GGUF'

/** The folder's descriptive files. All but config.json are optional. */
interface ModelDescription {
  config: Fields
  tokenizerConfig?: Fields
  chatTemplate?: string
  /** The folder has the layout of sentence-transformers (modules.json). */
  isSentenceTransformer: boolean
  /** The config.json of the sentence-transformers pooling module. */
  pooling?: Fields
  readme?: string
}

type Fields = Record<string, unknown>
const fields = (value: unknown): Fields => (value && typeof value === 'object' ? (value as Fields) : {})

/** Derives a SafeTensors model's metadata from its folder's descriptive files and the headers of its weights. */
export function safetensorsMetadata(
  description: ModelDescription,
  weights: Omit<SafetensorsFile, 'parts'>[]
): ModelMetadata {
  const { config } = description
  // Multimodal models have a separate section for the language model.
  const language = { ...config, ...fields(config.text_config) }
  const architecture = nonEmptyString(config.model_type) ?? nonEmptyString(fields(config.text_config).model_type)
  const parameters = weights.reduce((sum, file) => sum + file.parameters, 0)
  const chatTemplate = description.chatTemplate ?? chatTemplateFrom(description.tokenizerConfig)
  const info: ModelMetadata['info'] = { 'general.parameter_count': parameters }
  if (architecture) info['general.architecture'] = architecture
  // GGUF's names for the fields of config.json, so that readers of `info` need only one vocabulary.
  for (const [field, name] of Object.entries(NAMES.info)) {
    const value = number(language[field])
    if (value !== undefined) info[`${architecture ?? 'model'}.${name}`] = value
  }
  const pooling = poolingType(description.pooling)
  if (pooling !== undefined) info[`${architecture ?? 'model'}.pooling_type`] = pooling
  return {
    architecture,
    contextLength: number(language.max_position_embeddings),
    embeddingLength: number(language.hidden_size),
    parameters,
    quantization: safetensorsLabel(config, weights[0]?.dtype),
    chatTemplate,
    capabilities: capabilities(
      description,
      [chatTemplate, chatTemplateFrom(description.tokenizerConfig, 'tool_use')].join('')
    ),
    info
  }
}

/** tokenizer_config.json has one template, or a list of named templates in which `default` is for chats. */
function chatTemplateFrom(tokenizerConfig: Fields | undefined, wanted = 'default'): string | undefined {
  const template = tokenizerConfig?.chat_template
  if (!Array.isArray(template)) return nonEmptyString(template)
  const named = template.map(fields)
  return nonEmptyString((named.find(({ name }) => name === wanted) ?? named[0])?.template)
}

/** The pooling type that llama.cpp's converter writes for a sentence-transformers pooling module. */
function poolingType(pooling: Fields | undefined): number | undefined {
  if (!pooling) return undefined
  if (pooling.pooling_mode_mean_tokens === true || pooling.pooling_mode === 'mean') return 1
  if (pooling.pooling_mode_cls_token === true || pooling.pooling_mode === 'cls') return 2
  if (pooling.pooling_mode_lasttoken === true || pooling.pooling_mode === 'lasttoken') return 3
  return undefined
}

/** Encoder-only classes of transformers, and classes without the layer that generates text. */
const ENCODER_CLASS =
  /^((Bert|Camembert|DistilBert|Roberta|XLMRoberta|NomicBert|ModernBert|JinaBert|EuroBert|T5Encoder|Llama|Mistral|Qwen2|Qwen3|Lfm2)(Model|ForMaskedLM)|JinaEmbeddings\w+|NeoBERT\w*|\w+BidirectionalModel|Gemma3TextModel)$/
/** Models that llama-server cannot answer with: see `getCapabilities`. */
const NOT_SERVED_CLASS = /^(U?MT5|T5(?!Encoder)|Dream|LLaDA|RND1|PocketTTS|WavTokenizer|Qwen3TTS)|(Draft|Speculator)/
/** Like llama.cpp's converter, recognize Qwen3 rerankers by their page, because no file shows it. */
const QWEN3_RERANKER = /# qwen3-(vl-)?reranker/i

function capabilities(
  { config, isSentenceTransformer, readme = '' }: ModelDescription,
  chatTemplate?: string
): Capability[] {
  const classes = Array.isArray(config.architectures) ? config.architectures.map(String) : []
  if (classes.some(name => name.endsWith('ForSequenceClassification'))) {
    return Object.keys(fields(config.id2label)).length <= MAX_RERANKER_LABELS ? ['rerank'] : []
  }
  if (classes.some(name => name.startsWith('Qwen3')) && QWEN3_RERANKER.test(readme)) return ['rerank']
  if (isSentenceTransformer || classes.some(name => ENCODER_CLASS.test(name))) return ['embedding']
  if (classes.some(name => NOT_SERVED_CLASS.test(name))) return []
  return ['completion', ...templateCapabilities(chatTemplate), ...senses(config)]
}

/** Encoders for images and audio have their own sections. Models that also speak nest them one level deeper. */
function senses(config: Fields): Capability[] {
  const has = (section: string) =>
    [config, fields(config.thinker_config)].some(level => Object.keys(fields(level[section])).length > 0)
  return [...(has('vision_config') ? (['vision'] as const) : []), ...(has('audio_config') ? (['audio'] as const) : [])]
}

interface SafetensorsFile {
  parameters: number
  /** Type of most of the weights, for example `BF16`. */
  dtype: string | undefined
  /** The first two components of the tensors' names. */
  parts: Set<string>
}

const MAX_HEADER_BYTES = 100_000_000

/** Reads an open SafeTensors file's header, and checks that the file is complete. @throws CorralError */
export async function readSafetensors(path: string, file: FileHandle): Promise<SafetensorsFile> {
  const refuse = (message: string) => new CorralError('invalid_request', message, { param: 'path' })
  const damaged = (what: string) => refuse(`${path} ${what}. Download it again, then repeat the import.`)
  const { size } = await file.stat()
  const start = await readOpened(file, Math.min(size, START_SIZE))
  if (start.length < 8) throw damaged(`is truncated: it has only ${size} bytes`)
  const length = Number(start.readBigUInt64LE())
  if (length > MAX_HEADER_BYTES) {
    const foreign = foreignStart(path, start)
    if (foreign) throw refuse(foreign)
    throw damaged('is not a SafeTensors file: the length of its header is impossible')
  }
  if (8 + length > size) throw damaged(`is truncated: its header has ${length} bytes, the file ${size}`)
  const header = await readOpened(file, 8 + length)
  const { value: tensors, fault } = await parseUntrustedJson(header.toString('utf8', 8))
  if (fault !== undefined) throw damaged(`has a header that cannot be used: ${fault}`)
  if (!isObject(tensors)) throw damaged('is not a SafeTensors file: its header is not a JSON object')
  const summary = summarizeTensors(tensors)
  if ('wrong' in summary) throw damaged(`is damaged: its header describes the tensor ${summary.wrong} wrongly`)
  const { end, ...facts } = summary
  if (8 + length + end > size) {
    throw damaged(`is truncated: its tensors need ${8 + length + end} bytes, the file has ${size}`)
  }
  return facts
}

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0

/** Sums up the weights of all tensors and finds the end of the last one, or names an invalid tensor. */
function summarizeTensors(tensors: Record<string, unknown>): (SafetensorsFile & { end: number }) | { wrong: string } {
  const weights = new Map<string, number>()
  const parts = new Set<string>()
  let end = 0
  for (const [name, tensor] of Object.entries(tensors)) {
    if (name === '__metadata__') continue
    const { dtype, shape, data_offsets: offsets } = fields(tensor)
    const areCounts = Array.isArray(shape) && shape.every(isCount) && Array.isArray(offsets) && offsets.every(isCount)
    const count = areCounts ? shape.reduce((product: number, length: number) => product * length, 1) : Number.NaN
    const [from, to] = areCounts ? offsets : []
    if (typeof dtype !== 'string' || !isCount(count) || from === undefined || to === undefined || from > to) {
      return { wrong: JSON.stringify(printable(name, 80)) }
    }
    weights.set(dtype, (weights.get(dtype) ?? 0) + count)
    parts.add(name.split('.', 2).join('.'))
    end = Math.max(end, to)
  }
  const byCount = [...weights].sort((a, b) => b[1] - a[1])
  return { parameters: byCount.reduce((sum, [, count]) => sum + count, 0), dtype: byCount[0]?.[0], parts, end }
}
