import { Type } from 'typebox'
import { passedFields } from '../../../../core/answers/model-request.ts'
import { type ToolChoice, toolFields } from '../../../../core/answers/tool-choice.ts'
import { CorralError } from '../../../../core/errors.ts'
import { Given, ListOf, Loose } from '../../../../core/http/request-fields.ts'
import type { OverflowPolicy, ParsedOptions } from '../../../../core/models/options.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { stopField } from '../generation.ts'
import { logprobFields } from '../openai-answer.ts'
import { checkAgainst, type Path } from '../request-validation.ts'
import { describeType, invalid } from './input-items.ts'
import type { ResponseRequest } from './schemas.ts'

type Fields = Record<string, unknown>

/** The engine's part of a request, without its input. */
export interface EngineRequest {
  /** Under the engine's names. They take precedence over the settings of the model and the server. */
  fields: Fields
  overflow: OverflowPolicy | undefined
  /** The tools as the response lists them. */
  tools: OfferedTool[]
  /** Number of alternatives per token. Undefined if no log probabilities are requested. */
  logprobs: number | undefined
}

/** Fields that are not passed to the engine, or have another meaning there. */
const OWN = [
  ...['model', 'name', 'input', 'instructions', 'previous_response_id', 'tools', 'tool_choice', 'parallel_tool_calls'],
  ...['text', 'reasoning', 'options', 'keep_alive', 'stream', 'stream_options', 'store', 'max_output_tokens'],
  ...['max_tool_calls', 'top_logprobs', 'include', 'truncation', 'metadata', 'user', 'background', 'service_tier'],
  ...['safety_identifier', 'prompt_cache_key', 'prompt_cache_options', 'prompt_cache_retention', 'conversation'],
  ...['prompt', 'context_management', 'moderation', 'messages', 'n']
]

const LOGPROBS = 'message.output_text.logprobs'

/** Features of OpenAI's service that corral does not have. */
const REFUSED: Record<string, string> = {
  background: 'Responses cannot run in the background here. Remove "background" and use "stream".',
  conversation: 'Conversations are not stored here. Use "previous_response_id", or send the earlier items as "input".',
  prompt: 'Prompt templates are not stored here. Send their text as "instructions" and "input".',
  context_management: 'Conversations cannot be compacted here. Use "truncation": "auto" to drop the oldest messages.',
  moderation: 'There is no moderation here. Remove "moderation".'
}

/** @throws CorralError `unsupported_capability` or `invalid_request` with the field as `param` */
export function engineRequest(request: ResponseRequest, options: ParsedOptions): EngineRequest {
  for (const [field, sentence] of Object.entries(REFUSED)) {
    const value = (request as Fields)[field]
    if (value === undefined || value === null || value === false) continue
    throw new CorralError('unsupported_capability', sentence, { param: field })
  }
  const { top_logprobs: top, truncation, reasoning, max_output_tokens, parallel_tool_calls: parallel } = request
  const tools = readTools(request.tools ?? [])
  const logprobs = top || request.include?.includes(LOGPROBS) ? (top ?? 0) : undefined
  const overflow = truncation && (truncation === 'auto' ? 'drop_oldest' : 'error')
  const passed = passedFields(request, options, OWN)
  return {
    fields: {
      ...passed,
      ...stopField(passed.stop as string | string[] | undefined),
      ...(max_output_tokens && { max_tokens: max_output_tokens }),
      ...toolFields(engineTools(tools), readChoice(request.tool_choice)),
      ...(typeof parallel === 'boolean' && { parallel_tool_calls: parallel }),
      ...responseFormat(request.text?.format as Fields | null | undefined),
      ...(reasoning?.effort && { reasoning_effort: reasoning.effort }),
      ...(logprobs !== undefined && logprobFields(logprobs))
    },
    overflow: overflow ?? options.overflow,
    tools,
    logprobs
  }
}

function responseFormat(format: Fields | null | undefined): Fields {
  if (!format) return {}
  const { type, name, schema, strict, description } = format
  if (type === 'text') return {}
  if (type === 'json_object') return { response_format: { type } }
  if (type !== 'json_schema') throw invalid(['text', 'format', 'type'], '"text", "json_object" or "json_schema"')
  if (!isObject(schema)) throw invalid(['text', 'format', 'schema'], 'a JSON schema')
  return { response_format: { type, json_schema: { name: name ?? 'answer', schema, strict, description } } }
}

