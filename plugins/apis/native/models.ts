import { isAbsolute } from 'node:path'
import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import { callerLease } from '../../../core/answers/caller-lease.ts'
import { reportUnknownOptions } from '../../../core/answers/unknown-options.ts'
import type { Caller } from '../../../core/contracts/callers.ts'
import type { ConvertedModel } from '../../../core/contracts/conversion.ts'
import type { EngineMode } from '../../../core/contracts/engines.ts'
import { FoundModelsSchema } from '../../../core/contracts/found-models.ts'
import type { Model } from '../../../core/contracts/models.ts'
import {
  type ConversionRecord,
  ConvertedSchema,
  Done,
  ImportedSchema,
  LoadingModelSchema,
  LocalModelSchema,
  ModelDescriptionSchema,
  OllamaModelDescriptionSchema,
  PoolSchema,
  PullSchema,
  RunningModelSchema
} from '../../../core/contracts/native-records.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { hasFiles, requireFiles, type StoredVariant } from '../../../core/contracts/storage.ts'
import { errorCodes, invalidRequest } from '../../../core/errors.ts'
import { LIST_HEADERS, ListBody, NOT_MODIFIED } from '../../../core/http/list-body.ts'
import { each, Given, keep_alive, Loose, named, options, Titled } from '../../../core/http/request-fields.ts'
import { DISK_ERRORS, FILE_ERRORS, json, MODEL_ERRORS, nativeRouter } from '../../../core/http/response-schemas.ts'
import { hasRole } from '../../../core/http/roles.ts'
import { aliasesByModel, catalogFor, isAllowed } from '../../../core/models/allowed-models.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../core/models/load-options.ts'
import { deleteModel, nameToDelete } from '../../../core/models/model-deletion.ts'
import { parseRequestedName, publicModelName } from '../../../core/models/model-name.ts'
import { defaultMode } from '../../../core/models/model-operations.ts'
import { parseKeepAlive, parseOptions } from '../../../core/models/options.ts'
import { refuseWhilePulled } from '../../../core/models/stored-variant.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import {
  aliasRecord,
  isHere,
  loadingRecord,
  localRecord,
  modelDetails,
  poolRecords,
  requestedName,
  runningRecord,
  showRecord
} from './records.ts'

const CONVERSION_ERRORS = errorCodes('invalid_option conversion_failed conversion_not_installed runtime_missing')

const NamedRequestSchema = Titled('NamedRequest', named)
const ConvertRequestSchema = Titled('ConvertRequest', {
  ...named,
  dtype: Given(Type.String({ minLength: 1 })),
  stream: Given(Type.Boolean({ default: true }))
})
const ImportRequestSchema = Titled('ImportRequest', {
  ...named,
  ...each(Given(Type.String({ minLength: 1 })), 'path', 'from', 'found'),
  stream: Given(Type.Boolean({ default: false }))
})

