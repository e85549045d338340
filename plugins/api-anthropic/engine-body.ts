import { CorralError } from '../../core/errors.ts'
import { invalid } from './content-blocks.ts'
import { type Conversation, engineMessages } from './engine-messages.ts'
import type { CountRequest, MessageParam, MessagesRequest, ToolParam } from './schemas.ts'

type Fields = Record<string, unknown>

/** What asks Anthropic's own servers for more than an answer of a model. */
const ELSEWHERE: Record<string, string> = {
  mcp_servers: 'corral calls no MCP servers. Give their tools in "tools" and run them yourself',
  container: 'corral has no containers that code could run in'
}

/** A request as it goes to the engine. */
interface EngineRequest extends Pick<Conversation, 'places'> {
  body: Fields & { messages: Fields[] }
}

/**
 * The engine's request for Anthropic's.
 * @param defaults options in force, under the engine's names; what the request says goes before them
 * @throws CorralError with the place in the request as `param`
 */
export function engineRequest(request: CountRequest & Partial<MessagesRequest>, defaults: Fields): EngineRequest {
  refuseWhatIsElsewhere(request)
  const { messages, places } = engineMessages(request)
  const { stop_sequences: stops, output_config } = request
  const format = output_config?.format ?? request.output_format
  const tools = toolFields(request)
  const continues = messages.at(-1)?.role === 'assistant'
  // The engine's grammars are for whole answers; there are texts before them that they would not survive.
  if (continues && (format || tools.tool_choice)) {
    throw invalid(
      `messages.${request.messages.length - 1}`,
      'begins the answer, which cannot be held to a format or to calling a tool then: let a message of the user be the last'
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
      // Without these words the engine continues it too, but says once more what is there.
      ...(continues && { continue_final_message: true, add_generation_prompt: false }),
      messages
    }
  }
}

function refuseWhatIsElsewhere(request: CountRequest & Fields): void {
  if (request.thread?.type === 'continue') {
    // By these words the SDKs, whose tool runners ask for threads, know to send the whole conversation again.
    throw new CorralError('response_not_found', 'corral keeps no conversations: send all messages of this one.', {
      param: 'thread',
      details: { error_code: 'thread_not_found' }
    })
  }
  for (const [field, why] of Object.entries(ELSEWHERE)) {
    const value = request[field]
    if (value === undefined || value === null || (Array.isArray(value) && value.length === 0)) continue
    throw new CorralError('unsupported_capability', `"${field}" cannot be used: ${why}.`, { param: field })
  }
}

/** Without a word on it a model does not think: clients then expect the answer's text to be its first block. */
function thinkingFields({ thinking, output_config }: CountRequest, defaults: Fields): Fields {
  const template = (defaults.chat_template_kwargs ?? {}) as Fields
  const fields: Fields = {
    chat_template_kwargs: thinking
      ? { ...template, enable_thinking: thinking.type !== 'disabled' }
      : { enable_thinking: false, ...template }
  }
  if (thinking?.type === 'enabled' && thinking.budget_tokens) fields.thinking_budget_tokens = thinking.budget_tokens
  const effort = output_config?.effort
  // Templates know three steps.
  if (effort) fields.reasoning_effort = effort === 'xhigh' || effort === 'max' ? 'high' : effort
  return fields
}

function toolFields({ tools, messages, tool_choice: choice }: CountRequest): Fields {
  const functions = offeredTools(tools ?? [], messages).map(functionOf)
  if (choice?.type === 'none') return {}
  const must = choice?.type === 'any' || choice?.type === 'tool'
  if (functions.length === 0) {
    if (must) throw invalid('tool_choice', 'asks for a tool, and "tools" has none')
    return {}
  }
  // The engine can be told to call some tool, but not which.
  const offered = choice?.type === 'tool' ? functions.filter(({ name }) => name === choice.name) : functions
  if (offered.length === 0) throw invalid('tool_choice.name', 'must be the name of one of "tools"')
  return {
    tools: offered.map(of => ({ type: 'function', function: of })),
    ...(must && { tool_choice: 'required' }),
    ...(choice?.disable_parallel_tool_use && { parallel_tool_calls: false })
  }
}

/** Tools that messages define come unchecked. */
function functionOf({ tool, place }: OfferedTool) {
  const { type, name, description, input_schema: parameters } = tool as Fields
  if (type !== undefined && type !== null && type !== 'custom') {
    throw new CorralError(
      'unsupported_capability',
      `"${place}" is of type ${JSON.stringify(String(type).slice(0, 60))}: corral has no tools of its own. Give a tool with a "name" and an "input_schema", and run it yourself.`,
      { param: `${place}.type` }
    )
  }
  if (typeof name !== 'string' || name === '') throw invalid(`${place}.name`, "must be the tool's name")
  if (typeof parameters !== 'object' || parameters === null || Array.isArray(parameters)) {
    throw invalid(`${place}.input_schema`, 'must be a JSON schema')
  }
  return { name, ...(typeof description === 'string' && description !== '' && { description }), parameters }
}

/** A tool and where in the request it is defined. */
interface OfferedTool {
  tool: ToolParam
  place: string
}

/**
 * The tools that a model may call where a conversation ends: those that are not deferred, and what messages changed
 * since then (results that refer to tools, `tool_addition`, `tool_removal`). The model is not told of others.
 * @throws CorralError `invalid_request` for a change that says no tool
 */
function offeredTools(tools: readonly ToolParam[], messages: readonly MessageParam[]): OfferedTool[] {
  const known = new Map<unknown, OfferedTool>()
  const offered = new Set<unknown>()
  const define = (tool: ToolParam, place: string) => {
    // Those without a name are refused where they are read.
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
    const { name, definition } = fieldsOf(block.tool)
    if (block.type === 'tool_removal') offered.delete(name)
    else if (typeof name === 'string') offered.add(name)
    else if (typeof definition === 'object' && definition !== null) {
      offered.add(define(definition as ToolParam, `${place}.tool.definition`))
    } else throw invalid(`${place}.tool`, 'must name a tool or hold the "definition" of one')
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
      for (const inner of block.content) yield { block: fieldsOf(inner), place }
    }
  }
}

function fieldsOf(value: unknown): Fields {
  return typeof value === 'object' && value !== null ? (value as Fields) : {}
}
