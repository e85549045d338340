import { toolFields } from '../../../core/answers/tool-choice.ts'
import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { engineMessages, invalid } from './history.ts'
import type { CountRequest, MessageParam, MessagesRequest, ToolParam } from './schemas.ts'

type Fields = Record<string, unknown>

/** Features that only Anthropic's own servers have. */
const REFUSED: Record<string, string> = {
  mcp_servers: 'corral does not call MCP servers. Put their tools into "tools" and run them yourself',
  container: 'corral has no containers to run code in'
}

/**
 * Converts a request for the engine.
 * @param defaults the effective options, under the engine's names; the request's own fields take precedence
 * @returns the engine's request, and for each part of each message its place in the original request
 * @throws CorralError with the place in the request as `param`
 */
export function engineRequest(
  request: CountRequest & Partial<MessagesRequest>,
  defaults: Fields
): { body: Fields & { messages: Fields[] }; places: string[][] } {
  refuseUnsupported(request)
  const { messages, places } = engineMessages(request)
  const { stop_sequences: stops, output_config } = request
  const format = output_config?.format ?? request.output_format
  const tools = requestedTools(request)
  const continues = messages.at(-1)?.role === 'assistant'
  // The engine's grammars cover a whole answer, which an already started answer may not match.
  if (continues && (format || tools.tool_choice)) {
    throw invalid(
      `messages.${request.messages.length - 1}`,
      'starts the answer, which then cannot follow a format or be forced to call a tool: the last message must be from the user'
    )
  }
  return {
    places,
    body: {
      ...defaults,
      ...thinkingFields(request, defaults),
      ...tools,
      ...(format && {
        response_format: { type: 'json_schema', json_schema: { name: 'answer', schema: format.schema } }
      }),
      ...(stops?.length && { stop: stops }),
      // Without these fields the engine also continues the message, but repeats its text.
      ...(continues && { continue_final_message: true, add_generation_prompt: false }),
      messages
    }
  }
}

function refuseUnsupported(request: CountRequest & Fields): void {
  if (request.thread?.type === 'continue') {
    // The SDKs' tool runners recognize this code and send the whole conversation again.
    throw new CorralError('response_not_found', 'corral does not store conversations. Send all messages of this one.', {
      param: 'thread',
      details: { error_code: 'thread_not_found' }
    })
  }
  for (const [field, why] of Object.entries(REFUSED)) {
    const value = request[field]
    if (value === undefined || value === null || (Array.isArray(value) && value.length === 0)) continue
    throw new CorralError('unsupported_capability', `"${field}" is not supported: ${why}.`, { param: field })
  }
}

/** Thinking is off unless the request enables it, because clients then expect the answer's text as the first block. */
function thinkingFields({ thinking, output_config }: CountRequest, defaults: Fields): Fields {
  const template = (defaults.chat_template_kwargs ?? {}) as Fields
  const effort = output_config?.effort
  return {
    chat_template_kwargs: thinking
      ? { ...template, enable_thinking: thinking.type !== 'disabled' }
      : { enable_thinking: false, ...template },
    ...(thinking?.type === 'enabled' && thinking.budget_tokens && { thinking_budget_tokens: thinking.budget_tokens }),
    // Templates support three levels.
    ...(effort && { reasoning_effort: effort === 'xhigh' || effort === 'max' ? 'high' : effort })
  }
}

const MODES = { auto: undefined, none: 'none', any: 'required', tool: 'required' } as const

function requestedTools({ tools, messages, tool_choice: choice }: CountRequest): Fields {
  const functions = offeredTools(tools ?? [], messages).map(toFunction)
  const fields = toolFields(
    functions.map(of => ({ type: 'function', function: of })),
    {
      mode: choice ? MODES[choice.type] : undefined,
      ...(choice?.type === 'tool' && { names: [{ name: choice.name, param: 'tool_choice.name' }] })
    }
  )
  return { ...fields, ...(fields.tools && choice?.disable_parallel_tool_use ? { parallel_tool_calls: false } : {}) }
}

interface OfferedTool {
  tool: Fields
  place: string
}

/** Converts a tool into the engine's function. Tools defined within messages are not covered by the request schema. */
function toFunction({ tool, place }: OfferedTool) {
  const { type, name, description, input_schema: parameters } = tool
  if (type !== undefined && type !== null && type !== 'custom') {
    throw new CorralError(
      'unsupported_capability',
      `"${place}" is of type ${JSON.stringify(String(type).slice(0, 60))}, but corral has no built-in tools. Send a tool with a "name" and an "input_schema", and run it yourself.`,
      { param: `${place}.type` }
    )
  }
  if (typeof name !== 'string' || name === '') throw invalid(`${place}.name`, "must be the tool's name")
  if (!isObject(parameters)) throw invalid(`${place}.input_schema`, 'must be a JSON schema')
  return { name, ...(typeof description === 'string' && description !== '' && { description }), parameters }
}

/**
 * Returns the tools that the model may call at the end of the conversation: all tools without `defer_loading`, plus the
 * changes in messages (`tool_reference`, `tool_addition`, `tool_removal`).
 * @throws CorralError `invalid_request` for a change that names no tool
 */
function offeredTools(tools: readonly ToolParam[], messages: readonly MessageParam[]): OfferedTool[] {
  const known = new Map<unknown, OfferedTool>()
  const offered = new Set<unknown>()
  const define = (tool: Fields, place: string) => {
    // `toFunction` refuses tools without a name.
    const key = tool.name || place
    known.set(key, { tool, place })
    return key
  }
  tools.forEach((tool, index) => {
    const key = define(tool, `tools.${index}`)
    if (!tool.defer_loading) offered.add(key)
  })
  for (const { block, place } of blocksIn(messages)) {
    if (block.type === 'tool_reference') offered.add(block.tool_name)
    if (block.type !== 'tool_addition' && block.type !== 'tool_removal') continue
    const { name, definition } = isObject(block.tool) ? block.tool : {}
    if (block.type === 'tool_removal') offered.delete(name)
    else if (typeof name === 'string') offered.add(name)
    else if (isObject(definition)) offered.add(define(definition, `${place}.tool.definition`))
    else throw invalid(`${place}.tool`, 'must name a tool or contain the "definition" of one')
  }
  return [...known].flatMap(([key, tool]) => (offered.has(key) ? [tool] : []))
}

/** Yields the blocks of all messages, including those inside tool results. */
function* blocksIn(messages: readonly MessageParam[]): Generator<{ block: Fields; place: string }> {
  for (const [index, { content }] of messages.entries()) {
    if (!Array.isArray(content)) continue
    for (const [at, block] of content.entries()) {
      const place = `messages.${index}.content.${at}`
      yield { block, place }
      if (block.type !== 'tool_result' || !Array.isArray(block.content)) continue
      for (const inner of block.content) if (isObject(inner)) yield { block: inner, place }
    }
  }
}
