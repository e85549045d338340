import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import { anyMode, readModelRequest } from '../../../core/answers/model-request.ts'
import { askOnce } from '../../../core/answers/pipeline.ts'
import type { Engine, EngineFields } from '../../../core/contracts/engines.ts'
import type { RunningModel } from '../../../core/contracts/leases.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { CorralError } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { json, MODEL_ERRORS } from '../../../core/http/response-schemas.ts'
import { catalogFor, isAllowed } from '../../../core/models/allowed-models.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { version } from '../../../core/system/package-info.ts'
import type { LlamaDependencies } from './llama-dependencies.ts'
import { llamaRoute } from './llama-error.ts'
import * as schemas from './schemas.ts'

/** Routes that describe the server and the engines. */
export function propsRoutes(app: FastifyInstance, deps: LlamaDependencies): void {
  const { scheduler, catalog } = deps
  for (const [path, operationId] of [
    ['/health', 'getHealthAsLlamaServer'],
    ['/v1/health', 'getHealthOfV1']
  ] as const) {
    app.get(
      path,
      llamaRoute(operationId, "Check that corral is running, as llama-server's clients do", {
        role: 'anyone',
        response: { 200: json('Running', schemas.HealthSchema) }
      }),
      async () => ({ status: 'ok', ...(app.drain.since && { draining: true }) })
    )
  }
  app.get<{ Querystring: Static<typeof schemas.PropsQuery> }>(
    '/props',
    llamaRoute('llamaProps', 'Show properties of the server or of one model', {
      description:
        'Without a model: the properties of the router. With a model: those of its engine. The model is loaded if necessary, unless `autoload` is false.',
      querystring: schemas.PropsQuery,
      response: { 200: json('The properties', schemas.PropsSchema) },
      errors: [...MODEL_ERRORS, 'model_not_loaded', 'forbidden_model']
    }),
    async ({ query, caller }, reply) => {
      if (!query.model) return routerProps(scheduler.stats().maxLoaded)
      const { variant, lease } = readModelRequest(deps, { model: query.model }, caller)
      const running = findRunning(deps, variant)
      if (running) return await modelProps(running.engine, variant, clientSignal(reply))
      if (/^(false|0|no|off)$/i.test(query.autoload ?? '')) throw notLoaded(variant)
      const question = {
        operation: 'tokens',
        body: {},
        lease: { ...lease, mode: anyMode(variant), loadOnly: true }
      } as const
      return await askOnce(deps, reply, question, ({ engine, signal }) => modelProps(engine, variant, signal))
    }
  )
  app.get<{ Querystring: Static<typeof schemas.ModelQuery> }>(
    '/slots',
    llamaRoute('llamaSlots', 'Show the slots of loaded models', {
      description: 'Prompts and answers are never included.',
      querystring: schemas.ModelQuery,
      response: { 200: json('The slots', Type.Array(schemas.SlotSchema)) },
      errors: ['invalid_model_name', 'model_not_found', 'model_not_loaded', 'forbidden_model']
    }),
    async ({ query, caller }, reply) => {
      const signal = clientSignal(reply)
      if (!query.model) {
        const seen = scheduler.running().filter(({ variant }) => isAllowed(caller.models, variant))
        return (await Promise.all(seen.map(one => listSlots(one, signal)))).flat()
      }
      const variant = catalogFor(catalog, caller).get(parseRequestedName(query.model))
      const running = findRunning(deps, variant)
      if (!running) throw notLoaded(variant)
      return await listSlots(running, signal)
    }
  )
  app.get(
    '/tools',
    llamaRoute('llamaTools', 'List the tools that the server runs for models', {
      description: 'Always empty: models cannot access this machine.',
      response: { 200: json('None', Type.Array(Type.Never())) }
    }),
    async () => []
  )
}

/** Finds the running engine of a model. A chat engine is preferred. */
function findRunning({ scheduler }: LlamaDependencies, { key }: Model): RunningModel | undefined {
  const own = scheduler.running().filter(({ variant }) => variant.key === key)
  return own.find(({ mode }) => mode === 'chat') ?? own[0]
}

function notLoaded({ publicName }: Model): CorralError {
  return new CorralError(
    'model_not_loaded',
    `The model "${publicName}" is not loaded. Load it with POST /models/load, or send any request that uses it.`,
    { param: 'model' }
  )
}

const BUILD_INFO = `corral-${version}`

function routerProps(maxLoaded: number): Static<typeof schemas.PropsSchema> {
  return {
    role: 'router',
    max_instances: maxLoaded,
    models_autoload: true,
    model_alias: 'corral',
    model_path: 'none',
    default_generation_settings: { params: {}, n_ctx: 0 },
    ui_settings: {},
    build_info: BUILD_INFO,
    cors_proxy_enabled: false
  }
}

/** Returns the engine's own properties of a loaded model, together with corral's. */
async function modelProps(
  engine: Engine,
  variant: Model,
  signal: AbortSignal
): Promise<Static<typeof schemas.PropsSchema>> {
  const own = (await engine.properties?.({ signal })) ?? {}
  const { capabilities, chatTemplate = '' } = variant.metadata
  return {
    build_info: BUILD_INFO,
    ui_settings: {},
    chat_template: variant.defaults?.template ?? chatTemplate,
    ...own,
    // The engine serves no page, but llama.cpp's page hides models that report this.
    ui: true,
    default_generation_settings: {
      params: {},
      ...(isObject(own.default_generation_settings) && own.default_generation_settings),
      n_ctx: engine.contextSize
    },
    total_slots: engine.slots,
    model_alias: variant.publicName,
    model_path: variant.publicName,
    modalities: {
      vision: capabilities.includes('vision'),
      audio: capabilities.includes('audio'),
      video: false,
      ...(isObject(own.modalities) && own.modalities)
    }
  }
}

/** Returns the slots of an engine. If the engine does not report them, there is one busy slot per running request. */
async function listSlots({ engine, variant, running }: RunningModel, signal: AbortSignal): Promise<EngineFields[]> {
  const states =
    (await engine.slotStates?.({ signal })) ??
    Array.from({ length: engine.slots }, (_, id) => ({ id, n_ctx: engine.contextSize, is_processing: id < running }))
  return states.map(state => ({ ...state, model: variant.publicName }))
}
