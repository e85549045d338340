import { toolFields } from '../../../core/answers/tool-choice.ts'
import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { engineMessages, invalid } from './messages.ts'
import type { CountRequest, MessageParam, MessagesRequest, ToolParam } from './schemas.ts'

type Fields = Record<string, unknown>

/** What only Anthropic's own servers can do. */
const REFUSED: Record<string, string> = {
  mcp_servers: 'corral calls no MCP servers. Give their tools in "tools" and run them yourself',
  container: 'corral has no containers that code could run in'
}

/**
 * The engine's request for Anthropic's, and where in the request each part of each message's content comes from.
 * @param defaults options in force, under the engine's names; the request's own fields take precedence
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
  // The engine's grammars are for whole answers: one that has begun already may not fit them.
  if (continues && (format || tools.tool_choice)) {
    throw invalid(
      `messages.${request.messages.length - 1}`,
      'begins the answer, which then cannot follow a format or be made to call a tool: let the last message be from the user'
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
      // Without these fields the engine continues the message too, but repeats what is there.
      ...(continues && { continue_final_message: true, add_generation_prompt: false }),
      messages
    }
  }
}

function refuseUnsupported(request: CountRequest & Fields): void {
  if (request.thread?.type === 'continue') {
    // By this code the SDKs, whose tool runners use threads, know to send the whole conversation again.
    throw new CorralError('response_not_found', 'corral keeps no conversations: send all messages of this one.', {
      param: 'thread',
      details: { error_code: 'thread_not_found' }
    })
  }
  for (const [field, why] of Object.entries(REFUSED)) {
    const value = request[field]
    if (value === undefined || value === null || (Array.isArray(value) && value.length === 0)) continue
    throw new CorralError('unsupported_capability', `"${field}" cannot be used: ${why}.`, { param: field })
  }
}

/** Unless the request enables it, a model does not think: clients then expect the first block to be the answer's text. */
function thinkingFields({ thinking, output_config }: CountRequest, defaults: Fields): Fields {
  const template = (defaults.chat_template_kwargs ?? {}) as Fields
  const effort = output_config?.effort
  return {
    chat_template_kwargs: thinking
      ? { ...template, enable_thinking: thinking.type !== 'disabled' }
      : { enable_thinking: false, ...template },
    ...(thinking?.type === 'enabled' && thinking.budget_tokens && { thinking_budget_tokens: thinking.budget_tokens }),
    // Templates know three levels.
    ...(effort && { reasoning_effort: effort === 'xhigh' || effort === 'max' ? 'high' : effort })
  }
}

const MODES = { auto: undefined, none: 'none', any: 'required', tool: 'required' } as const

function requestedTools({ tools, messages, tool_choice: choice }: CountRequest): Fields {
  const functions = offeredTools(tools ?? [], messages).map(functionOf)
  const fields = toolFields(
    functions.map(of => ({ type: 'function', function: of })),
    {
      mode: choice ? MODES[choice.type] : undefined,
      ...(choice?.type === 'tool' && { names: [{ name: choice.name, param: 'tool_choice.name' }] })
    }
  )
  return { ...fields, ...(fields.tools && choice?.disable_parallel_tool_use ? { parallel_tool_calls: false } : {}) }
}

/** A tool and where in the request it is defined. */
interface OfferedTool {
  tool: Fields
  place: string
}

/** The engine's function for a tool. Tools that messages define have been checked by no schema. */
function functionOf({ tool, place }: OfferedTool) {
  const { type, name, description, input_schema: parameters } = tool
  if (type !== undefined && type !== null && type !== 'custom') {
    throw new CorralError(
      'unsupported_capability',
      `"${place}" is of type ${JSON.stringify(String(type).slice(0, 60))}: corral has no tools of its own. Give a tool with a "name" and an "input_schema", and run it yourself.`,
      { param: `${place}.type` }
    )
  }
  if (typeof name !== 'string' || name === '') throw invalid(`${place}.name`, "must be the tool's name")
  if (!isObject(parameters)) throw invalid(`${place}.input_schema`, 'must be a JSON schema')
  return { name, ...(typeof description === 'string' && description !== '' && { description }), parameters }
}

/**
 * The tools that a model may call at the end of a conversation: those that are not deferred, and the changes that
 * messages made since (results that refer to tools, `tool_addition`, `tool_removal`). The model does not see others.
 * @throws CorralError `invalid_request` for a change without a tool
 */
function offeredTools(tools: readonly ToolParam[], messages: readonly MessageParam[]): OfferedTool[] {
  const known = new Map<unknown, OfferedTool>()
  const offered = new Set<unknown>()
  const define = (tool: Fields, place: string) => {
    // Those without a name are refused by `functionOf`.
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
    else throw invalid(`${place}.tool`, 'must name a tool or hold the "definition" of one')
  }
  return [...known].flatMap(([key, tool]) => (offered.has(key) ? [tool] : []))
}

/** The blocks of messages and those within results of tools. */
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
