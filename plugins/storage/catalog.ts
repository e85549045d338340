import { createHash } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import type { BroughtModel, Catalog, Model, ModelSource } from '../../core/contracts/models.ts'
import type { Storage } from '../../core/contracts/storage.ts'
import { messageOf } from '../../core/errors.ts'
import { type ModelName, modelKey, parseModelName } from '../../core/models/model-name.ts'
import { type Aliases, findVariant } from './aliases.ts'
import { namesOf } from './model-index.ts'
import { modelNotFound } from './refusals.ts'

/** The label of a model of a plugin that gives it none. */
const LABEL = 'latest'

/** What requests can name of a model that a plugin brings. */
function modelOf(source: string, brought: BroughtModel, isDefault: boolean, modifiedAt: string): Model {
  const { variant: label = LABEL, ...model } = parseModelName(brought.name)
  const digest = createHash('sha256')
    .update(JSON.stringify([source, brought]))
    .digest('hex')
  return {
    ...namesOf(model, label, isDefault),
    revision: digest.slice(0, 16),
    format: source,
    size: 0,
    digest,
    modifiedAt,
    origin: { kind: 'plugin', from: source },
    metadata: {
      quantization: '',
      info: {},
      ...brought.metadata,
      ...(brought.contextLength !== undefined && { contextLength: brought.contextLength }),
      capabilities: brought.capabilities
    }
  }
}

/**
 * The models in storage, and after them those that plugins bring.
 * @param aliases gives the other names of models, in lower case; a model that really has such a name goes before it
 */
export function createCatalog(
  storage: Pick<Storage, 'list' | 'variants'>,
  aliases: () => Aliases,
  log: Pick<FastifyBaseLogger, 'error'>
): Catalog {
  const sources: ModelSource[] = []
  /** Models by what plugins reported of them, which is compared with each request. */
  const known = new WeakMap<BroughtModel, Model>()
  const startedAt = new Date().toISOString()
  const reported = new Set<string>()

  /** What a source gives. Its mistakes are logged, once each: those of one plugin must not hide all models. */
  function attempt<Given>(source: ModelSource, give: () => Given): Given | undefined {
    try {
      return give()
    } catch (error) {
      const message = `The plugin "${source.name}" lists a model that is left out: ${messageOf(error)}`
      if (!reported.has(message)) log.error(message)
      reported.add(message)
      return undefined
    }
  }

  /** The models of one source, by `owner/name` in lower case. The first one of a name is its default variant. */
  function modelsOf(source: ModelSource): Map<string, Model[]> {
    const models = new Map<string, Model[]>()
    for (const brought of attempt(source, () => source.models()) ?? []) {
      const name = attempt(source, () => parseModelName(brought.name))
      if (!name) continue
      const key = modelKey(name)
      const variants = models.get(key) ?? []
      const isDefault = variants.length === 0
      let model = known.get(brought)
      if (model?.isDefault !== isDefault) {
        model = modelOf(source.name, brought, isDefault, startedAt)
        known.set(brought, model)
      }
      models.set(key, [...variants, model])
    }
    return models
  }

  function variants(name: ModelName): Model[] {
    const stored = storage.variants(name)
    if (stored.length > 0) return stored
    for (const source of sources) {
      const found = modelsOf(source).get(modelKey(name))
      if (found) return found
    }
    return []
  }

  const find = (name: ModelName) => findVariant(name, aliases(), variants)

  return {
    list() {
      const all: Model[] = storage.list()
      if (sources.length === 0) return all
      const names = new Set(all.map(({ model }) => modelKey(model)))
      for (const source of sources) {
        for (const [name, models] of modelsOf(source)) {
          if (names.has(name)) continue
          names.add(name)
          all.push(...models)
        }
      }
      return all
    },
    variants,
    find,
    get(name) {
      const found = find(name)
      if (!found) throw modelNotFound(name, variants(name))
      return found
    },
    add(source) {
      if (sources.some(({ name }) => name === source.name)) {
        throw new Error(`There is a source of models named "${source.name}" already.`)
      }
      for (const { name } of source.models()) parseModelName(name)
      sources.push(source)
    }
  }
}
