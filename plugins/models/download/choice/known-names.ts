import { labelFromFileName } from '../../../../core/models/gguf-file-name.ts'
import { type ModelName, modelKey, type RequestedName } from '../../../../core/models/model-name.ts'

/** One name of Ollama's library, and its publisher's repositories at Hugging Face. */
interface KnownFamily {
  /** The organization at Hugging Face that owns every repository below. */
  publisher: string
  /** The tag for a name without one. If absent, a tag is required. */
  latest?: string
  /** Repositories by tag. Several tags may share one. */
  tags: Readonly<Record<string, string>>
  /** The publisher's page that names the repositories. By default each repository's own page. */
  source?: string
}

/**
 * Well-known names from Ollama's library. A name is a promise about whose files are downloaded, so this table has only
 * what the publisher itself offers, with a page of the publisher that says so. Other models are found with "corral
 * search".
 */
export const KNOWN_NAMES: Readonly<Record<string, KnownFamily>> = {
  'qwen2.5': {
    publisher: 'Qwen',
    latest: '7b',
    tags: {
      '0.5b': 'Qwen/Qwen2.5-0.5B-Instruct-GGUF',
      '1.5b': 'Qwen/Qwen2.5-1.5B-Instruct-GGUF',
      '3b': 'Qwen/Qwen2.5-3B-Instruct-GGUF',
      '7b': 'Qwen/Qwen2.5-7B-Instruct-GGUF',
      '14b': 'Qwen/Qwen2.5-14B-Instruct-GGUF'
    }
  },
  'qwen2.5-coder': {
    publisher: 'Qwen',
    source: 'https://github.com/QwenLM/Qwen2.5-Coder',
    latest: '7b',
    tags: {
      '0.5b': 'Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF',
      '1.5b': 'Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF',
      '3b': 'Qwen/Qwen2.5-Coder-3B-Instruct-GGUF',
      '7b': 'Qwen/Qwen2.5-Coder-7B-Instruct-GGUF',
      '14b': 'Qwen/Qwen2.5-Coder-14B-Instruct-GGUF',
      '32b': 'Qwen/Qwen2.5-Coder-32B-Instruct-GGUF'
    }
  },
  qwen3: {
    publisher: 'Qwen',
    latest: '8b',
    tags: {
      '0.6b': 'Qwen/Qwen3-0.6B-GGUF',
      '1.7b': 'Qwen/Qwen3-1.7B-GGUF',
      '4b': 'Qwen/Qwen3-4B-GGUF',
      '8b': 'Qwen/Qwen3-8B-GGUF',
      '14b': 'Qwen/Qwen3-14B-GGUF',
      '32b': 'Qwen/Qwen3-32B-GGUF'
    }
  },
  'qwen3-embedding': { publisher: 'Qwen', tags: { '0.6b': 'Qwen/Qwen3-Embedding-0.6B-GGUF' } },
  qwq: { publisher: 'Qwen', latest: '32b', tags: { '32b': 'Qwen/QwQ-32B-GGUF' } },
  // Google offers these only with quantization-aware training, after accepting its terms.
  gemma3: {
    publisher: 'google',
    latest: '4b',
    tags: {
      '1b': 'google/gemma-3-1b-it-qat-q4_0-gguf',
      '1b-it-qat': 'google/gemma-3-1b-it-qat-q4_0-gguf',
      '4b': 'google/gemma-3-4b-it-qat-q4_0-gguf',
      '4b-it-qat': 'google/gemma-3-4b-it-qat-q4_0-gguf',
      '12b': 'google/gemma-3-12b-it-qat-q4_0-gguf',
      '12b-it-qat': 'google/gemma-3-12b-it-qat-q4_0-gguf',
      '27b': 'google/gemma-3-27b-it-qat-q4_0-gguf',
      '27b-it-qat': 'google/gemma-3-27b-it-qat-q4_0-gguf'
    }
  },
  phi3: {
    publisher: 'microsoft',
    latest: 'mini',
    tags: {
      mini: 'microsoft/Phi-3-mini-4k-instruct-gguf',
      'mini-4k': 'microsoft/Phi-3-mini-4k-instruct-gguf',
      '3.8b': 'microsoft/Phi-3-mini-4k-instruct-gguf'
    }
  },
  phi4: { publisher: 'microsoft', latest: '14b', tags: { '14b': 'microsoft/phi-4-gguf' } },
  'granite3.3': {
    publisher: 'ibm-granite',
    latest: '8b',
    tags: {
      '2b': 'ibm-granite/granite-3.3-2b-instruct-GGUF',
      '8b': 'ibm-granite/granite-3.3-8b-instruct-GGUF'
    }
  },
  granite4: {
    publisher: 'ibm-granite',
    latest: 'micro',
    tags: { micro: 'ibm-granite/granite-4.0-micro-GGUF', 'tiny-h': 'ibm-granite/granite-4.0-h-tiny-GGUF' }
  },
  smollm2: {
    publisher: 'HuggingFaceTB',
    latest: '1.7b',
    tags: {
      '360m': 'HuggingFaceTB/SmolLM2-360M-Instruct-GGUF',
      '1.7b': 'HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF'
    }
  },
  'nomic-embed-text': {
    publisher: 'nomic-ai',
    latest: 'v1.5',
    tags: { 'v1.5': 'nomic-ai/nomic-embed-text-v1.5-GGUF' }
  },
  devstral: { publisher: 'mistralai', latest: '24b', tags: { '24b': 'mistralai/Devstral-Small-2507_gguf' } },
  magistral: { publisher: 'mistralai', latest: '24b', tags: { '24b': 'mistralai/Magistral-Small-2509-GGUF' } }
}

/** The meaning of a name of Ollama's library. */
export interface KnownName {
  /** With the variant from the tag, if any. */
  model: ModelName
  publisher: string
  source: string
}

/** Tags for instruction-tuned models, which add nothing: all of these are. */
const INSTRUCTED = /-(?:instruct|it|chat)$/

/**
 * Returns what a short name stands for, if its publisher is known. The size in its tag selects the repository, and a
 * quantization after it the variant (`qwen2.5:7b-instruct-q4_K_M`).
 */
export function knownName({ owner, name, variant = '' }: RequestedName): KnownName | undefined {
  if (owner !== undefined) return undefined
  const key = modelKey({ name })
  const family = Object.hasOwn(KNOWN_NAMES, key) ? KNOWN_NAMES[key] : undefined
  if (!family) return undefined
  const tag = variant.toLowerCase()
  const whole = findRepositoryForTag(family, tag)
  const label = whole === undefined ? labelFromFileName(tag) : undefined
  const size = label && tag.replace(/-?[^-]+$/, '').replace(INSTRUCTED, '')
  const repository = whole ?? (size === undefined ? undefined : findRepositoryForTag(family, size))
  if (repository === undefined) return undefined
  const [publisher = '', bare = ''] = repository.split('/')
  return {
    model: { owner: publisher, name: bare, ...(label && { variant: label }) },
    publisher,
    source: family.source ?? `https://huggingface.co/${repository}`
  }
}

function findRepositoryForTag({ tags, latest }: KnownFamily, tag: string): string | undefined {
  const bare = tag.replace(INSTRUCTED, '')
  const wanted = [tag, bare].find(each => Object.hasOwn(tags, each)) ?? (tag === '' ? latest : undefined)
  return wanted === undefined ? undefined : tags[wanted]
}