export function modelRoutes(app: FastifyInstance, deps: NativeDependencies): void {
  const route = nativeRouter(app, 'Models')
  const importRoute = nativeRouter(app, 'Imports')
  const conversionRoute = nativeRouter(app, 'Conversions')
  const { storage, catalog, engines, scheduler, conversion, downloads, adoption, naming, streams } = deps

  /** Returns the record of a model on another server, or nothing if the caller may not use it. */
  function seenElsewhere<StoredRecord extends { name: string; model: string }>(
    record: StoredRecord,
    { models }: Caller
  ): StoredRecord[] {
    const variant = catalog.find(parseRequestedName(record.name))
    if (!variant || !isAllowed(models, variant)) return []
    const name = naming.shown(variant)
    const details = 'details' in record && naming.plainDetails && { details: modelDetails(variant, naming) }
    return [{ ...record, name, model: name, ...details }]
  }

  const body = new ListBody()
  route('GET /tags', 'listLocalModels', 'List the models on disk', {
    headers: LIST_HEADERS,
    response: {
      200: json('One record for each variant', Loose({ models: Type.Array(LocalModelSchema) })),
      304: NOT_MODIFIED
    },
    handler: async ({ caller }, reply) => {
      const models = catalogFor(catalog, caller)
      const all = models.list()
      const aliases = models.aliases()
      const names = aliasesByModel(aliases)
      const toRecord = (model: Model, alias?: string) =>
        alias === undefined ? localRecord(model, naming, names.get(model.key)) : aliasRecord({ alias, model }, naming)
      if (caller.models === undefined) {
        return body.send(reply, all, aliases, {
          heads: ['{"models":['],
          tail: ']}',
          followNames: true,
          factOf(model) {
            const shown = naming.shown(model)
            const own = names.get(model.key)
            return own ? `${shown} ${own.join(' ')}` : shown
          },
          textsOf: (model, alias) => [JSON.stringify(toRecord(model, alias))]
        })
      }
      return {
        models: [
          ...all.map(model => toRecord(model)),
          ...aliases.flatMap(({ alias, model }) => toRecord(model, alias) ?? [])
        ]
      }
    }
  })

  route('GET /ps', 'listRunningModels', 'List the models in memory', {
    response: json(
      'Models that are ready, the last ones to be unloaded first, and models that are being loaded or unloaded',
      Loose({
        models: Type.Array(RunningModelSchema),
        loading: Type.Array(LoadingModelSchema),
        memory: Type.Optional(Type.Array(PoolSchema)),
        pulls: Type.Optional(Type.Array(PullSchema))
      })
    ),
    handler: async ({ caller }) => {
      const isOwn = isHere(engines)
      const isSeen = (model: { variant: Model; mode: EngineMode }) =>
        isOwn(model) && isAllowed(caller.models, model.variant)
      const { running, loading } = engines.elsewhere()
      const models = [
        ...scheduler
          .running()
          .filter(isSeen)
          .map(model => runningRecord(model, naming)),
        ...running.flatMap(record => seenElsewhere(record, caller))
      ]
      return {
        // Ollama's order: the model that stays longest is first.
        models: models.sort((one, other) => other.expires_at.localeCompare(one.expires_at)),
        loading: [
          ...scheduler
            .loading()
            .filter(isSeen)
            .map(model => loadingRecord(model, naming)),
          ...loading.flatMap(record => seenElsewhere(record, caller))
        ],
        ...(hasRole(caller.role, 'operator') && {
          memory: poolRecords(scheduler.stats(), await engines.used().catch(() => ({}))),
          pulls: downloads.list()
        })
      }
    }
  })

  route('POST /show', 'showModel', 'Show details of a model', {
    audited: false,
    body: NamedRequestSchema,
    response: json('Its details', naming.plainDetails ? OllamaModelDescriptionSchema : ModelDescriptionSchema),
    errors: FILE_ERRORS,
    handler: async ({ body, caller }) => {
      const variant = catalogFor(catalog, caller).get(parseRequestedName(requestedName(body)))
      const limits = deps.answers.limits(caller)(variant)
      const record = showRecord(variant, naming, deps.modelfile(variant), caller.role, limits)
      if (!hasFiles(variant) || variant.format !== 'safetensors') return record
      return { ...record, conversions: (await conversion.list(variant)).map(conversionRecord) }
    }
  })

  route('DELETE /delete', 'deleteModel', 'Delete a model from disk', {
    role: 'operator',
    body: NamedRequestSchema,
    response: json('Deleted', Done('deleted')),
    errors: FILE_ERRORS,
    handler: async ({ body, caller }) => {
      const full = nameToDelete(catalogFor(catalog, caller), parseRequestedName(requestedName(body)))
      await deleteModel(deps, naming.toDelete?.(full) ?? full)
      return { status: 'deleted' }
    }
  })

  route('POST /default', 'setDefaultVariant', 'Choose the default variant of a model', {
    role: 'operator',
    body: NamedRequestSchema,
    response: json('The variant', Loose({ status: Type.Literal('success'), model: LocalModelSchema })),
    errors: FILE_ERRORS,
    handler: async ({ body, caller }) => {
      const { model } = requireFiles(catalogFor(catalog, caller).get(parseRequestedName(requestedName(body))))
      return { status: 'success', model: localRecord(await storage.setDefault(model), naming) }
    }
  })

  route('POST /stop', 'stopModel', 'Unload a model', {
    role: 'operator',
    body: NamedRequestSchema,
    response: json('Unloaded', Done('stopped')),
    errors: [...FILE_ERRORS, 'model_not_loaded'],
    handler: async ({ body, caller }) => {
      const variant = catalogFor(catalog, caller).get(parseRequestedName(requestedName(body)))
      await scheduler.stop(publicModelName(variant))
      return { status: 'stopped' }
    }
  })

  route('POST /load', 'loadModel', 'Load a model', {
    role: 'operator',
    body: Titled('LoadRequest', { ...named, stream: Given(Type.Boolean({ default: false })), options, keep_alive }),
    response: streams.workReply('Ready', Done('ready')),
    errors: [...MODEL_ERRORS, 'invalid_option', 'unsupported_capability'],
    handler: async ({ body, caller }, reply) => {
      const variant = catalogFor(catalog, caller).get(parseRequestedName(requestedName(body)))
      const options = parseOptions(body.options).load
      const keepAlive = parseKeepAlive(body.keep_alive)
      const mode = defaultMode(variant)
      reportUnknownOptions(deps, reply, variant, mode)
      return await streams.replyToWork(reply, body, async waiting => {
        const wanted = { model: publicModelName(variant), mode, options, keepAlive, loadOnly: true }
        const lease = await scheduler.lease({ ...callerLease(reply), ...wanted, ...waiting })
        lease.release()
        return { status: 'ready' }
      })
    }
  })

  importRoute('GET /import/found', 'findImports', 'List the models of another tool on this machine', {
    role: 'operator',
    querystring: Type.Object({
      from: Type.Optional(Type.String({ description: 'The tool: huggingface, ollama or lm-studio' }))
    }),
    response: json('Contents of its cache', FoundModelsSchema),
    errors: ['invalid_request', 'path_not_allowed'],
    handler: async ({ query, caller }) => adoption.find(query.from ?? '', caller)
  })

  importRoute('POST /import', 'importModel', 'Import a model that is on this machine', {
    role: 'operator',
    body: ImportRequestSchema,
    response: streams.workReply('The stored variant', ImportedSchema),
    errors: ['invalid_model_name', 'model_not_found', 'model_exists', ...DISK_ERRORS, 'path_not_allowed'],
    handler: async ({ body, caller }, reply) => {
      const take = await planImport(deps, body, caller)
      const work = async (waiting: Waiting) => ({ status: 'success', ...(await take(waiting)) })
      const named = { model: requestedName(body) || (body.found ?? null) }
      return await streams.replyToWork(reply, body, work, { named })
    }
  })

  conversionRoute('POST /convert', 'convertModel', 'Convert a SafeTensors model ahead of time', {
    role: 'operator',
    body: ConvertRequestSchema,
    response: streams.workReply('The converted model', ConvertedSchema),
    errors: [...FILE_ERRORS, ...DISK_ERRORS, ...CONVERSION_ERRORS],
    handler: async ({ body, caller }, reply) => {
      const variant = requireFiles(catalogFor(catalog, caller).get(parseRequestedName(requestedName(body))))
      const dtype = conversion.requireDtype(body.dtype ?? DEFAULT_LOAD_OPTIONS.dtype)
      const work = async (waiting: Waiting) => {
        const made = await conversion.convert(variant, dtype, waiting)
        return { status: 'success', model: requestedName(body), ...conversionRecord(made) }
      }
      return await streams.replyToWork(reply, body, work, { streams: true })
    }
  })

  conversionRoute('POST /conversion/install', 'installConversionRuntime', 'Install the converter', {
    role: 'operator',
    body: Loose({ stream: Given(Type.Boolean({ default: true })) }),
    bodyOptional: true,
    response: streams.workReply('The converter is installed', Done('success')),
    errors: ['conversion_failed', 'runtime_missing', ...DISK_ERRORS],
    handler: async ({ body }, reply) => {
      const work = async (waiting: Waiting) => {
        await conversion.install(waiting)
        return { status: 'success' }
      }
      return await streams.replyToWork(reply, body, work, { streams: true })
    }
  })

  conversionRoute('DELETE /convert', 'deleteConversion', 'Delete a converted model', {
    role: 'operator',
    body: ConvertRequestSchema,
    response: json('Deleted', Done('deleted')),
    errors: [...FILE_ERRORS, 'invalid_option', ...DISK_ERRORS],
    handler: async ({ body, caller }) => {
      const variant = requireFiles(catalogFor(catalog, caller).get(parseRequestedName(requestedName(body))))
      if (!body.dtype) {
        throw invalid(
          'The request does not say which conversion to delete. Set "dtype", for example to "q4_k_m".',
          'dtype'
        )
      }
      const dtype = conversion.requireDtype(body.dtype)
      const made = (await conversion.list(variant)).find(model => model.dtype === dtype)
      if (made) requireUnused(deps, variant, made)
      await conversion.remove(variant, dtype)
      return { status: 'deleted' }
    }
  })
}

