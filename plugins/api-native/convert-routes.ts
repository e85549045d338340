import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import type { ConvertedModel } from '../../core/contracts/conversion.ts'
import type { ConversionRecord } from '../../core/contracts/native-records.ts'
import { requireFiles, type StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../core/models/options.ts'
import type { MountedDependencies } from './native-dependencies.ts'
import { progressReplies } from './native-streams.ts'
import { diskOperations } from './operations/on-disk.ts'
import { nameOf } from './records.ts'

/** A GGUF made of a SafeTensors model, as `/api/show` and `/api/convert` tell of it. */
export function conversionRecord({
  dtype,
  size,
  createdAt,
  converter,
  projectorPath
}: ConvertedModel): ConversionRecord {
  return { dtype, size, created_at: createdAt, converter, projector: projectorPath !== undefined }
}

/** Conversions ahead of time, and the end of what they made. */
export function convertRoutes(deps: MountedDependencies): FastifyPluginAsync {
  const { catalog, scheduler, conversion, naming } = deps
  const withProgress = progressReplies(deps.streams)

  function requireUnused(variant: StoredVariant, dtype: string, made: ConvertedModel | undefined): void {
    const runs = scheduler
      .running()
      .some(
        ({ variant: { key, revision }, options }) =>
          made &&
          key === variant.key &&
          revision === variant.revision &&
          conversion.requireDtype(options.dtype) === made.dtype
      )
    const loads = scheduler.loading().some(loading => loading.variant.key === variant.key)
    if (!runs && !loads) return
    throw new CorralError(
      'invalid_request',
      `The ${dtype} of "${variant.publicName}" is in use: the model is ${runs ? 'loaded' : 'being loaded'}. ` +
        `Stop it first ("corral stop ${variant.publicName}", POST /api/stop), then delete it.`,
      { param: 'model' }
    )
  }

  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const operations = diskOperations(deps.streams.types)

    app.post('/convert', { schema: operations.convert }, async (request, reply) => {
      const { body } = request
      const variant = requireFiles(catalog.get(naming.parse(nameOf(body))))
      const dtype = conversion.requireDtype(body.dtype ?? DEFAULT_LOAD_OPTIONS.dtype)
      return await withProgress(
        request,
        reply,
        { ...body, stream: body.stream ?? true },
        async (signal, onProgress) => {
          const made = await conversion.convert(variant, dtype, { signal, onProgress })
          return { status: 'success', model: nameOf(body), ...conversionRecord(made) }
        }
      )
    })

    app.delete('/convert', { schema: operations.removeConversion }, async ({ body }) => {
      const variant = requireFiles(catalog.get(naming.parse(nameOf(body))))
      if (!body.dtype) {
        throw new CorralError('invalid_request', 'Say which type is to be deleted: "dtype", such as "q4_k_m".', {
          param: 'dtype'
        })
      }
      const dtype = conversion.requireDtype(body.dtype)
      const made = (await conversion.list(variant)).find(model => model.dtype === dtype)
      requireUnused(variant, dtype, made)
      await conversion.remove(variant, dtype)
      return { status: 'deleted' }
    })
  }
}
