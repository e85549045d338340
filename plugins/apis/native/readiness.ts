import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import type { RuntimesReport } from '../../../core/contracts/builds.ts'
import { hasFiles } from '../../../core/contracts/storage.ts'
import { CorralError } from '../../../core/errors.ts'
import { type Drain, drainingError } from '../../../core/http/draining.ts'
import { nativeErrorBody } from '../../../core/http/native-error.ts'
import { Flag, Integer, Loose, Titled } from '../../../core/http/request-fields.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import type { NativeDependencies } from './native-dependencies.ts'

const DrainStateSchema = Titled('DrainState', {
  draining: Flag('Whether new requests for models are refused'),
  since: Type.Optional(Type.String({ format: 'date-time' })),
  open: Integer('Number of running and waiting requests for models')
})
export type DrainState = Static<typeof DrainStateSchema>

/** Routes for supervisors and load balancers, and for taking a server out of service before it stops. */
export function readinessRoutes(app: FastifyInstance, { runtimes, catalog }: NativeDependencies): void {
  function whyNotReady(drain: Drain): CorralError | undefined {
    if (drain.since) return drainingError()
    // Models on other servers need no build.
    if (runtimes.current() || catalog.list().some(model => !hasFiles(model))) return undefined
    const state = runtimes.state()
    // Normally a request starts the search again, but a server that is not ready gets no requests.
    if (state === 'failed') runtimes.build().catch(() => {})
    return noBuild(state)
  }
  const route = nativeRouter(app, 'Server')
  const { drain, log } = app
  route('GET /livez', 'getLive', 'Check that the process responds', {
    role: 'anyone',
    response: json('The process responds', Loose({ status: Type.Literal('ok') })),
    handler: async () => ({ status: 'ok' })
  })
  route('GET /readyz', 'getReady', 'Check that models can be used', {
    role: 'anyone',
    response: json('Models can be used', Loose({ status: Type.Literal('ok') })),
    errors: ['runtime_missing', 'draining'],
    handler: async (request, reply) => {
      const error = whyNotReady(drain)
      // Sent without throwing, so that frequent probes do not fill the log.
      return error ? reply.code(error.status).send(nativeErrorBody(error, request)) : { status: 'ok' }
    }
  })
  const state = (): DrainState => ({
    draining: drain.since !== undefined,
    ...(drain.since && { since: drain.since.toISOString() }),
    open: drain.open
  })
  route('GET /api/drain', 'getDrain', 'Show whether the server drains, and how many requests are open', {
    role: 'operator',
    response: json('The state', DrainStateSchema),
    handler: async () => state()
  })
  route('POST /api/drain', 'startDrain', 'Refuse new requests for models', {
    role: 'admin',
    response: json('The state', DrainStateSchema),
    errors: ['invalid_request', 'invalid_json'],
    handler: async () => {
      if (!drain.since) log.info({ open: drain.open }, 'draining: new requests for models are refused')
      drain.begin()
      return state()
    }
  })
  route('DELETE /api/drain', 'endDrain', 'Accept new requests for models again', {
    role: 'admin',
    response: json('The state', DrainStateSchema),
    errors: ['invalid_request', 'invalid_json'],
    handler: async () => {
      if (drain.since) log.info('no longer draining: new requests for models are accepted again')
      drain.end()
      return state()
    }
  })
}

/** The attempts may contain paths, which are not disclosed to everyone. */
function noBuild(state: RuntimesReport['state']): CorralError {
  const text = state === 'failed' ? 'No llama.cpp build works on this machine' : 'No llama.cpp build has been found yet'
  const help = 'Run "corral doctor" on the server to see what was tried and what is missing.'
  return new CorralError('runtime_missing', `${text}, so no model can be loaded. Try again later. ${help}`)
}