const invalid = (message: string, param: string) => invalidRequest(param, message)

function conversionRecord({ dtype, size, createdAt, converter, projectorPath }: ConvertedModel): ConversionRecord {
  return { dtype, size, created_at: createdAt, converter, projector: projectorPath !== undefined }
}

function requireUnused(
  { scheduler, conversion }: NativeDependencies,
  { key, revision, publicName }: StoredVariant,
  { dtype }: ConvertedModel
): void {
  const runs = scheduler.running().some(({ variant, options }) => {
    const isLoaded = variant.key === key && variant.revision === revision
    return isLoaded && conversion.requireDtype(options.dtype) === dtype
  })
  if (!runs && !scheduler.loading().some(({ variant }) => variant.key === key)) return
  throw invalid(
    `The ${dtype} conversion of "${publicName}" is in use: the model is ${runs ? 'loaded' : 'being loaded'}. ` +
      `Stop it first ("corral stop ${publicName}", POST /api/stop), then delete it.`,
    'model'
  )
}

/** Validates an import request before a reply is sent. @returns a function that runs the import */
async function planImport(
  { storage, adoption, downloads, naming }: NativeDependencies,
  body: Static<typeof ImportRequestSchema>,
  caller: Caller
): Promise<(waiting: Waiting) => Promise<Record<string, unknown>>> {
  const { path, from, found } = body
  if (from && found && !path) {
    const ownName = async () => (await adoption.find(from, caller)).models.find(model => model.found === found)?.name
    const text = requestedName(body) || (await ownName())
    const name = text === undefined ? undefined : naming.toCreate(text)
    if (name) refuseWhilePulled(downloads, name)
    return async waiting => {
      const { variant, ...how } = await adoption.adopt(from, found, name, waiting, caller)
      return { model: localRecord(variant, naming), ...how }
    }
  }
  if (!path || from || found) {
    throw invalid(
      'The request does not say what to import. Set either "path" to files on the server, or "from" and "found" as listed by GET /api/import/found.',
      'path'
    )
  }
  const name = naming.toCreate(requestedName(body))
  if (!isAbsolute(path))
    throw invalid('"path" must be absolute because the server does not know your current folder.', 'path')
  refuseWhilePulled(downloads, name)
  return async waiting => ({ model: localRecord(await storage.import({ path, name, caller }, waiting), naming) })
}
