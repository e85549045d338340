import type { FastifyPluginAsync } from 'fastify'
import { type Static, Type } from 'typebox'
import type { RuntimesReport } from '../../../core/contracts/builds.ts'
import { hasFiles } from '../../../core/contracts/storage.ts'
import { CorralError } from '../../../core/errors.ts'
import { type Drain, drainingError } from '../../../core/http/draining.ts'
import { bodyObject } from '../../../core/http/json-body.ts'
import { nativeErrorBody } from '../../../core/http/native-error.ts'
import { Loose } from '../../../core/http/request-fields.ts'
import { json, nativeRoute } from '../../../core/http/response-schemas.ts'
import type { NativeDependencies } from './native-dependencies.ts'

const live = nativeRoute('Server', 'getLive', 'Check that the process answers', {
  description: 'For supervisors: where it does not, restart it.',
  role: 'anyone',
  response: { 200: json('It does', Loose({ status: Type.Literal('ok') })) }
})
const ready = nativeRoute('Server', 'getReady', 'Check that models can be asked', {
  description:
    'For load balancers: 503 while the server drains or shuts down, and while there is no llama.cpp build that works. ' +
    'Models of other servers need none.',
  role: 'anyone',
  response: { 200: json('They can', Loose({ status: Type.Literal('ok') })) },
  errors: ['runtime_missing', 'draining']
})

const DrainStateSchema = Type.Object(
  {
    draining: Type.Boolean({ description: 'Whether new requests for models are refused' }),
    since: Type.Optional(Type.String({ format: 'date-time' })),
    open: Type.Integer({ description: 'Requests for models that are answered, or wait' })
  },
  { title: 'DrainState' }
)
export type DrainState = Static<typeof DrainStateSchema>

const getDrain = nativeRoute('Server', 'getDrain', 'Show whether the server drains, and what is still open', {
  role: 'operator',
  response: { 200: json('The state', DrainStateSchema) }
})
const startDrain = nativeRoute('Server', 'startDrain', 'Refuse new requests for models', {
  role: 'admin',
  description:
    'Before a stop or a restart: what is answered or waits goes on to its end, new requests get 503 `draining`, and ' +
    '`/readyz` says that the server is not ready. Pulls go on: a stop interrupts them, and the next start continues them.',
  response: { 200: json('The state', DrainStateSchema) },
  errors: ['invalid_request', 'invalid_json']
})
const endDrain = nativeRoute('Server', 'endDrain', 'Take new requests for models again', {
  role: 'admin',
  response: { 200: json('The state', DrainStateSchema) },
  errors: ['invalid_request', 'invalid_json']
})

/** What supervisors and load balancers ask, and how a server is taken out of service before it is stopped. */
export function readinessRoutes({
  runtimes,
  catalog
}: Pick<NativeDependencies, 'runtimes' | 'catalog'>): FastifyPluginAsync {
  /** Why no model can be asked; undefined where one can. */
  function whyNotReady(drain: Drain): CorralError | undefined {
    if (drain.since) return drainingError()
    // Models of other servers need no build.
    if (runtimes.current() || catalog.list().some(model => !hasFiles(model))) return undefined
    const state = runtimes.state()
    // Requests make it search again after a failure, and nobody sends any to a server that is not ready.
    if (state === 'failed') runtimes.build().catch(() => {})
    return noBuild(state)
  }
  return async app => {
    const { drain, log } = app
    app.addHook('preValidation', async request => {
      if (request.body !== undefined && request.body !== null) bodyObject(request.body)
    })
    app.get('/livez', live, async () => ({ status: 'ok' }))
    app.get('/readyz', ready, async (request, reply) => {
      const error = whyNotReady(drain)
      // Sent as it is: a probe that asks every second is nothing to log.
      return error ? reply.code(error.status).send(nativeErrorBody(error, request)) : { status: 'ok' }
    })
    const state = (): DrainState => ({
      draining: drain.since !== undefined,
      ...(drain.since && { since: drain.since.toISOString() }),
      open: drain.open
    })
    app.get('/api/drain', getDrain, async () => state())
    app.post('/api/drain', startDrain, async () => {
      if (!drain.since) log.info({ open: drain.open }, 'draining: new requests for models are refused')
      drain.begin()
      return state()
    })
    app.delete('/api/drain', endDrain, async () => {
      if (drain.since) log.info('no longer draining: requests for models are taken again')
      drain.end()
      return state()
    })
  }
}

/** What was tried may name paths, which is nothing for everybody. */
function noBuild(state: RuntimesReport['state']): CorralError {
  const text = state === 'failed' ? 'No llama.cpp build works on this machine' : 'No llama.cpp build has been found yet'
  const help = '"corral doctor" on the server says what was tried, and what is missing.'
  return new CorralError('runtime_missing', `${text}, so that no model can be loaded. Ask again later; ${help}`)
}
