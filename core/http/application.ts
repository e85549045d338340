import { randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type Server } from 'node:http'
import AjvCompiler from '@fastify/ajv-compiler'
import sensible from '@fastify/sensible'
import type { AnyValidateFunction } from 'ajv/dist/core.js'
import Fastify, {
  type FastifyBaseLogger,
  type FastifyHttpOptions,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  LogController,
  type RouteOptions
} from 'fastify'
import type { CoreConfig } from '../config/core-schema.ts'
import { type Caller, keylessCaller, localCaller } from '../contracts/callers.ts'
import { CorralError } from '../errors.ts'
import { parseBytes } from '../system/bytes.ts'
import { BodyMemory, bodyMemoryLimits, routeBodyLimit } from './body-memory.ts'
import { ServerCertificate } from './certificate.ts'
import { ConnectionGuard } from './connection-guard.ts'
import { closingError, Drain } from './draining.ts'
import { refuseUnknownRoute, sendErrors } from './error-format.ts'
import { Forks, withSingleSlashes } from './forks.ts'
import { incomingBody } from './incoming-body.ts'
import { getInternalCaller } from './internal-request.ts'
import { acceptAnyBodyAsJson } from './json-body.ts'
import { allowLongUploads } from './long-upload.ts'
import { nativeErrorBody, toCorralError } from './native-error.ts'
import { cameByPrivateSocket } from './private-socket.ts'
import { CLIENT_LEFT, recordRequests } from './request-record.ts'
import { ResumableStreams } from './resumable-streams.ts'
import { clientError, type ServerFolder } from './server-folders.ts'
import { parseTraceParent } from './trace-parent.ts'
import { refuseUnreadable } from './unreadable-request.ts'

declare module 'fastify' {
  interface FastifyInstance {
    /** The error for a request without a route: unknown path or wrong method. */
    noRouteError(method: string, url: string): CorralError
    forks: Forks
    /** Folders whose paths are hidden from other machines. */
    folders: readonly ServerFolder[]
    /** All routes in the order of their registration, including the HEAD of each GET. */
    allRoutes: RouteOptions[]
  }

  interface FastifyContextConfig {
    leftOut?: boolean
  }
}

/** Milliseconds that the head of a request may take. */
const HEADERS_TIMEOUT = 20_000

/** How requests are validated. Values are not converted: "7" is not a number, and unknown fields are allowed. */
export const VALIDATION_OPTIONS = {
  coerceTypes: false,
  removeAdditional: false,
  useDefaults: false,
  allErrors: false,
  // Lets an error message explain the violated schema.
  verbose: true,
  // `documented`: the schema for the API document, if it differs from the validated one because the route itself checks
  // the rest. `needsTrust`: a mark of settings.
  keywords: ['documented', 'needsTrust']
}

/**
 * Creates the Fastify application without corral's plugins: parsing, errors and logging that all APIs share.
 * @param folders whose paths are hidden in errors for clients on other machines
 */
export async function createApplication(
  config: CoreConfig,
  log: FastifyBaseLogger,
  folders: readonly ServerFolder[] = []
): Promise<FastifyInstance> {
  const bodyLimit = parseBytes(config.body_limit)!
  const options = {
    loggerInstance: log,
    childLoggerFactory(logger, bindings, options, request) {
      const trace = parseTraceParent(request.headers.traceparent)
      return logger.child(trace ? { ...bindings, traceId: trace.traceId } : bindings, options)
    },
    // corral logs one line per request instead of Fastify's two.
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'requestId' }),
    genReqId: () => randomUUID(),
    bodyLimit,
    // Limits reading a request (Node's default). Answering may take any time.
    requestTimeout: 300_000,
    connectionTimeout: 0,
    // An incomplete request occupies a connection that others may need.
    http: { headersTimeout: HEADERS_TIMEOUT, connectionsCheckingInterval: HEADERS_TIMEOUT / 2 },
    forceCloseConnections: 'idle',
    // Requests are refused below instead, in the format of each API.
    return503OnClosing: false,
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: 1000 },
    // This must run before other code reads the path.
    rewriteUrl: ({ url }) => withSingleSlashes(url!),
    // Schemas of outside plugins are checked when they are registered. Loading the meta-schema would delay the first
    // request.
    ajv: { customOptions: { ...VALIDATION_OPTIONS, meta: false, validateSchema: false } },
    schemaController: {
      compilersFactory: {
        buildValidator: compileOnDemand,
        // Schemas of replies are only for the API document and do not change replies.
        buildSerializer: () => () => JSON.stringify
      }
    },
    serverFactory(_, { http, keepAliveTimeout, requestTimeout }) {
      const server = createServer(http as object, (request, response) => app.routing(request, response))
      return Object.assign(server, { keepAliveTimeout, requestTimeout })
    },
    clientErrorHandler: refuseUnreadable,
    // A path that cannot be decoded never reaches a route or an API, and no hook runs, so there is no record.
    frameworkErrors: (error, request, reply) => {
      const failure = toCorralError(error)
      request.log.info(`${request.method} ${failure.status}: the path cannot be decoded`)
      void (reply as FastifyReply).code(failure.status).send(nativeErrorBody(clientError(failure, request), request))
    }
  } satisfies FastifyHttpOptions<Server>
  const app = Fastify(options)
  const forks = new Forks(app, options)
  app.decorate('forks', forks)
  allowLongUploads(app.server)
  const { tls } = config
  const certificate = tls.certificate === '' && tls.key === '' ? undefined : new ServerCertificate(tls, log)
  const guard = new ConnectionGuard(config.limits, log, certificate)
  guard.attach(app.server, true)
  app.decorate('folders', folders)
  app.decorate('connectionGuard', guard)
  app.addHook('onClose', async () => guard.close())
  const allRoutes: RouteOptions[] = []
  app.decorate('allRoutes', allRoutes)
  app.decorate('noRouteError', (method: string, url: string) => noRouteError(app, method, url))
  app.addHook('onRoute', route => {
    allRoutes.push(route)
    patterns.set(route, routePattern(route))
    route.bodyLimit = routeBodyLimit(route, bodyLimit)
  })
  const bodyMemory = new BodyMemory(() => bodyMemoryLimits(config.limits, bodyLimit))
  app.decorate('bodyMemory', bodyMemory)
  acceptAnyBodyAsJson(app, () => config.limits.body_depth)
  await app.register(sensible)
  recordRequests(app)
  app.onRequestEnd(({ record }) => bodyMemory.release(record))
  const drain = new Drain()
  app.decorate('drain', drain)
  app.onRequestEnd(({ record }) => drain.leave(record))
  app.decorate('resumable', new ResumableStreams(() => config.limits.resume))
  app.decorateRequest('sendHooks', null)
  app.decorateRequest('caller', null as unknown as Caller)
  let isClosing = false
  app.addHook('preClose', async () => {
    isClosing = true
    guard.endHandshakes()
  })
  app.addHook('onRequest', (request, reply, done) => {
    reply.header('x-request-id', request.id)
    request.caller =
      getInternalCaller(request.raw) ?? (cameByPrivateSocket(request.raw) ? localCaller() : keylessCaller(request.ip))
    if (isClosing) done(closingError())
    else if (hasSeveralHosts(request.raw)) {
      done(new CorralError('invalid_request', 'The request has more than one Host header. Send it with one.'))
    } else done()
  })
  // Runs before any body is read, and before Fastify checks bodies for methods without a route.
  app.addHook('preParsing', (request, reply, payload, done) => {
    if (request.is404) done(noWebSocket(request) ?? app.noRouteError(request.method, request.url))
    else done(null, incomingBody(request, reply, payload))
  })
  app.onRequestEnd(logRequest)
  sendErrors(app, nativeErrorBody)
  app.setNotFoundHandler(refuseUnknownRoute)
  return app
}

