import type { IncomingMessage } from 'node:http'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { CorralError } from '../errors.ts'
import { endUpload } from './arriving-body.ts'
import { isDisconnect } from './client-disconnect.ts'
import { errorHeaders, logFailure, toCorralError } from './native-error.ts'
import { clientError } from './server-folders.ts'

type ErrorBody = (error: CorralError, request: FastifyRequest) => Record<string, unknown>

type ErrorFormat = [body: ErrorBody, headers?: (request: FastifyRequest) => Record<string, string>]

export function sendErrors(app: FastifyInstance, ...[body, headers = () => ({})]: ErrorFormat): void {
  app.setErrorHandler((error, request, reply) => {
    if (isDisconnect(error, request)) return reply.hijack()
    const failure = toCorralError(error)
    request.record.failure = failure
    // Closing a connection while the client still sends may lose the answer. At a shutdown it is closed anyway.
    if (isUploading(request.raw) && !reply.raw.hasHeader('connection')) {
      const { shouldKeepAlive } = reply.raw
      reply.removeHeader('connection')
      reply.raw.shouldKeepAlive = true
      reply.raw.once('finish', () => endUpload(request.raw, shouldKeepAlive))
    }
    logFailure(failure, request.log)
    return reply
      .code(failure.status)
      .headers({ ...errorHeaders(failure), ...headers(request) })
      .send(body(clientError(failure, request), request))
  })
}

/** Whether the body of a request has not arrived yet. Node.js completes even requests without a body only later. */
function isUploading({ complete, headers }: IncomingMessage): boolean {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = headers
  return complete === false && (coding !== undefined || length !== '0')
}

/** Sends all errors below a scope's prefix in the format of an API, including those of unknown paths. */
export function useErrorFormat(app: FastifyInstance, ...format: ErrorFormat): void {
  sendErrors(app, ...format)
  app.setNotFoundHandler(refuseUnknownRoute)
}

export function refuseUnknownRoute({ server, method, url }: FastifyRequest): never {
  throw server.noRouteError(method, url)
}
