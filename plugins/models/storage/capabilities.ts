import type { Capability } from '../../../core/contracts/models.ts'

/** llama.cpp's architectures that only encode: they give embeddings, never text. */
const ENCODERS = new Set(
  (
    'bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert t5encoder ' +
    'gemma-embedding llama-embed'
  ).split(' ')
)

/**
 * Architectures that llama.cpp loads but llama-server cannot answer with: encoders with decoders, diffusion models,
 * parts of other models (speech, guessing ahead).
 */
const NOT_SERVED = new Set(
  't5 dream llada llada-moe rnd1 wavtokenizer-dec qwen3tts pockettts eagle3 dflash gemma4-assistant'.split(' ')
)

/** llama.cpp's LLAMA_POOLING_TYPE_NONE and _RANK. */
const POOLING_NONE = 0
const POOLING_RANK = 4

/** A classifier with more labels sorts texts into kinds; a reranker's one number (or yes and no) is a score. */
export const MAX_RERANKER_LABELS = 2

/** Hugging Face's tags of models that are published for embeddings, and of those that are for text as well. */
const EMBEDDING_TAGS = new Set(['feature-extraction', 'sentence-similarity', 'sentence-transformers'])
const TEXT_TAGS = new Set(['text-generation', 'text2text-generation', 'conversational', 'image-text-to-text'])

/** Vocabulary entries by which llama.cpp finds the token that opens a fill-in-the-middle prompt. */
export const FILL_IN_TOKENS =
  '<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>'.split(' ')

const THINKING =
  /<think>|<\/think>|enable_thinking|reasoning_content|reasoning_effort|\[THINK\]|<seed:think>|<\|channel\|?>(analysis|thought)/

export interface CapabilityFacts {
  architecture?: string
  poolingType?: number
  /** False where each token attends to later ones too: such a model cannot generate text. */
  isCausal?: boolean
  /** It has a layer that classifies texts, and names so many classes (0 where it names none). */
  classifier?: { labels: number }
  /** What the model's page is tagged with. */
  tags?: readonly unknown[]
  chatTemplate?: string
  /** The metadata names a fill-in-the-middle token, or the vocabulary has one of `FILL_IN_TOKENS`. */
  hasFillInToken: boolean
  /** What the projector understands; absent where there is none. */
  projector?: { vision: boolean; audio: boolean }
}

/** What a model can do, according to its metadata. */
export function capabilitiesOf(facts: CapabilityFacts): Capability[] {
  const { architecture = '', classifier, tags = [] } = facts
  if (NOT_SERVED.has(architecture)) return []
  const pooling = facts.poolingType ?? POOLING_NONE
  // Without the layer llama-server would give some number of the embedding for a score.
  if (pooling === POOLING_RANK && classifier) return ['rerank']
  if (pooling !== POOLING_NONE && pooling !== POOLING_RANK) return ['embedding']
  if (classifier) return classifier.labels <= MAX_RERANKER_LABELS ? ['rerank'] : []
  if (ENCODERS.has(architecture) || facts.isCausal === false) return ['embedding']
  // Decoders that were converted before the kind of pooling was noted.
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

/** A string in a template. One that is not closed reaches to the end, so that nothing is tried from its middle again. */
const QUOTED = /'(?:\\.?|[^'\\])*(?:'|$)|"(?:\\.?|[^"\\])*(?:"|$)/gs

/** Whether a chat template supports tools and thinking. */
export function templateCapabilities(template = ''): Capability[] {
  const capabilities: Capability[] = []
  // Only variables count: the template's text and strings may mention tools too. Each part but the last ends with code.
  const code = template
    .split(/[%}]\}/)
    .slice(0, -1)
    .map(part => part.slice(part.search(/\{[%{]|$/)))
  if (code.some(part => /(?<!\.)\btools\b/.test(part.replace(QUOTED, "''")))) capabilities.push('tools')
  if (THINKING.test(template)) capabilities.push('thinking')
  return capabilities
}