const Name = Type.String({ minLength: 1 })
const FunctionSchema = Loose({
  type: Type.Literal('function'),
  name: Name,
  description: Given(Type.String()),
  parameters: Given(Loose({})),
  strict: Given(Type.Boolean())
})
const Namespace = Loose({
  type: Type.Literal('namespace'),
  name: Name,
  description: Given(Type.String()),
  tools: ListOf({})
})

/** A function in the flat form of the Responses API. */
interface FunctionTool {
  type: 'function'
  name: string
  description: string | null
  parameters: object | null
  strict: boolean
}

/** A function, or a group of functions, such as those of an MCP server. */
type OfferedTool = FunctionTool | { type: 'namespace'; name: string; description: string; tools: FunctionTool[] }

/** Returns the engine's name of a function. Engines have no namespaces. */
export function engineName({ name, namespace }: { name: string; namespace?: string | undefined }): string {
  return namespace ? `${namespace}__${name}` : name
}

/** Returns all functions, including those in namespaces, by their engine names. */
function functionsByName(tools: readonly OfferedTool[]): Map<string, { tool: FunctionTool; namespace?: string }> {
  const all = tools.flatMap(tool =>
    tool.type === 'function' ? [{ tool }] : tool.tools.map(inner => ({ tool: inner, namespace: tool.name }))
  )
  return new Map(all.map(entry => [engineName({ ...entry, name: entry.tool.name }), entry]))
}

function engineTools(tools: readonly OfferedTool[]) {
  return [...functionsByName(tools)].map(([name, { tool }]) => {
    const { type, description, parameters, strict } = tool
    return {
      type,
      function: { name, ...(description !== null && { description }), ...(parameters && { parameters }), strict }
    }
  })
}

/** Returns the name and namespace of a called function as in the request. */
export function calledFunction(tools: readonly OfferedTool[], called: string): { name: string; namespace?: string } {
  const found = functionsByName(tools).get(called)
  return found?.namespace ? { name: found.tool.name, namespace: found.namespace } : { name: called }
}

/**
 * Returns the functions and namespaces that a request offers. Tools that OpenAI's service runs itself are ignored,
 * because agents offer them in every request.
 * @throws CorralError `unsupported_capability` if there are only such tools, or `invalid_request`
 */
function readTools(tools: readonly object[]): OfferedTool[] {
  const offered = tools.flatMap((tool, index) => readTool(tool as Fields, ['tools', index]))
  if (tools.length > 0 && offered.length === 0) {
    const { type } = tools[0] as Fields
    throw new CorralError(
      'unsupported_capability',
      `"tools[0]": tools ${describeType(type as string)} are not supported, only functions that the client runs itself. Send tools with "type": "function".`,
      { param: 'tools[0].type' }
    )
  }
  return offered
}

function readTool(tool: Fields, at: Path): OfferedTool[] {
  if (tool.type !== 'namespace') return readFunction(tool, at)
  const { type, name, description, tools } = checkAgainst(Namespace, tool, at)
  const functions = tools.flatMap((inner, index) => readFunction(inner as Fields, [...at, 'tools', index]))
  return functions.length === 0 ? [] : [{ type, name, description: description ?? '', tools: functions }]
}

function readFunction(tool: Fields, at: Path): FunctionTool[] {
  if (typeof tool.type === 'string' && tool.type !== 'function') return []
  // Functions are strict by default in this API.
  const { type, name, description = null, parameters = null, strict } = checkAgainst(FunctionSchema, tool, at)
  return [{ type, name, description, parameters, strict: strict ?? true }]
}

const AllowedTools = Loose({
  mode: Type.Enum(['auto', 'required']),
  tools: Type.Array(Type.Unknown(), { minItems: 1 })
})

function readChoice(choice: ResponseRequest['tool_choice']): ToolChoice {
  if (choice === undefined || choice === null) return {}
  if (choice === 'auto' || choice === 'none' || choice === 'required') return { mode: choice }
  const { type, name } = (isObject(choice) ? choice : {}) as Fields
  if (type === 'function') return { mode: 'required', names: [{ name, param: 'tool_choice.name' }] }
  if (type === 'allowed_tools') {
    const { mode, tools } = checkAgainst(AllowedTools, choice, ['tool_choice'])
    const names = tools.map((tool, index) => ({
      name: isObject(tool) ? tool.name : undefined,
      param: `tool_choice.tools[${index}].name`
    }))
    return { mode: mode as 'auto' | 'required', names }
  }
  throw invalid(
    ['tool_choice'],
    '"auto", "none", "required", {"type": "function", "name"} or {"type": "allowed_tools"}'
  )
}
