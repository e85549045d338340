import type { FileHandle } from 'node:fs/promises'
import type { Capability, ModelMetadata } from '../../../core/contracts/models.ts'
import { CorralError } from '../../../core/errors.ts'
import { foreignStart, START_SIZE } from '../../../core/models/foreign-start.ts'
import { dtypeLabel } from '../../../core/models/safetensors-layout.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { printable } from '../../../core/system/printable.ts'
import { readOpened } from '../../../core/system/regular-file.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import { MAX_RERANKER_LABELS, templateCapabilities } from './capabilities.ts'
import { nonEmptyString, number } from './gguf-metadata.ts'

/** The folder's descriptive files. All but config.json are optional. */
export interface ModelDescription {
  config: Fields
  tokenizerConfig?: Fields
  /** chat_template.jinja */
  chatTemplate?: string
  /** The folder has the layout of sentence-transformers (modules.json). */
  isSentenceTransformer: boolean
  /** The config.json of the sentence-transformers pooling module. */
  pooling?: Fields
  readme?: string
}

type Fields = Record<string, unknown>
const fields = (value: unknown): Fields => (value && typeof value === 'object' ? (value as Fields) : {})

/** GGUF's names for the fields of config.json, so that readers of `info` need only one vocabulary. */
const INFO_NAMES: Record<string, string> = {
  max_position_embeddings: 'context_length',
  hidden_size: 'embedding_length',
  num_hidden_layers: 'block_count',
  intermediate_size: 'feed_forward_length',
  num_attention_heads: 'attention.head_count',
  num_key_value_heads: 'attention.head_count_kv',
  vocab_size: 'vocab_size',
  rope_theta: 'rope.freq_base'
}

/** Derives a SafeTensors model's metadata from its folder's descriptive files and the headers of its weights. */
export function safetensorsMetadata(description: ModelDescription, weights: SafetensorsFile[]): ModelMetadata {
  const { config } = description
  // Multimodal models have a separate section for the language model.
  const language = { ...config, ...fields(config.text_config) }
  const architecture = nonEmptyString(config.model_type) ?? nonEmptyString(fields(config.text_config).model_type)
  const parameters = weights.reduce((sum, file) => sum + file.parameters, 0)
  const chatTemplate = description.chatTemplate ?? chatTemplateFrom(description.tokenizerConfig)
  const info: ModelMetadata['info'] = { 'general.parameter_count': parameters }
  if (architecture) info['general.architecture'] = architecture
  for (const [field, name] of Object.entries(INFO_NAMES)) {
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
    quantization: dtypeLabel(
      nonEmptyString(config.torch_dtype) ??
        nonEmptyString(config.dtype) ??
        nonEmptyString(language.dtype) ??
        weights[0]?.dtype
    ),
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
/** Like llama.cpp's converter, recognize Qwen3 rerankers by their page: nothing else shows it. */
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

/** The facts in a SafeTensors file's header. */
export interface SafetensorsFile {
  parameters: number
  /** Type of most of the weights, for example `BF16`. */
  dtype: string | undefined
}

/** The format's own limit. */
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

/** Sums up all tensors' weights and where the last one ends, or names an invalid tensor. */
function summarizeTensors(tensors: Record<string, unknown>): (SafetensorsFile & { end: number }) | { wrong: string } {
  const weights = new Map<string, number>()
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
    end = Math.max(end, to)
  }
  const byCount = [...weights].sort((a, b) => b[1] - a[1])
  return { parameters: byCount.reduce((sum, [, count]) => sum + count, 0), dtype: byCount[0]?.[0], end }
}
