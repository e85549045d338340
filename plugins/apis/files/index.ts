import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import type { Catalog } from '../../../core/contracts/models.ts'
import { Format, ModelDescriptionSchema, Sha256 } from '../../../core/contracts/native-records.ts'
import { requireFiles, type Storage, type StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError } from '../../../core/errors.ts'
import { Titled } from '../../../core/http/request-fields.ts'
import { FILE_ERRORS, json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { FILE_REPLIES, sendStoredFile } from '../../../core/http/stored-file-reply.ts'
import { catalogFor } from '../../../core/models/allowed-models.ts'
import { bareName, parseModelName } from '../../../core/models/model-name.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'

export default definePlugin({
  name: 'api-files',
  api: 1,
  description: 'Model files under /api/files, which other corrals download',
  optional: true,
  needs: ['storage', 'catalog'],
  options: Type.Object({}, { restart: true }),
  setup(context) {
    const [storage, catalog] = [context.service('storage'), context.service('catalog')]
    return {
      routes: async app => {
        await app.register(async api => fileRoutes(api, storage, catalog), { prefix: '/api/files' })
      }
    }
  }
})

const FileVariantSchema = Titled('FileVariant', {
  label: Type.String({ description: 'For example Q8_0' }),
  isDefault: Type.Boolean(),
  revision: Type.String({ description: 'Identifies exactly this set of files' }),
  format: Format,
  digest: Sha256(),
  files: ModelDescriptionSchema.properties.files
})
type FileVariant = Static<typeof FileVariantSchema>

const model = {
  owner: Type.String({ description: "The model's owner" }),
  name: Type.String({ description: "The model's name" })
}

/** Serves files of stored models, with ranges and digests. Only files that a manifest names are served. */
function fileRoutes(app: FastifyInstance, storage: Storage, catalog: Catalog): void {
  const route = nativeRouter(app, 'Files of models')
  route('GET /:owner/:name', 'listFiles', 'List the files of a model', {
    role: 'operator',
    params: Type.Object(model),
    response: json(
      'The variants of the model',
      Titled('ModelFiles', { name: Type.String(), variants: Type.Array(FileVariantSchema) })
    ),
    errors: FILE_ERRORS,
    handler: async ({ params, caller }) => {
      const name = parseModelName(`${params.owner}/${params.name}`)
      // The name is built from its parts, because a colon in the path would otherwise select a variant.
      const { model } = requireFiles(catalogFor(catalog, caller).get({ owner: name.owner, name: name.name }))
      return { name: bareName(model), variants: storage.variants(model).map(variantRecord) }
    }
  })

  route('GET,HEAD /:owner/:name/:label/:revision/*', 'getFile', 'Download a file of a model', {
    role: 'operator',
    description: 'Only files that belong to the given revision. One range per request.',
    params: Type.Object({
      ...model,
      label: Type.String({ description: 'Variant, for example Q8_0' }),
      revision: Type.String({ description: 'The revision in the list of files' }),
      '*': Type.String({ title: 'path', description: 'The path in the list of files' })
    }),
    headers: Type.Object({
      range: Type.Optional(Type.String({ description: 'For example bytes=0-1023' })),
      'if-range': Type.Optional(Type.String({ description: 'The etag that the range refers to' })),
      'if-none-match': Type.Optional(Type.String({ description: 'An etag that the client has cached' }))
    }),
    response: FILE_REPLIES,
    errors: FILE_ERRORS,
    handler: async (request, reply) => {
      const { owner, name, label, revision, '*': path } = request.params
      const variant = requireFiles(catalogFor(catalog, request.caller).get(parseModelName(`${owner}/${name}:${label}`)))
      const file = variant.files.find(file => file.path === path)
      if (variant.revision !== revision || !file) throw notFound(variant, revision, path)
      return await sendStoredFile(request, reply, storage, variant, file)
    }
  })
}

function variantRecord({ label, isDefault, revision, format, digest, files }: StoredVariant): FileVariant {
  return {
    label,
    isDefault,
    revision,
    format,
    digest,
    files: files.map(({ path, size, sha256, role }) => ({ path, size, sha256, role }))
  }
}

function notFound({ publicName, revision }: StoredVariant, requested: string, path: string): CorralError {
  const shown = JSON.stringify(path.length > 200 ? `${path.slice(0, 200)}…` : path)
  return new CorralError(
    'model_not_found',
    revision === requested
      ? `The model "${publicName}" has no file ${shown}. List its files and request one of them.`
      : `The model "${publicName}" no longer has that revision. List its files again.`,
    { param: 'path' }
  )
}
