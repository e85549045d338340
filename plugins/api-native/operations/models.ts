import { Type } from 'typebox'
import {
  Done,
  LoadingModelSchema,
  LocalModelSchema,
  RunningModelSchema,
  ShownModelSchema
} from '../../../core/contracts/native-records.ts'
import type { ErrorCode } from '../../../core/errors.ts'
import { errorResponses, json, MODEL_ERRORS, nativeErrors } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../native-streams.ts'
import { LoadRequestSchema, NamedRequestSchema } from '../schemas.ts'
import { workReply } from './work.ts'

const loose = { additionalProperties: true }
const tags = ['Models']
const NAMED: ErrorCode[] = ['invalid_model_name', 'model_not_found', 'unsupported_capability']

/** How the routes of models on disk and in memory are described, at a mount with streams of these types. */
export function modelOperations(types: readonly StreamType[]) {
  return {
    tags: {
      summary: 'List the models on disk',
      tags,
      operationId: 'listLocalModels',
      response: {
        200: json('One record for each variant', Type.Object({ models: Type.Array(LocalModelSchema) }, loose)),
        ...errorResponses(nativeErrors, [], { body: false })
      }
    },
    ps: {
      summary: 'List the models in memory',
      tags,
      operationId: 'listRunningModels',
      response: {
        200: json(
          'Those that are ready, and those that are being loaded or unloaded',
          Type.Object({ models: Type.Array(RunningModelSchema), loading: Type.Array(LoadingModelSchema) }, loose)
        ),
        ...errorResponses(nativeErrors, [], { body: false })
      }
    },
    show: {
      summary: 'Tell all of a model',
      tags,
      operationId: 'showModel',
      body: NamedRequestSchema,
      response: { 200: json('What is known of it', ShownModelSchema), ...errorResponses(nativeErrors, NAMED) }
    },
    remove: {
      summary: 'Delete a model from disk',
      description:
        'A name without a variant deletes all of its variants; under /ollama, as in Ollama, the default one alone. ' +
        'Requests that it answers end, and so do its pulls.',
      tags,
      operationId: 'deleteModel',
      body: NamedRequestSchema,
      response: { 200: json('It is gone', Done('deleted')), ...errorResponses(nativeErrors, NAMED) }
    },
    setDefault: {
      summary: 'Choose the default variant of a model',
      tags,
      operationId: 'setDefaultVariant',
      body: NamedRequestSchema,
      response: {
        200: json('The variant', Type.Object({ status: Type.Literal('success'), model: LocalModelSchema }, loose)),
        ...errorResponses(nativeErrors, NAMED)
      }
    },
    stop: {
      summary: 'Unload a model',
      description: 'Requests that it answers end with `model_stopped`.',
      tags,
      operationId: 'stopModel',
      body: NamedRequestSchema,
      response: {
        200: json('It is out of memory', Done('stopped')),
        ...errorResponses(nativeErrors, [...NAMED, 'model_not_loaded'])
      }
    },
    load: {
      summary: 'Load a model',
      tags,
      operationId: 'loadModel',
      body: LoadRequestSchema,
      response: {
        200: workReply('It is ready', Done('ready'), types),
        ...errorResponses(nativeErrors, [...MODEL_ERRORS, 'invalid_option', 'unsupported_capability'])
      }
    }
  }
}
