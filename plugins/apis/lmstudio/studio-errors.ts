import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import type { CorralError } from '../../../core/errors.ts'
import { Loose, Titled } from '../../../core/http/request-fields.ts'
import { errorsWithin, routerWith, routesWith } from '../../../core/http/response-schemas.ts'

export const TAG = 'LM Studio'

const ErrorSchema = Titled('LMStudioError', {
  error: Loose({
    message: Type.String(),
    type: Type.String(),
    code: Type.String({ description: 'Stable error code for programs' })
  })
})
const shape = errorsWithin(ErrorSchema)

export const studioRoute = routesWith(shape)
export const studioRouter = (app: FastifyInstance) => routerWith(shape)(app, TAG)

/** Renders an error as LM Studio does. @param typeOf the names of this version of its API */
const errorBody =
  (typeOf: (error: CorralError) => string) =>
  (error: CorralError): { error: Record<string, unknown> } => {
    const { message, param, code, details } = error
    return { error: { ...details, message, type: typeOf(error), param: param ?? null, code } }
  }

export const errorBodyV0 = errorBody(({ status }) => (status >= 500 ? 'server_error' : 'invalid_request_error'))

export const errorBodyV1 = errorBody(({ status, code, param }) => {
  if (code === 'model_not_found') return param === 'job_id' ? 'job_not_found' : code
  if (code === 'not_implemented') return code
  return status >= 500 ? 'internal_error' : 'invalid_request'
})
