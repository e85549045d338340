import type { ModelMetadata } from '../../../core/contracts/models.ts'
import { type GgufFile, listLength } from '../../../core/models/gguf-file.ts'
import { labelFromFileName } from '../../../core/models/gguf-file-name.ts'
import { getCapabilities } from './capabilities.ts'

/** Limits on what a manifest stores of a file's header. */
const MAX_INFO_ENTRIES = 2_000
const MAX_INFO_STRING = 1_024
const MAX_TEMPLATE = 1_000_000

/** Returns a string that is not empty, otherwise undefined. */
export const nonEmptyString = (value: unknown) => (typeof value === 'string' && value !== '' ? value : undefined)
export const number = (value: unknown) => (typeof value === 'number' && Number.isFinite(value) ? value : undefined)
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

/** llama.cpp's names for `general.file_type` (enum llama_ftype), from 0 up. `-` marks unused numbers. */
const FILE_TYPES = (
  'F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ2_XXS IQ2_XS ' +
  'Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 - - - TQ1_0 TQ2_0 MXFP4_MOE NVFP4 ' +
  'Q1_0 Q2_0'
).split(' ')

/** Returns the name of a GGUF's `general.file_type`. Bit 1024 marks a guess and is ignored. */
export function labelFromFileType(fileType: unknown): string | undefined {
  const name = typeof fileType === 'number' ? FILE_TYPES[fileType & ~1024] : undefined
  return name === '-' ? undefined : name
}

/** The file name takes precedence: the header does not know mixtures like `UD-Q4_K_XL`. */
export function ggufLabel(fileName: string, fileType: unknown): string {
  return labelFromFileName(fileName) ?? labelFromFileType(fileType) ?? 'GGUF'
}
