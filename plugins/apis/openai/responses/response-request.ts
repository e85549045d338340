import { Type } from 'typebox'
import { passedFields } from '../../../../core/answers/model-request.ts'
import { type ToolChoice, toolFields } from '../../../../core/answers/tool-choice.ts'
import { CorralError } from '../../../../core/errors.ts'
import { Given, ListOf, Loose } from '../../../../core/http/request-fields.ts'
import type { OverflowPolicy, ParsedOptions } from '../../../../core/models/options.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { checkAgainst, type Path } from '../check-body.ts'
import { stopField } from '../generation.ts'
import { logprobFields } from '../hosted-answer.ts'
import { invalid, ofType } from './input-items.ts'
import type { ResponseRequest } from './schemas.ts'

type Fields = Record<string, unknown>

/** What a request has for the engine beside its input. */
export interface EngineRequest {
  /** Under the engine's names; these take precedence over the settings of the model and the server. */
  fields: Fields
  overflow: OverflowPolicy | undefined
  /** As the response repeats them. */
  tools: OfferedTool[]
  /** Most likely tokens at each position; undefined where no log probabilities are requested. */
  logprobs: number | undefined
}

/** Fields of the Responses API that are not the engine's, or mean something else to it. */
const OWN = [
  ...['model', 'name', 'input', 'instructions', 'previous_response_id', 'tools', 'tool_choice', 'parallel_tool_calls'],
  ...['text', 'reasoning', 'options', 'keep_alive', 'stream', 'stream_options', 'store', 'max_output_tokens'],
  ...['max_tool_calls', 'top_logprobs', 'include', 'truncation', 'metadata', 'user', 'background', 'service_tier'],
  ...['safety_identifier', 'prompt_cache_key', 'prompt_cache_options', 'prompt_cache_retention', 'conversation'],
  ...['prompt', 'context_management', 'moderation', 'messages', 'n']
]

const LOGPROBS = 'message.output_text.logprobs'

/** What OpenAI's own service offers beside answers, and corral does not. */
const REFUSED: Record<string, string> = {
  background: 'Responses are not made in the background here. Leave "background" out, and use "stream".',
  conversation: 'Conversations are not kept here. Use "previous_response_id", or send the earlier items as "input".',
  prompt: 'Prompt templates are not kept here. Send what they say as "instructions" and "input".',
  context_management: 'Conversations are not compacted here. Use "truncation": "auto" to leave the oldest turns out.',
  moderation: 'Nothing is moderated here. Leave "moderation" out.'
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

// ---- tools ---------------------------------------------------------------------------------------------------------

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

/** A function as the Responses API has it: flat. */
interface FunctionTool {
  type: 'function'
  name: string
  description: string | null
  parameters: object | null
  strict: boolean
}

/** A function, or functions under a common name, such as those of one MCP server. */
type OfferedTool = FunctionTool | { type: 'namespace'; name: string; description: string; tools: FunctionTool[] }

/** The name of a function for the engine, which knows of no namespaces. */
export function engineName({ name, namespace }: { name: string; namespace?: string | undefined }): string {
  return namespace ? `${namespace}__${name}` : name
}

/** All functions, including those of namespaces, by their names for the engine. */
function functionsOf(tools: readonly OfferedTool[]): Map<string, { tool: FunctionTool; namespace?: string }> {
  const all = tools.flatMap(tool =>
    tool.type === 'function' ? [{ tool }] : tool.tools.map(inner => ({ tool: inner, namespace: tool.name }))
  )
  return new Map(all.map(entry => [engineName({ ...entry, name: entry.tool.name }), entry]))
}

function engineTools(tools: readonly OfferedTool[]) {
  return [...functionsOf(tools)].map(([name, { tool }]) => {
    const { type, description, parameters, strict } = tool
    return {
      type,
      function: { name, ...(description !== null && { description }), ...(parameters && { parameters }), strict }
    }
  })
}

/** The function that an engine calls, as the request named it. */
export function calledFunction(tools: readonly OfferedTool[], called: string): { name: string; namespace?: string } {
  const found = functionsOf(tools).get(called)
  return found?.namespace ? { name: found.tool.name, namespace: found.namespace } : { name: called }
}

/**
 * The functions and namespaces that a request offers. Tools that a hosted service runs itself are left out: agents offer
 * such tools in every request, whatever the model and server.
 * @throws CorralError `unsupported_capability` where there are only such tools, `invalid_request`
 */
function readTools(tools: readonly object[]): OfferedTool[] {
  const offered = tools.flatMap((tool, index) => readTool(tool as Fields, ['tools', index]))
  if (tools.length > 0 && offered.length === 0) {
    const { type } = tools[0] as Fields
    throw new CorralError(
      'unsupported_capability',
      `"tools[0]": tools ${ofType(type as string)} do not exist here, only functions that the client runs itself ("type": "function").`,
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
