import { Type } from 'typebox'
import { errorResponses, json, nativeErrors } from '../../../core/http/response-schemas.ts'

const loose = { additionalProperties: true }
const errors = errorResponses(nativeErrors, [], { body: false })

/** How the routes about the server itself are described. */
export const serverOperations = {
  root: {
    summary: 'Say that corral is running',
    description: 'A line of text; a page for browsers.',
    tags: ['Server'],
    operationId: 'root',
    response: {
      200: {
        description: 'It runs',
        content: { 'text/plain': { schema: Type.String() }, 'text/html': { schema: Type.String() } }
      },
      ...errors
    }
  },
  health: {
    summary: 'Say that corral is well',
    description: 'Needs no key.',
    tags: ['Server'],
    operationId: 'getHealth',
    security: [],
    response: { 200: json('It is', Type.Object({ status: Type.Literal('ok') }, loose)), ...errors }
  },
  version: {
    summary: "Tell corral's version",
    tags: ['Server'],
    operationId: 'getVersion',
    response: { 200: json('The version', Type.Object({ version: Type.String() }, loose)), ...errors }
  }
}
