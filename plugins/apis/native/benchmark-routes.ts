import { once } from 'node:events'
import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import type { Caller } from '../../../core/contracts/callers.ts'
import { WorkStepSchema } from '../../../core/contracts/native-records.ts'
import { progressText } from '../../../core/contracts/progress.ts'
import * as trials from '../../../core/contracts/trials.ts'
import { CorralError, type ErrorCode } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { Count, Loose, named, Titled } from '../../../core/http/request-fields.ts'
import { FILE_ERRORS, json, MODEL_ERRORS, nativeRouter } from '../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../core/models/allowed-models.ts'
import { parseRequestedName, publicModelName } from '../../../core/models/model-name.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import { requestedName } from './records.ts'

const ActivitySchema = Titled('Activity', {
  requests: Count('Requests for models since the server started, including loads'),
  running: Count('Requests that are being answered'),
  waiting: Count('Requests that are waiting')
})
export type Activity = Static<typeof ActivitySchema>

const settings = Type.Optional(trials.TrialSettingsSchema)

/** Errors in the request itself. Nothing was tried, so they end the stream. */
const REQUEST_ERRORS: readonly ErrorCode[] = [
  'trial_running',
  'model_not_found',
  'unsupported_capability',
  'invalid_request',
  'shutting_down'
]

/** Trials of other settings, for `corral bench`. They need an admin, because a trial can set engine flags. */
export function benchmarkRoutes(app: FastifyInstance, { catalog, scheduler, engines, streams }: NativeDependencies) {
  const requestedModel = (name: string, caller: Caller) =>
    publicModelName(catalogFor(catalog, caller).get(parseRequestedName(name)))
  const route = nativeRouter(app, 'Trials')

  route('POST /trials', 'tryModel', 'Load a model with other settings temporarily', {
    role: 'admin',
    body: Titled('TrialRequest', {
      ...named,
      session: Type.String({ minLength: 1, maxLength: 100 }),
      settings
    }),
    response: {
      description: 'Steps of the load, then what is loaded or why loading failed; the stream stays open after that',
      content: Object.fromEntries(
        streams.types.map(type => [
          type,
          { schema: Type.Union([trials.TrialRecordSchema, trials.TrialFailureSchema, WorkStepSchema]) }
        ])
      )
    },
    errors: [...MODEL_ERRORS, 'unsupported_capability', 'trial_running', 'invalid_option'],
    handler: async ({ body, caller }, reply) => {
      const model = requestedModel(requestedName(body), caller)
      const signal = clientSignal(reply)
      await streams.reply(reply, async stream => {
        let lastStatus = ''
        const onProgress = (progress: Parameters<typeof progressText>[0]) => {
          const status = progressText(progress)
          if (status !== lastStatus) void stream.send({ status })
          lastStatus = status
          stream.status = status
        }
        try {
          const trial = { model, settings: body.settings ?? {}, session: body.session, signal, onProgress }
          const { variant, mode, loadTime, engine, options } = await scheduler.trial(trial)
          const build = engines.logs(variant)[0]?.build
          const record: trials.TrialRecord = {
            status: 'ready',
            model: variant.publicName,
            label: variant.label,
            mode,
            load_duration: Math.round(loadTime * 1e6),
            context_length: engine.contextSize,
            slots: engine.slots,
            provider: engine.provider,
            ...(build !== undefined && { build }),
            options
          }
          await stream.send(record)
        } catch (error) {
          if (!(error instanceof CorralError) || REQUEST_ERRORS.includes(error.code) || signal.aborted) throw error
          const failure: trials.TrialFailure = { status: 'failed', reason: error.message, code: error.code }
          await stream.send(failure)
        }
        stream.status = 'holding'
        if (!signal.aborted) await once(signal, 'abort')
      })
    }
  })

  route('POST /trials/tunables', 'listTunables', 'List the settings that a trial may change', {
    role: 'admin',
    audited: false,
    body: Titled('TunablesRequest', { ...named, settings }),
    response: json(
      'Most important first',
      Loose({
        tunables: Type.Array(trials.TunableSchema),
        file: Type.Union([Type.String(), Type.Null()])
      })
    ),
    errors: [...FILE_ERRORS, 'runtime_missing'],
    handler: async ({ body, caller }) => ({
      tunables: await scheduler.tunables(requestedModel(requestedName(body), caller), body.settings ?? {}),
      file: app.configFile() ?? null
    })
  })

  route('GET /trials/activity', 'getActivity', 'Show how busy the server is', {
    role: 'operator',
    response: json('Requests to all models', ActivitySchema),
    handler: async (): Promise<Activity> => {
      const { requests, engines } = scheduler.stats()
      const sum = (of: 'running' | 'waiting') => engines.reduce((total, engine) => total + engine[of], 0)
      return { requests, running: sum('running'), waiting: sum('waiting') }
    }
  })
}
