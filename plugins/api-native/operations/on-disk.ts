import { Type } from 'typebox'
import { FoundModelsSchema } from '../../../core/contracts/found-models.ts'
import { ConvertedSchema, Done, ImportedSchema } from '../../../core/contracts/native-records.ts'
import type { ErrorCode } from '../../../core/errors.ts'
import { errorResponses, json, nativeErrors } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../native-streams.ts'
import { ConvertRequestSchema, ImportRequestSchema } from '../schemas.ts'
import { workReply } from './work.ts'

const IMPORT_ERRORS: ErrorCode[] = ['invalid_model_name', 'model_not_found', 'model_exists', 'insufficient_storage']
const CONVERSION_ERRORS: ErrorCode[] = [
  'invalid_model_name',
  'invalid_option',
  'model_not_found',
  'unsupported_capability'
]

/** How imports and conversions are described, at a mount with streams of these types. */
export function diskOperations(types: readonly StreamType[]) {
  return {
    found: {
      summary: 'List the models of another tool on this machine',
      tags: ['Imports'],
      operationId: 'findImports',
      querystring: Type.Object({
        from: Type.Optional(Type.String({ description: 'The tool: huggingface, ollama or lm-studio' }))
      }),
      response: {
        200: json('What its cache holds', FoundModelsSchema),
        ...errorResponses(nativeErrors, ['invalid_request'], { body: false })
      }
    },
    import: {
      summary: 'Store a model that is on this machine',
      description: 'Files are linked where that is possible. Either `path`, or `from` and `found`.',
      tags: ['Imports'],
      operationId: 'importModel',
      body: ImportRequestSchema,
      response: {
        200: workReply('The stored variant', ImportedSchema, types),
        ...errorResponses(nativeErrors, IMPORT_ERRORS)
      }
    },
    convert: {
      summary: 'Convert a SafeTensors model ahead of time',
      tags: ['Conversions'],
      operationId: 'convertModel',
      body: ConvertRequestSchema,
      response: {
        200: workReply('What was made of it', ConvertedSchema, types),
        ...errorResponses(nativeErrors, [
          ...CONVERSION_ERRORS,
          'conversion_failed',
          'insufficient_storage',
          'runtime_missing'
        ])
      }
    },
    removeConversion: {
      summary: 'Delete what was converted',
      description: 'The model itself stays.',
      tags: ['Conversions'],
      operationId: 'deleteConversion',
      body: ConvertRequestSchema,
      response: { 200: json('It is gone', Done('deleted')), ...errorResponses(nativeErrors, CONVERSION_ERRORS) }
    }
  }
}
