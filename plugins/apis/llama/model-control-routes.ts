import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import {
  type ApiDependencies,
  catalogFor,
  clientSignal,
  DOWNLOAD_ERRORS,
  defaultMode,
  deleteModel,
  errorMessage,
  FILE_ERRORS,
  HUB_ERRORS,
  invalidRequest,
  json,
  listedVariant,
  loadStates,
  nameToDelete,
  parseRequestedName,
  type Services,
  type Storage,
  sendUntilEnd
} from '../../../core/plugins/public-api.ts'
import { llamaChannel, llamaRouter } from './llama-error.ts'
import type { ModelFeed } from './model-feed.ts'
import * as schemas from './schemas.ts'

function downloadToCancel({ catalog, scheduler, feed }: LlamaDependencies, name: string) {
  const download = feed.findDownload(name)
  const variant = download && catalog.find(parseRequestedName(download.model))
  return variant && loadStates(scheduler)(variant).value !== 'unloaded' ? undefined : download
}

export function modelControlRoutes(app: FastifyInstance, deps: LlamaDependencies): void {
  const route = llamaRouter(app)
  const { scheduler, catalog, downloads, feed, log, ended } = deps
  route('POST /models/load', 'llamaLoad', 'Start loading a model', {
    role: 'operator',
    body: schemas.NamedRequest,
    response: json('Loading has started', schemas.DoneSchema),
    errors: ['invalid_model_name', 'model_not_found', 'forbidden_model'],
    handler: async ({ body, caller }) => {
      const { variant, lease } = deps.answers.read(body, caller)
      if (loadStates(scheduler)(variant).value !== 'unloaded') {
        throw invalidRequest('model', `The model "${variant.publicName}" is already loaded or loading.`)
      }
      const { turn, owner, bounds } = caller
      scheduler
        .lease({
          ...lease,
          model: { ...variant.model, variant: variant.label },
          turn,
          owner,
          bounds,
          mode: defaultMode(variant),
          loadOnly: true,
          signal: ended
        })
        .then(taken => taken.release())
        // The client learns of the failure from the feed.
        .catch(error => log.warn(`${variant.publicName} could not be loaded: ${errorMessage(error)}`))
        .finally(() => feed.look())
      feed.look()
      return { success: true }
    }
  })
  route('POST /models/unload', 'llamaUnload', 'Unload a model', {
    role: 'operator',
    body: schemas.NamedRequest,
    response: json('The model is unloaded', schemas.DoneSchema),
    errors: ['invalid_model_name', 'model_not_found', 'model_not_loaded', 'forbidden_model'],
    handler: async ({ body, caller }) => {
      const name = body.model ?? body.name
      const download = name ? downloadToCancel(deps, name) : undefined
      if (download) await downloads.cancel(download.id)
      else {
        const { model, label } = catalogFor(catalog, caller).get(parseRequestedName(name))
        await scheduler.stop({ ...model, variant: label })
      }
      feed.look()
      return { success: true }
    }
  })
  route('POST /models', 'llamaDownload', 'Start downloading a model', {
    role: 'operator',
    body: schemas.NamedRequest,
    response: json('The download has started', schemas.DoneSchema),
    errors: [...FILE_ERRORS, ...HUB_ERRORS, ...DOWNLOAD_ERRORS],
    handler: async ({ body, caller }, reply) => {
      const name = body.model ?? body.name
      if (!name) parseRequestedName(name)
      const model = name!
      const plan = await downloads.plan({ model, caller }, { signal: clientSignal(reply) })
      const pull = await downloads.pull(plan, { detached: true, caller })
      if (!pull) {
        throw invalidRequest('model', `The model ${JSON.stringify(model)} is already stored here.`)
      }
      feed.downloading(pull.record().id, model)
      return { success: true }
    }
  })
  route('DELETE /models', 'llamaDelete', 'Delete a model from disk', {
    role: 'operator',
    querystring: schemas.ModelQuery,
    response: json('The model is deleted', schemas.DoneSchema),
    errors: [...FILE_ERRORS, 'forbidden_model'],
    handler: async ({ query, caller }) => {
      const models = catalogFor(catalog, caller)
      const name = nameToDelete(models, parseRequestedName(query.model))
      await deleteModel(deps, listedVariant(models, name))
      feed.look()
      return { success: true }
    }
  })
  // A HEAD request has no body, so nothing would end its stream.
  route('GET /models/sse', 'llamaModelEvents', 'Follow changes of models', {
    response: {
      description: 'The events',
      content: { 'text/event-stream': { schema: Type.String({ contentSchema: schemas.FeedEventSchema }) } }
    },
    errors: ['rate_limited'],
    exposeHeadRoute: false,
    handler: ({ caller }, reply) =>
      sendUntilEnd(reply, llamaChannel(deps), (stream, end) => {
        const send = (events: readonly object[]) =>
          stream.write(events.map(event => `data: ${JSON.stringify(event)}\n\n`).join(''))
        return feed.listen({ caller, send, end })
      })
  })
}

export interface LlamaDependencies extends ApiDependencies {
  downloads: Services['downloads']
  storage: Pick<Storage, 'find' | 'remove'>
  feed: ModelFeed
  log: Pick<FastifyBaseLogger, 'warn'>
  /** Aborted when the server stops. */
  ended: AbortSignal
}
