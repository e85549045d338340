import type { Capability } from '../../core/services.ts'

/** llama.cpp's architectures that only encode: they give embeddings, never text. */
const ENCODERS = new Set([
  'bert',
  'modern-bert',
  'nomic-bert',
  'nomic-bert-moe',
  'neo-bert',
  'jina-bert-v2',
  'jina-bert-v3',
  'eurobert',
  't5encoder',
  'gemma-embedding'
])

/** llama.cpp's LLAMA_POOLING_TYPE_NONE and _RANK. */
const POOLING_NONE = 0
const POOLING_RANK = 4

/** Vocabulary entries by which llama.cpp finds the token that opens a fill-in-the-middle prompt. */
const FILL_IN_TOKENS = new Set([
  '<|fim_prefix|>',
  '<fim-prefix>',
  '<fim_prefix>',
  '<｜fim▁begin｜>',
  '<PRE>',
  '▁<PRE>',
  '<|code_prefix|>',
  '<|prefix|>'
])

const THINKING =
  /<think>|<\/think>|enable_thinking|reasoning_content|reasoning_effort|\[THINK\]|<seed:think>|<\|channel\|?>(analysis|thought)/

export interface CapabilityFacts {
  architecture?: string
  poolingType?: number
  chatTemplate?: string
  /** The metadata names a fill-in-the-middle token by its number. */
  hasFillInToken: boolean
  vocabulary: readonly unknown[]
  /** What the projector understands; absent where there is none. */
  projector?: { vision: boolean; audio: boolean }
}

/** What a model can be asked for, as far as its metadata tells. */
export function capabilitiesOf(facts: CapabilityFacts): Capability[] {
  if (facts.poolingType === POOLING_RANK) return ['rerank']
  if (facts.poolingType !== undefined && facts.poolingType !== POOLING_NONE) return ['embedding']
  if (ENCODERS.has(facts.architecture ?? '')) return ['embedding']
  const capabilities: Capability[] = ['completion']
  capabilities.push(...templateCapabilities(facts.chatTemplate))
  if (facts.projector?.vision) capabilities.push('vision')
  if (facts.projector?.audio) capabilities.push('audio')
  if (facts.hasFillInToken || facts.vocabulary.some(token => FILL_IN_TOKENS.has(token as string))) {
    capabilities.push('insert')
  }
  return capabilities
}

/** What a chat template makes of tools and thoughts. */
export function templateCapabilities(template = ''): Capability[] {
  const capabilities: Capability[] = []
  // Only what the template computes counts: its plain text may speak of tools too.
  const code = template.match(/\{[%{][\s\S]*?[%}]\}/g) ?? []
  if (code.some(part => /\btools\b/.test(part))) capabilities.push('tools')
  if (THINKING.test(template)) capabilities.push('thinking')
  return capabilities
}
