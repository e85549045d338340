import { basename, join } from 'node:path'
import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import { reportUnknownParameters } from '../../../../core/answers/unknown-options.ts'
import type { CoreConfig } from '../../../../core/config/core-schema.ts'
import type { AdoptedFile, AdoptRequest } from '../../../../core/contracts/adopted-files.ts'
import type { Caller } from '../../../../core/contracts/callers.ts'
import type { ModelDefaults } from '../../../../core/contracts/models.ts'
import type { EventStreams, ModelNaming } from '../../../../core/contracts/native-api.ts'
import { Done, WorkStepSchema } from '../../../../core/contracts/native-records.ts'
import type { Services } from '../../../../core/contracts/services.ts'
import { requireFiles, type StoredVariant } from '../../../../core/contracts/storage.ts'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { clientSignal } from '../../../../core/http/client-disconnect.ts'
import { Given, Loose, Text, Titled } from '../../../../core/http/request-fields.ts'
import {
  DISK_ERRORS,
  FILE_ERRORS,
  json,
  jsonOrStream,
  nativeRouter,
  WorkFailureSchema
} from '../../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../../core/models/allowed-models.ts'
import { type ModelName, parseRequestedName } from '../../../../core/models/model-name.ts'
import { refuseWhilePulled } from '../../../../core/models/stored-variant.ts'
import { type BlobStore, blobRoutes, type UploadSlots } from './blobs.ts'
import { CreateRequestSchema, detectFiles, mergedDefaults, type NewModel, readCreateRequest } from './create-request.ts'

const CopyRequestSchema = Titled('CopyRequest', {
  source: Text('Model to copy'),
  destination: Text('Its new name')
})
const CREATE_ERRORS: ErrorCode[] = [...FILE_ERRORS, 'model_exists', ...DISK_ERRORS]

type Needed = 'storage' | 'catalog' | 'scheduler' | 'engines' | 'downloads' | 'conversion'

interface CreateDependencies extends Pick<Services, Needed> {
  config: Pick<CoreConfig, 'limits'>
  blobs: BlobStore
  uploads: UploadSlots
  /** Stall timeout of uploads in milliseconds, see `paced`. */
  uploadStall: number
}

export async function createModelRoutes(
  instance: FastifyInstance,
  deps: CreateDependencies,
  naming: ModelNaming,
  streams: EventStreams
): Promise<void> {
  const stored = (name: unknown, caller: Caller) =>
    requireFiles(catalogFor(deps.catalog, caller).get(parseRequestedName(name)))
  const newName = naming.toCreate

  await instance.register(async scope => blobRoutes(scope, deps.blobs, deps.uploads, deps.uploadStall))
  await instance.register(async app => {
    const route = nativeRouter(app, 'Models')
    route('POST /copy', 'copyModel', 'Copy a model', {
      role: 'operator',
      body: CopyRequestSchema,
      response: json('Copied', Done('success')),
      errors: CREATE_ERRORS,
      handler: async ({ body, caller }, reply) => {
        await new ModelMaker(deps, newName(body.destination), clientSignal(reply)).copy(stored(body.source, caller))
        return { status: 'success' }
      }
    })

    route('POST /create', 'createModel', 'Create a model from another model or from uploaded files', {
      role: 'operator',
      body: CreateRequestSchema,
      bodySize: 'large',
      response: jsonOrStream('Created', Done('success'), {
        event: 'Progress; the last event is `success` or the error',
        item: Type.Union([WorkFailureSchema, WorkStepSchema]),
        types: ['text/event-stream', 'application/x-ndjson']
      }),
      errors: [...CREATE_ERRORS, 'invalid_option'],
      handler: async ({ body, caller }, reply) => {
        const name = newName(body.model || body.name)
        const making = readCreateRequest(body)
        reportUnknownParameters(deps.config, reply, making.defaults.options, deps.engines.knownOptions())
        const source = 'from' in making.source ? stored(making.source.from, caller) : undefined
        const signal = clientSignal(reply)
        const success = { status: 'success' }
        if (body.stream === false) {
          await new ModelMaker(deps, name, signal).create(making, source)
          return success
        }
        return await streams.reply(reply, async stream => {
          const report: Report = (status, progress) => {
            stream.status = status
            void stream.send({ status, ...progress })
          }
          await new ModelMaker(deps, name, signal, report).create(making, source)
          return success
        })
      }
    })

    route('POST /push', 'pushModel', 'Publish a model (not supported)', {
      role: 'operator',
      body: Loose({
        model: Given(Text('Model to publish')),
        name: Given(Text('The same as model'))
      }),
      errors: ['not_implemented', 'invalid_model_name'],
      handler: async ({ body }) => {
        const name = body.model || body.name
        const message =
          `corral does not publish models${name ? `: ${JSON.stringify(name.slice(0, 200))} stays on this machine` : ''}. ` +
          'Another corral can pull it from here ("corral pull corral://<host>:<port>/<owner>/<name>"); ' +
          "to publish it, upload its files with the hub's own tools."
        throw new CorralError('not_implemented', message)
      }
    })
  })
}

type Report = (status: string, progress?: { digest: string; completed: number; total: number }) => void

