import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import type { Catalog, Model } from '../../core/contracts/catalog.ts'
import type { Scheduler } from '../../core/contracts/scheduler.ts'
import { errorResponses, json } from '../../core/http/response-schemas.ts'
import { contextInForce } from '../../core/models/context-in-force.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { schemaCompiler } from './check-body.ts'
import { modelPage, modelRecord } from './models.ts'
import { openaiErrors } from './openai-error.ts'
import { ModelList, Model as ModelSchema } from './reply-schemas.ts'
import { ModelListQuery } from './request-schemas.ts'

const tags = ['OpenAI models']

interface ModelDependencies {
  catalog: Catalog
  scheduler: Scheduler
  config: CoreConfig
}

/** The models there are, and one by its name. */
export function modelRoutes({ catalog, scheduler, config }: ModelDependencies): FastifyPluginAsync {
  const contextOf = (variant: Model) => contextInForce(config, variant, scheduler.running())
  return async app => {
    app.setValidatorCompiler(schemaCompiler)
    app.get<{ Querystring: ModelListQuery }>(
      '/models',
      {
        schema: {
          tags,
          summary: 'List models',
          description: "The models on this machine, in records that OpenAI's and Anthropic's clients read.",
          operationId: 'listModels',
          querystring: ModelListQuery,
          response: {
            200: json('The models', ModelList),
            ...errorResponses(openaiErrors, ['invalid_request'], { body: false })
          }
        }
      },
      async request => modelPage(catalog.list(), contextOf, request.query)
    )
    // Names hold a slash, which clients send as it is or as %2F.
    app.get<{ Params: { '*': string } }>(
      '/models/*',
      {
        schema: {
          tags,
          summary: 'Tell of a model',
          operationId: 'retrieveModel',
          params: Type.Object({
            '*': Type.String({ title: 'model', description: '<owner>/<name> or <owner>/<name>:<variant>' })
          }),
          response: {
            200: json('The model', ModelSchema),
            ...errorResponses(openaiErrors, ['invalid_model_name', 'model_not_found'], { body: false })
          }
        }
      },
      async request => {
        const variant = catalog.get(parseModelName(request.params['*']))
        return modelRecord(variant, contextOf(variant))
      }
    )
  }
}