/** Node.js uses the first of several `Host` headers, but a proxy before corral may have used another one. */
function hasSeveralHosts({ rawHeaders }: IncomingMessage): boolean {
  let hosts = 0
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]!
    if (name.length === 4 && name.toLowerCase() === 'host') hosts++
  }
  return hosts > 1
}

/** Node.js treats an upgrade that nobody serves as a usual request. Codex tries others than 426 seven times. */
function noWebSocket({ headers: { upgrade } }: FastifyRequest): CorralError | undefined {
  if (upgrade?.toLowerCase() !== 'websocket') return undefined
  return new CorralError(
    'websocket_refused',
    'This path offers no WebSocket. Send the request over HTTP, such as POST /v1/responses with "stream": true.'
  )
}

function logRequest({ method, url, caller, log, record }: FastifyRequest): void {
  const { status, began, ended, failure } = record
  // The code that refuses callers logs it, and limits how often.
  const isRefused = status === 401 || status === 429
  const level = isRefused || (method === 'GET' && status < 400) ? 'debug' : 'info'
  const { address, name } = caller
  const fields = {
    ms: Math.round(ended - began),
    address,
    ...(name !== undefined && { key: name }),
    ...(failure && { code: failure.code })
  }
  log[level](fields, `${method} ${url.split('?')[0]} ${status === CLIENT_LEFT ? 'client left' : status}`)
}

const buildCompiler = AjvCompiler()

/** Compiles the schema of a route at its first request: compiling all of them would take a third of each start. */
const compileOnDemand: typeof buildCompiler = (shared, options) => {
  let compile: ReturnType<typeof buildCompiler> | undefined
  return schema => {
    let validate: AnyValidateFunction | undefined
    const check = (value: unknown) => {
      compile ??= buildCompiler(shared, options)
      validate ??= compile(schema)
      const valid = validate(value)
      Object.assign(check, { errors: validate.errors })
      return valid
    }
    return check as AnyValidateFunction
  }
}

/** Returns the methods of a path (without query); empty if no route matches. */
function allowedMethods(app: FastifyInstance, path: string): string[] {
  // A route for preflight requests matches any path.
  const matching = app.allRoutes.filter(
    route => !route.config?.leftOut && String(route.method) !== 'OPTIONS' && patterns.get(route)!.test(path)
  )
  return [...new Set(matching.flatMap(route => route.method))].sort()
}

const patterns = new WeakMap<RouteOptions, RegExp>()

function routePattern({ url }: RouteOptions): RegExp {
  const source = url
    .replace(/[.+?^${}()|[\]\\]/g, '\\$&')
    .replace(/:\w+/g, '[^/]+')
    .replace(/\*/g, '.+')
  return new RegExp(`^${source}/?$`)
}

function noRouteError(app: FastifyInstance, method: string, url: string): CorralError {
  const path = url.split('?')[0]!
  const allow = allowedMethods(app, path)
  const shown = path.length > 200 ? `${path.slice(0, 200)}…` : path
  if (allow.length > 0) {
    return new CorralError('method_not_allowed', `${shown} does not support ${method}; use ${allow.join(' or ')}.`, {
      details: { allow }
    })
  }
  // Clients append the path of an API to the configured base address, which may already contain it.
  const [, first = '', ...rest] = path.split('/')
  const meant = `/${rest.join('/')}`
  const advice =
    rest.length > 0 && allowedMethods(app, meant).includes(method)
      ? ` The route is ${meant}: remove /${first} from the end of the base address in your client's settings.`
      : ''
  return new CorralError('route_not_found', `There is no route for ${method} ${shown}.${advice}`)
}
