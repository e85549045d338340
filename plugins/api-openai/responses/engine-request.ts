import { CorralError } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { type OverflowPolicy, parseOptions, topLevelOptions } from '../../../core/models/options.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { askLogprobs } from '../chunks.ts'
import { withStops } from '../generation.ts'
import { invalid } from './input-items.ts'
import { type OfferedTool, offeredFunctions, readTools } from './offered-tools.ts'
import type { ResponseRequest } from './request-schema.ts'

type Fields = Record<string, unknown>

/** What a request asks for beside its input, under the engine's names. */
export interface EngineFields {
  load: Partial<LoadOptions>
  /** What the request gives for the engine; it goes over the model's and the server's settings. */
  fields: Fields
  overflow: OverflowPolicy | undefined
  /** As the response repeats them. */
  tools: OfferedTool[]
  /** Of the most likely tokens at each place; undefined where no log probabilities are asked for. */
  logprobs: number | undefined
}

/** Fields of the Responses API that are not the engine's, or mean something else to it. */
const OWN = new Set([
  ...['model', 'name', 'input', 'instructions', 'previous_response_id', 'tools', 'tool_choice', 'parallel_tool_calls'],
  ...['text', 'reasoning', 'options', 'keep_alive', 'stream', 'stream_options', 'store', 'max_output_tokens'],
  ...['max_tool_calls', 'top_logprobs', 'include', 'truncation', 'metadata', 'user', 'background', 'service_tier'],
  ...['safety_identifier', 'prompt_cache_key', 'prompt_cache_options', 'prompt_cache_retention', 'conversation'],
  ...['prompt', 'context_management', 'moderation', 'messages', 'n']
])

const LOGPROBS = 'message.output_text.logprobs'

/** What a server for other people's models offers beside answers, and corral does not. */
const REFUSED: Record<string, string> = {
  background: 'Responses are not made in the background here. Leave "background" out, and use "stream".',
  conversation: 'Conversations are not kept here. Use "previous_response_id", or send the earlier items as "input".',
  prompt: 'Prompt templates are not kept here. Send what they say as "instructions" and "input".',
  context_management: 'Conversations are not compacted here. Use "truncation": "auto" to leave the oldest turns out.',
  moderation: 'Nothing is moderated here. Leave "moderation" out.'
}

/**
 * Reads what a request asks of the engine.
 * @throws CorralError `unsupported_capability`, `invalid_request` or `invalid_option` with the field as `param`
 */
export function engineFields(request: ResponseRequest): EngineFields {
  for (const [field, sentence] of Object.entries(REFUSED)) {
    const value = (request as Fields)[field]
    if (value === undefined || value === null || value === false) continue
    throw new CorralError('unsupported_capability', sentence, { param: field })
  }
  const topLevel = topLevelOptions(request)
  const own = parseOptions(topLevel)
  const nested = parseOptions(request.options)
  const rest = Object.entries(request).filter(
    ([name, value]) => value !== null && value !== undefined && !OWN.has(name) && !(name in topLevel)
  )
  const tools = readTools(request.tools ?? [])
  const { top_logprobs: top } = request
  const logprobs = top || request.include?.includes(LOGPROBS) ? (top ?? 0) : undefined
  const overflow = request.truncation && (request.truncation === 'auto' ? 'drop_oldest' : 'error')
  const effort = request.reasoning?.effort
  const passed: Fields = { ...nested.sampling, ...Object.fromEntries(rest), ...own.sampling }
  return {
    load: { ...nested.load, ...own.load },
    fields: {
      ...passed,
      ...withStops(passed.stop as string | string[] | undefined),
      ...(request.max_output_tokens && { max_tokens: request.max_output_tokens }),
      ...engineTools(tools, request.tool_choice),
      ...(typeof request.parallel_tool_calls === 'boolean' && { parallel_tool_calls: request.parallel_tool_calls }),
      ...responseFormat(request.text?.format as Fields | null | undefined),
      ...(effort && { reasoning_effort: effort }),
      ...(logprobs !== undefined && askLogprobs(logprobs))
    },
    overflow: overflow ?? own.overflow ?? nested.overflow,
    tools,
    logprobs
  }
}

/** Not every engine lets a function be chosen by name, so one that must be called is the only one it is offered. */
function engineTools(tools: readonly OfferedTool[], choice: ResponseRequest['tool_choice']): Fields {
  const { mode, names } = readChoice(choice)
  const offered = offeredFunctions(tools)
  for (const { name, param } of names ?? []) {
    if (!offered.some(({ told }) => told === name)) throw invalid(param, 'the name of one of the "tools"')
  }
  if (mode === 'required' && offered.length === 0)
    throw invalid('tool_choice', '"auto" or "none" where there are no tools')
  // A model that knows of tools might call one all the same.
  if (offered.length === 0 || mode === 'none') return {}
  const allowed = names ? offered.filter(({ told }) => names.some(({ name }) => name === told)) : offered
  return {
    tools: allowed.map(({ told, tool: { type, description, parameters, strict } }) => ({
      type,
      function: { name: told, ...(description !== null && { description }), ...(parameters && { parameters }), strict }
    })),
    ...(mode && { tool_choice: mode })
  }
}

interface Choice {
  mode: 'auto' | 'none' | 'required' | undefined
  /** Those that may be called; absent where all may. */
  names?: { name: unknown; param: string }[]
}

function readChoice(choice: ResponseRequest['tool_choice']): Choice {
  if (choice === undefined || choice === null) return { mode: undefined }
  if (choice === 'auto' || choice === 'none' || choice === 'required') return { mode: choice }
  const { type, name, mode, tools } = (isObject(choice) ? choice : {}) as Fields
  if (type === 'function') return { mode: 'required', names: [{ name, param: 'tool_choice.name' }] }
  if (type === 'allowed_tools') {
    if (mode !== 'auto' && mode !== 'required') throw invalid('tool_choice.mode', '"auto" or "required"')
    if (!Array.isArray(tools) || tools.length === 0) throw invalid('tool_choice.tools', 'a list of functions')
    return {
      mode,
      names: tools.map((tool, index) => ({
        name: isObject(tool) ? tool.name : undefined,
        param: `tool_choice.tools[${index}].name`
      }))
    }
  }
  throw invalid('tool_choice', '"auto", "none", "required", {"type": "function", "name"} or {"type": "allowed_tools"}')
}

function responseFormat(format: Fields | null | undefined): Fields {
  const at = 'text.format'
  if (!format) return {}
  const { type, name, schema, strict, description } = format
  if (type === 'text') return {}
  if (type === 'json_object') return { response_format: { type } }
  if (type !== 'json_schema') throw invalid(`${at}.type`, '"text", "json_object" or "json_schema"')
  if (!isObject(schema)) throw invalid(`${at}.schema`, 'a JSON schema')
  return { response_format: { type, json_schema: { name: name ?? 'answer', schema, strict, description } } }
}
