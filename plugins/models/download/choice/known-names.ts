import { labelFromFileName } from '../../../../core/models/gguf-file-name.ts'
import { modelKey, type RequestedName } from '../../../../core/models/model-name.ts'
import KNOWN from './known-names.json' with { type: 'json' }

/** One name of Ollama's library, and its publisher's repositories at Hugging Face. */
interface KnownFamily {
  /** The tag for a name without one. If absent, a tag is required. */
  latest?: string
  /** Repositories by tag. Several tags may share one. */
  tags: Readonly<Record<string, string>>
  /** The publisher's page that names the repositories. By default each repository's own page. */
  source?: string
}

/**
 * Well-known names from Ollama's library. A name is a promise about the publisher of the downloaded files, so this
 * table contains only models that the publisher itself offers, each with a page that says so. Other models are found
 * with "corral search".
 */
export const KNOWN_NAMES: Readonly<Record<string, KnownFamily>> = KNOWN

/** Tags for instruction-tuned models. All of these models are instruction-tuned, so the tags add nothing. */
const INSTRUCTED = /-(?:instruct|it|chat)$/

/** Returns the model that a short name refers to. Its tag selects the repository and the variant (`qwen2.5:7b-q4_K_M`). */
export function knownName({ owner, name, variant = '' }: RequestedName) {
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
