import { type Static, Type } from 'typebox'
import { errorResponses, json, nativeErrors } from '../../core/http/response-schemas.ts'

const loose = { additionalProperties: true }
const tags = ['Files of models']

const Sha256 = Type.String({ pattern: '^[0-9a-f]{64}$', description: '64 hex digits' })

const FileVariantSchema = Type.Object(
  {
    label: Type.String({ description: 'Such as Q8_0' }),
    isDefault: Type.Boolean(),
    revision: Type.String({ description: 'Names these very files' }),
    format: Type.Enum(['gguf', 'safetensors']),
    digest: Sha256,
    files: Type.Array(
      Type.Object(
        {
          path: Type.String(),
          size: Type.Integer({ minimum: 0, description: 'Bytes' }),
          sha256: Sha256,
          role: Type.Enum(['model', 'projector', 'other'])
        },
        loose
      )
    )
  },
  { ...loose, title: 'FileVariant' }
)
export type FileVariant = Static<typeof FileVariantSchema>

const model = {
  owner: Type.String({ description: "The model's owner" }),
  name: Type.String({ description: "The model's name" })
}
const bytes = { 'application/octet-stream': { schema: Type.Unsafe<Buffer>({}) } }
const header = (description: string) => ({ description, schema: Type.String() })
const fileHeaders = {
  etag: header("The file's SHA-256, in quotes"),
  'accept-ranges': header('bytes'),
  'repr-digest': header("The file's SHA-256, as RFC 9530 has it")
}

/** How the routes of models' files are described. */
export const fileOperations = {
  list: {
    summary: 'List the files of a model',
    tags,
    operationId: 'listFiles',
    params: Type.Object(model),
    response: {
      200: json(
        'Its variants',
        Type.Object({ name: Type.String(), variants: Type.Array(FileVariantSchema) }, { ...loose, title: 'ModelFiles' })
      ),
      ...errorResponses(nativeErrors, ['invalid_model_name', 'model_not_found', 'unsupported_capability'], {
        body: false
      })
    }
  },
  get: {
    summary: 'Fetch a file of a model',
    description: 'Only files that the model has in that revision. One range at a time.',
    tags,
    operationId: 'getFile',
    params: Type.Object({
      ...model,
      label: Type.String({ description: 'Variant, such as Q8_0' }),
      revision: Type.String({ description: 'As the list of files gives it' }),
      '*': Type.String({ title: 'path', description: 'As the list of files gives it' })
    }),
    headers: Type.Object({
      range: Type.Optional(Type.String({ description: 'Such as bytes=0-1023' })),
      'if-range': Type.Optional(Type.String({ description: 'The etag that the range is meant of' })),
      'if-none-match': Type.Optional(Type.String({ description: 'An etag that is known already' }))
    }),
    response: {
      200: { description: 'The whole file', headers: fileHeaders, content: bytes },
      206: {
        description: 'The range',
        headers: { ...fileHeaders, 'content-range': header('Such as bytes 0-1023/4096') },
        content: bytes
      },
      304: { description: 'It is the one that is known already', headers: fileHeaders },
      416: json('The range begins behind the file', nativeErrors(['invalid_request'])),
      ...errorResponses(nativeErrors, ['invalid_model_name', 'model_not_found', 'unsupported_capability'], {
        body: false
      })
    }
  }
}
