import type { FastifySchemaCompiler } from 'fastify'
import type { Static, TSchema } from 'typebox'
import { CorralError } from '../../../core/errors.ts'
import { bodyObject } from '../../../core/http/json-body.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { isOwnOption } from '../../../core/models/options.ts'
import { faultPlace, faultSentence, findFault, type JsonSchema } from '../../../core/system/schema-check.ts'

/** The keys and indices that lead to a part of a request. */
export type Path = (string | number)[]

/**
 * Validates a value against a schema. Errors never quote the value, which may be a prompt.
 * @param at the path of the value in the request
 * @throws CorralError `invalid_request`, or `invalid_option` for an option, with the path as `param`
 */
export function checkAgainst<Schema extends TSchema>(schema: Schema, value: unknown, at: Path = []): Static<Schema> {
  const found = findFault(schema, value)
  if (!found) return value as Static<Schema>
  const fault = { ...found, path: [...at, ...found.path] }
  const first = String(fault.path[0] ?? '')
  const param = faultPlace(fault)
  if (first === 'model' || first === 'name') {
    throw new CorralError('invalid_model_name', `"${param}" must be text of the form <owner>/<name>.`, { param: first })
  }
  const isOption = first === 'options' || isOwnOption(first)
  throw new CorralError(isOption ? 'invalid_option' : 'invalid_request', faultSentence(fault, 'The request'), { param })
}

/** Validates requests and parses numbers in queries. @param mayLackModel whether there is a default model */
export function schemaCompiler(mayLackModel: () => boolean): FastifySchemaCompiler<TSchema> {
  return ({ schema, httpPart }) => {
    const { properties = {} } = schema as JsonSchema
    return given => {
      try {
        if (httpPart !== 'body') return { value: checkAgainst(schema, readNumbers(properties, given)) }
        const { model, name } = bodyObject(given)
        // A missing model is reported before all other errors.
        if (properties.model && (model ?? name ?? null) === null && !mayLackModel()) parseModelName(undefined)
        return { value: checkAgainst(schema, given) }
      } catch (error) {
        return { error: error as Error }
      }
    }
  }
}

function readNumbers(properties: Record<string, JsonSchema>, given: unknown): unknown {
  const read = ([name, value]: [string, unknown]) => {
    const isNumber = properties[name]?.type === 'integer' && /^-?\d{1,15}$/.test(String(value))
    return [name, isNumber ? Number(value) : value]
  }
  return Object.fromEntries(Object.entries(given as object).map(read))
}
