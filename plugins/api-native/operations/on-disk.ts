import { Type } from 'typebox'
import type { ErrorCode } from '../../../core/errors.ts'
import { errorResponses, json, nativeErrors } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../framing.ts'
import { ConvertRequestSchema, ImportRequestSchema } from '../schemas.ts'
import { Bytes, Done, Format } from './fields.ts'
import { ConversionRecordSchema, LocalModelSchema } from './records.ts'
import { workReply } from './work.ts'

const loose = { additionalProperties: true }

const FoundModelsSchema = Type.Object(
  {
    from: Type.String({ description: 'The tool' }),
    folder: Type.String({ description: 'Where was looked: an absolute path, or several with commas between' }),
    models: Type.Array(
      Type.Object(
        {
          found: Type.String({ description: 'What it is called in that tool; names it in an import' }),
          name: Type.String({ description: 'What it would be called here' }),
          format: Format,
          size: Bytes('Of all its files'),
          path: Type.String({ description: 'Absolute path of its first file, or of its folder' }),
          problem: Type.Optional(Type.String({ description: 'Why it cannot be taken' })),
          present: Type.Boolean({ description: 'These files are stored already' }),
          storedAs: Type.Optional(Type.String({ description: 'Under which name they are' }))
        },
        loose
      )
    ),
    unreadable: Type.Optional(Type.Array(Type.String(), { description: 'What could not be looked at, and why' }))
  },
  { ...loose, title: 'FoundModels' }
)

const ImportedSchema = Type.Object(
  {
    status: Type.Literal('success'),
    model: LocalModelSchema,
    linked: Type.Optional(Type.Boolean({ description: 'Its weights were not copied' }))
  },
  { ...loose, title: 'ImportedModel' }
)

const ConvertedSchema = Type.Object(
  { status: Type.Literal('success'), model: Type.String(), ...ConversionRecordSchema.properties },
  { ...loose, title: 'ConvertedModel' }
)

const IMPORT_ERRORS: ErrorCode[] = ['invalid_model_name', 'model_not_found', 'model_exists', 'insufficient_storage']
const CONVERSION_ERRORS: ErrorCode[] = ['invalid_model_name', 'invalid_option', 'model_not_found']

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
