import type { FastifySchemaCompiler } from 'fastify'
import type { TSchema } from 'typebox'
import { CorralError } from '../../core/errors.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { topLevelOptions } from '../../core/models/options.ts'
import { type ExplainedSchema, faultPlace, faultSentence, findFault } from '../../core/system/schema-check.ts'

/**
 * Checks a value against a schema. Values are not quoted in the error: they may be prompts.
 * @throws CorralError `invalid_request`, or `invalid_option` for an option, with the place as `param`
 */
export function checkAgainst(schema: TSchema, value: unknown): void {
  const fault = findFault(schema, value)
  if (!fault) return
  const first = String(fault.path[0] ?? '')
  const param = faultPlace(fault)
  if (first === 'model' || first === 'name') {
    throw new CorralError('invalid_model_name', `"${param}" must be text of the form <owner>/<name>.`, { param: first })
  }
  const isOption = first === 'options' || first in topLevelOptions({ [first]: null })
  throw new CorralError(isOption ? 'invalid_option' : 'invalid_request', faultSentence(fault, 'The request'), { param })
}

/** Fastify's validation by `checkAgainst`. Numbers of a query come as text and are taken for what the schema says. */
export const schemaCompiler: FastifySchemaCompiler<TSchema> =
  ({ schema, httpPart }) =>
  given => {
    try {
      const value = httpPart === 'body' ? bodyObject(given) : readNumbers(schema as ExplainedSchema, given)
      if (httpPart === 'body' && (schema as ExplainedSchema).properties?.model)
        requireModel(value as Record<string, unknown>)
      checkAgainst(schema, value)
      return { value }
    } catch (error) {
      return { error: error as Error }
    }
  }

/** Without a model the rest matters little. */
function requireModel({ model, name }: Record<string, unknown>): void {
  const given = model ?? name
  if (given === undefined || given === null) parseModelName(given)
}

function readNumbers({ properties = {} }: ExplainedSchema, given: unknown): unknown {
  if (typeof given !== 'object' || given === null) return given
  const read = ([name, value]: [string, unknown]) =>
    properties[name]?.type === 'integer' && typeof value === 'string' && /^-?\d{1,15}$/.test(value)
      ? Number(value)
      : value
  return Object.fromEntries(Object.entries(given).map(entry => [entry[0], read(entry)]))
}