class ModelMaker {
  readonly #deps: CreateDependencies
  readonly #name: ModelName
  readonly #signal: AbortSignal
  readonly #report: Report

  constructor(deps: CreateDependencies, name: ModelName, signal: AbortSignal, report: Report = () => {}) {
    this.#deps = deps
    this.#name = name
    this.#signal = signal
    this.#report = report
  }

  async copy(source: StoredVariant): Promise<void> {
    const { downloads, storage } = this.#deps
    const name = this.#name
    refuseWhilePulled(downloads, name)
    // A name without a tag may resolve to a variant that was created under a tag. That variant has another name.
    const isItself = name.variant !== undefined || source.origin.tag === undefined
    if (isItself && storage.find(name)?.key === source.key) return
    await this.#createFrom(source, source.defaults)
  }

  /** @throws CorralError `model_exists`, `invalid_request`, `insufficient_storage`, and those of `Conversion.quantize` */
  async create({ source: wanted, defaults, quantize }: NewModel, source: StoredVariant | undefined): Promise<void> {
    const { downloads, engines, conversion, blobs } = this.#deps
    refuseWhilePulled(downloads, this.#name)
    if (defaults.template !== undefined) await engines.checkTemplate(defaults.template, this.#signal)
    const dtype = quantize === undefined ? undefined : conversion.requireDtype(quantize)
    /** SafeTensors weights are converted at load time, so the type becomes an option of the new model. */
    const defaultsFor = (format: StoredVariant['format']) =>
      dtype === undefined || format === 'gguf' ? defaults : { ...defaults, options: { ...defaults.options, dtype } }
    if (source) {
      const merged = mergedDefaults(source.defaults, defaultsFor(source.format))
      const isThatType = source.metadata.quantization?.toLowerCase() === dtype
      await this.#createFrom(source, merged, isThatType ? undefined : dtype)
    } else if ('files' in wanted) {
      const digests = wanted.files.map(({ sha256 }) => sha256)
      await blobs.use(digests, async paths => {
        this.#report('parsing files')
        const model = await detectFiles(wanted.files.map((file, index) => ({ ...file, path: paths[index]! })))
        await this.#adopt(
          { ...model, from: 'uploaded files' },
          mergedDefaults(undefined, defaultsFor(model.format)),
          dtype
        )
      })
    }
  }

  /** @param dtype weight type to quantize a GGUF to */
  async #createFrom(source: StoredVariant, defaults: ModelDefaults | undefined, dtype?: string): Promise<void> {
    const { directory, format, publicName: from } = source
    const release = this.#deps.storage.hold(source)
    try {
      const files = source.files.map(({ path, role, sha256 }) => {
        return { source: join(directory, ...path.split('/')), path, role, sha256 }
      })
      await this.#adopt({ format, files, from }, defaults, dtype)
    } finally {
      release()
    }
  }

  async #adopt(
    { from, ...files }: Pick<AdoptRequest, 'format' | 'files'> & { from: string },
    defaults: ModelDefaults | undefined,
    dtype: string | undefined
  ): Promise<void> {
    const origin = { kind: 'made' as const, from }
    const request: AdoptRequest = { name: this.#name, origin, ...files, ...(defaults && { defaults }) }
    if (dtype === undefined || request.format !== 'gguf') return await this.#store(request)
    await this.#deps.blobs.withFolder(async folder => {
      await this.#store({ ...request, files: await this.#quantized(request.files, dtype, folder) })
    })
  }

  async #quantized(files: readonly AdoptedFile[], dtype: string, folder: string): Promise<AdoptedFile[]> {
    const isWeights = ({ role }: AdoptedFile) => role === 'model'
    const weights = files.filter(isWeights)
    const name = basename(weights[0]!.path, '.gguf').replace(/-\d{5}-of-\d{5}$/, '')
    const path = `${name}-${dtype.toUpperCase()}.gguf`
    await this.#deps.conversion.quantize(weights, join(folder, path), dtype, {
      signal: this.#signal,
      onProgress: ({ completed, total }) => {
        if (completed === undefined || total === undefined) return
        this.#report(`quantizing model to ${dtype.toUpperCase()}`, { digest: path, completed, total })
      }
    })
    return [{ source: join(folder, path), path, role: 'model' }, ...files.filter(file => !isWeights(file))]
  }

  async #store(request: AdoptRequest): Promise<void> {
    const { storage, scheduler } = this.#deps
    const before = storage.find(request.name)
    const copying = new Set<string>()
    const digests = new Map(request.files.map(({ path, sha256 }) => [path, `sha256:${sha256}`]))
    for (const digest of new Set(digests.values())) this.#report(`using existing layer ${digest}`)
    const made = await storage.adopt(request, {
      signal: this.#signal,
      onProgress: ({ subject, completed, total }) => {
        if (completed === undefined || total === undefined) return
        // A linked file is complete immediately.
        if (completed === total && !copying.has(subject)) return
        copying.add(subject)
        this.#report(`copying ${subject}`, { digest: digests.get(subject) ?? subject, completed, total })
      }
    })
    this.#report('writing manifest')
    if (before && before.revision !== made.revision) scheduler.keepAlive(made.model, 0)
  }
}
