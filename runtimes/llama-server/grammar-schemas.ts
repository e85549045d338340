import { isObject } from '../../core/system/json-object.ts'
import { engineSchema } from './engine-schema.ts'
import type { Fields } from './schema-keywords.ts'

/** Rewrites the JSON schemas in a request in the form that llama.cpp enforces. Other requests stay unchanged. */
export function withEngineSchemas(body: Fields): Fields {
  const { response_format: format, json_schema: bare, tools } = body
  const changed: Fields = {}
  if (isObject(format)) changed.response_format = formatWith(format)
  if (isObject(bare)) changed.json_schema = engineSchema(bare).schema
  if (Array.isArray(tools) && tools.length > 0) changed.tools = tools.map(toolWith)
  return Object.keys(changed).length === 0 ? body : { ...body, ...changed }
}

function formatWith(format: Fields): Fields {
  const { schema, json_schema: named } = format
  return {
    ...format,
    ...(isObject(schema) && { schema: engineSchema(schema).schema }),
    ...(isObject(named) &&
      isObject(named.schema) && { json_schema: { ...named, schema: engineSchema(named.schema).schema } })
  }
}

function toolWith(tool: unknown): unknown {
  if (!isObject(tool) || !isObject(tool.function) || !isObject(tool.function.parameters)) return tool
  return { ...tool, function: { ...tool.function, parameters: engineSchema(tool.function.parameters, false).schema } }
}

/** Returns JSON pointers to the unenforced parts of a request's format schema. */
export function unenforced({ response_format: format, json_schema: bare }: Fields): string[] {
  const named = isObject(format) && isObject(format.json_schema) ? format.json_schema.schema : undefined
  const schemas = [isObject(format) ? format.schema : undefined, named, bare].filter(isObject)
  return schemas.flatMap(schema => engineSchema(schema).unenforced)
}
