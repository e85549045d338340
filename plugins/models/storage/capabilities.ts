import type { Capability } from '../../../core/contracts/models.ts'

/** llama.cpp's encoder-only architectures: they give embeddings, never text. */
const ENCODERS = new Set(
  (
    'bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert t5encoder ' +
    'gemma-embedding llama-embed'
  ).split(' ')
)

/**
 * Architectures that llama.cpp loads but llama-server cannot answer with: encoder-decoders, diffusion models, and parts
 * of other models (speech, draft models).
 */
const NOT_SERVED = new Set(
  't5 dream llada llada-moe rnd1 wavtokenizer-dec qwen3tts pockettts eagle3 dflash gemma4-assistant'.split(' ')
)

/** llama.cpp's LLAMA_POOLING_TYPE_NONE and _RANK. */
const POOLING_NONE = 0
const POOLING_RANK = 4

/** With more labels, a classifier sorts texts into classes instead of scoring them. */
export const MAX_RERANKER_LABELS = 2

/** Hugging Face's tags of models published for embeddings, and tags that show a model also generates text. */
const EMBEDDING_TAGS = new Set(['feature-extraction', 'sentence-similarity', 'sentence-transformers'])
const TEXT_TAGS = new Set(['text-generation', 'text2text-generation', 'conversational', 'image-text-to-text'])

/** Vocabulary entries that llama.cpp recognizes as the start token of a fill-in-the-middle prompt. */
export const FILL_IN_TOKENS =
  '<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>'.split(' ')

const THINKING =
  /<think>|<\/think>|enable_thinking|reasoning_content|reasoning_effort|\[THINK\]|<seed:think>|<\|channel\|?>(analysis|thought)/

export interface CapabilityFacts {
  architecture?: string
  poolingType?: number
  /** False if tokens also attend to later tokens: such a model cannot generate text. */
  isCausal?: boolean
  /** The model has a classification layer, with this many labels (0 if it names none). */
  classifier?: { labels: number }
  /** The tags on the model's page. */
  tags?: readonly unknown[]
  chatTemplate?: string
  /** The metadata names a fill-in-the-middle token, or the vocabulary has one of `FILL_IN_TOKENS`. */
  hasFillInToken: boolean
  /** What the projector understands, if there is one. */
  projector?: { vision: boolean; audio: boolean }
}

/** Derives a model's capabilities from its metadata. */
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

/** A string in a template. An unterminated one extends to the end, so that the regex does not retry inside it. */
const QUOTED = /'(?:\\.?|[^'\\])*(?:'|$)|"(?:\\.?|[^"\\])*(?:"|$)/gs

/** Returns whether a chat template supports tools and thinking. */
export function templateCapabilities(template = ''): Capability[] {
  const capabilities: Capability[] = []
  // Only variables matter, not text or strings. Each part but the last ends with code.
  const code = template
    .split(/[%}]\}/)
    .slice(0, -1)
    .map(part => part.slice(part.search(/\{[%{]|$/)))
  if (code.some(part => /(?<!\.)\btools\b/.test(part.replace(QUOTED, "''")))) capabilities.push('tools')
  if (THINKING.test(template)) capabilities.push('thinking')
  return capabilities
}
