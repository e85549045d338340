import type { FastifyBaseLogger } from 'fastify'
import { Type } from 'typebox'
import { errorMessage } from '../../../../core/errors.ts'
import { labelFromFileName } from '../../../../core/models/gguf-file-name.ts'
import {
  formatModelName,
  type ModelName,
  modelKey,
  parseModelName,
  parseRequestedName,
  type RequestedName
} from '../../../../core/models/model-name.ts'
import { readJsonFileSync, writeJsonFile } from '../../../../core/system/json-file.ts'
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

const FileSchema = Type.Object({
  version: Type.Literal(1),
  /** The variant for each name with its tag, the latest last. */
  names: Type.Record(Type.String(), Type.String())
})

const nameKey = ({ name, variant }: RequestedName) =>
  formatModelName({ name, variant: variant ?? 'latest' }).toLowerCase()

export type PulledNames = ReturnType<typeof openPulledNames>

/**
 * The names of Ollama's library under which models were pulled. Listed only while their variant exists. If the file is
 * unusable, logs a warning and replaces it with the next name.
 */
export function openPulledNames(path: string, log: Pick<FastifyBaseLogger, 'warn'>) {
  /** The name as requested, and the variant, by the name in lower case. */
  const names = new Map<string, { asked: string; model: string }>()
  /** The names by the key of their variant. */
  let listed = new Map<string, string[]>()
  let writing = Promise.resolve()
  const { value, fault } = readJsonFileSync(path, FileSchema) ?? { value: { names: {} } }
  if (!value)
    log.warn(`${path} cannot be used: ${fault}. Models are not listed under the names that they were pulled by.`)
  for (const [asked, model] of Object.entries(value?.names ?? {})) {
    try {
      parseRequestedName(asked)
      parseModelName(model)
      names.set(asked.toLowerCase(), { asked, model })
    } catch (error) {
      log.warn(`A name in ${path} is left out: ${errorMessage(error)}`)
    }
  }
  list()

  function list(): void {
    listed = new Map()
    for (const { asked, model } of names.values()) {
      const { variant = 'latest', ...name } = parseModelName(model)
      const key = `${modelKey(name)}:${variant.toLowerCase()}`
      listed.set(key, [...(listed.get(key) ?? []), asked])
    }
  }

  return {
    meaning(name: RequestedName): ModelName | undefined {
      const found = name.owner === undefined ? names.get(nameKey(name)) : undefined
      return found && parseModelName(found.model)
    },

    listed: (): ReadonlyMap<string, readonly string[]> => listed,

    /** Records a name. If the disk is full, only the name is lost at the next start. */
    async add(asked: string, { name, label }: { name: ModelName; label: string }): Promise<void> {
      const key = asked.toLowerCase()
      names.delete(key)
      names.set(key, { asked, model: formatModelName({ ...name, variant: label }) })
      list()
      const file = {
        version: 1,
        names: Object.fromEntries([...names.values()].map(({ asked, model }) => [asked, model]))
      }
      writing = writing
        .then(() => writeJsonFile(path, file))
        .catch(error => log.warn(`${path} cannot be written: ${errorMessage(error)}`))
      await writing
    }
  }
}
