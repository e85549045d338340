import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import type { ApiDependencies } from '../../../core/answers/api-dependencies.ts'
import type { ModelLimits } from '../../../core/contracts/answers.ts'
import type { Caller } from '../../../core/contracts/callers.ts'
import type { ModelAlias, Model as StoredModel } from '../../../core/contracts/models.ts'
import { hasFiles } from '../../../core/contracts/storage.ts'
import { invalidRequest } from '../../../core/errors.ts'
import { LIST_HEADERS, ListBody, NOT_MODIFIED } from '../../../core/http/list-body.ts'
import { listPage } from '../../../core/http/list-page.ts'
import { openaiRouter } from '../../../core/http/openai-error.ts'
import { json } from '../../../core/http/response-schemas.ts'
import { aliasesByModel, catalogFor, findListed, type VisibleCatalog } from '../../../core/models/allowed-models.ts'
import { anthropicRecord } from '../../../core/models/anthropic-record.ts'
import { type LoadState, loadStates } from '../../../core/models/load-state.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { codexRecord } from './codex-catalog.ts'
import { Model, ModelList, ModelListQuery } from './schemas.ts'

const ModelPath = Type.Object({
  '*': Type.String({
    title: 'model',
    description: '<owner>/<name>, <owner>/<name>:<variant>, an alias, or a name without its owner'
  })
})

export function modelRoutes(app: FastifyInstance, { catalog, scheduler, answers }: ApiDependencies): void {
  const readFacts = (seen: VisibleCatalog, caller: Pick<Caller, 'bounds'>) => {
    const getLimits = answers.limits(caller)
    const getState = loadStates(scheduler)
    const names = aliasesByModel(seen.aliases())
    return (variant: StoredModel): Facts => ({
      limits: getLimits(variant),
      state: getState(variant),
      aliases: names.get(variant.key) ?? []
    })
  }
  const body = new ListBody()
  const route = openaiRouter(app, 'OpenAI models')
  route('GET /models', 'listModels', 'List models', {
    querystring: ModelListQuery,
    headers: LIST_HEADERS,
    response: { 200: json('The models', ModelList), 304: NOT_MODIFIED },
    errors: ['invalid_request'],
    handler: async ({ caller, query }, reply) => {
      const seen = catalogFor(catalog, caller)
      const isWhole = query.limit === undefined && query.after_id === undefined && query.before_id === undefined
      const getFacts = readFacts(seen, caller)
      if (!isWhole) return modelPage(listed(seen), getFacts, query)
      const toCodex = (model: StoredModel, alias?: string) =>
        codexRecord(model, alias ?? model.publicName, getFacts(model).limits)
      if (caller.models !== undefined || caller.bounds !== undefined) {
        const rows = listed(seen)
        const codex = rows.map(({ model, alias }) => toCodex(model, alias)).filter(row => row !== undefined)
        return { ...modelPage(rows, getFacts, query), models: codex }
      }
      const models = seen.list()
      const aliases = seen.aliases()
      const first = models[0]?.publicName ?? aliases[0]?.alias ?? null
      const last = aliases.at(-1)?.alias ?? models.at(-1)?.publicName ?? null
      return body.send(reply, models, aliases, {
        heads: ['{"object":"list","data":[', '],"models":['],
        tail: `],"first_id":${JSON.stringify(first)},"last_id":${JSON.stringify(last)},"has_more":false}`,
        factOf(model) {
          const { limits, state, aliases } = getFacts(model)
          const isPlain = state.value === 'unloaded' && !state.failure && aliases.length === 0
          if (isPlain) return `${limits.window} ${limits.answer}`
          return JSON.stringify([limits, state, state.failure?.message, aliases])
        },
        textsOf: (model, alias) => [
          JSON.stringify(modelRecord({ model, alias }, getFacts(model))),
          JSON.stringify(toCodex(model, alias))
        ]
      })
    }
  })
  // Model names contain a slash, which clients send literally or as %2F.
  route('GET /models/*', 'retrieveModel', 'Show a model', {
    params: ModelPath,
    response: json('The model', Model),
    errors: ['invalid_model_name', 'model_not_found'],
    handler: async request => {
      const seen = catalogFor(catalog, request.caller)
      const listed = findListed(seen, parseRequestedName(request.params['*']))
      return modelRecord(listed, readFacts(seen, request.caller)(listed.model))
    }
  })
}

type Listed = Partial<ModelAlias> & Pick<ModelAlias, 'model'>

/** Aliases are listed after the models, because many clients offer only listed names. */
const listed = (models: VisibleCatalog): Listed[] => [...models.list().map(model => ({ model })), ...models.aliases()]

const listedId = ({ model, alias }: Listed) => alias ?? model.publicName

interface Facts {
  limits: ModelLimits
  state: LoadState
  aliases: readonly string[]
}

/**
 * Returns a record for the clients of OpenAI (`created`, `owned_by`), of Anthropic, and of llama-server's router, which
 * take a row without `status` for a loaded model. It is made for thousands of models: no spreads, because V8 would
 * create a shape for each object, which takes more memory than the object.
 */
function modelRecord(
  { model: variant, alias }: Listed,
  { limits, state: { value, progress, failure }, aliases }: Facts
) {
  const id = listedId({ model: variant, alias })
  const { capabilities, contextLength, embeddingLength, parameters } = variant.metadata
  const status: Static<typeof Model>['status'] = { value }
  if (progress?.fraction !== undefined) status.progress = progress.fraction
  // llama-server's fields for a process that exited.
  if (failure) Object.assign(status, { failed: true, exit_code: 1, reason: failure.message })
  const modalities = ['text']
  if (capabilities.includes('vision')) modalities.push('image')
  if (capabilities.includes('audio')) modalities.push('audio')
  const meta: Record<string, number> = { n_ctx: limits.context }
  if (contextLength !== undefined) meta.n_ctx_train = contextLength
  if (embeddingLength !== undefined) meta.n_embd = embeddingLength
  if (parameters !== undefined) meta.n_params = parameters
  meta.size = variant.size
  const isOwn = hasFiles(variant) && alias === undefined
  const record = Object.assign(
    { id, object: 'model', created: Math.floor(Date.parse(variant.modifiedAt) / 1000), owned_by: variant.model.owner },
    anthropicRecord(variant, id, limits),
    {
      status,
      architecture: { input_modalities: modalities, output_modalities: ['text'] },
      source: isOwn ? 'cache' : 'preset',
      can_remove: isOwn,
      meta,
      aliases: alias === undefined ? aliases : [],
      tags: []
    }
  )
  return alias === undefined ? record : Object.assign(record, { root: variant.publicName })
}

export function modelPage(
  models: readonly Listed[],
  getFacts: (variant: StoredModel) => Facts,
  { limit, after_id, before_id }: ModelListQuery
) {
  const findPlace = (id: string, param: string) => {
    const at = models.findIndex(each => listedId(each).toLowerCase() === id.toLowerCase())
    if (at === -1) throw invalidRequest(param, `"${param}" must be the id of a model.`)
    return at
  }
  const from = after_id === undefined ? 0 : findPlace(after_id, 'after_id') + 1
  const to = before_id === undefined ? models.length : findPlace(before_id, 'before_id')
  const range = models.slice(from, Math.max(from, to))
  // With only `before_id`, the page has the rows directly before it.
  const backwards = before_id !== undefined && after_id === undefined
  const page = limit === undefined ? range : backwards ? range.slice(-limit) : range.slice(0, limit)
  const data = page.map(each => modelRecord(each, getFacts(each.model)))
  return listPage(data, data.length < range.length)
}
