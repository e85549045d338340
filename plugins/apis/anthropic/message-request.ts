import { readThinking, thinkingFields } from '../../../core/answers/thinking.ts'
import { toolFields } from '../../../core/answers/tool-choice.ts'
import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import data from './anthropic-tools.json' with { type: 'json' }
import { engineMessages, invalid } from './history.ts'
import type { CountRequest, MessageParam, MessagesRequest, ToolParam } from './schemas.ts'

type Fields = Record<string, unknown>

/**
 * Converts a request for the engine.
 * @param defaults the effective options, under the engine's names; the request's own fields take precedence
 * @returns the engine's request, for each part of each message its place in the original request, the names in calls of
 * functions that have other names there, and the names of tools that were left out
 * @throws CorralError with the place in the request as `param`
 */
export function engineRequest(request: CountRequest & Partial<MessagesRequest>, defaults: Fields) {
  refuseThread(request)
  const { messages, places } = engineMessages(request)
  const { stop_sequences: stops, output_config } = request
  const format = output_config?.format ?? request.output_format
  const { tools, ...named } = requestedTools(request)
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
    ...named,
    body: {
      ...defaults,
      ...messageThinking(request, defaults),
      ...tools,
      ...(format && {
        response_format: { type: 'json_schema', json_schema: { name: 'answer', schema: format.schema } }
      }),
      ...(stops?.length && { stop: stops }),
      // Without these fields the engine also continues the message, but repeats its text.
      ...(continues && { continue_final_message: true, add_generation_prompt: false }),
      messages
    } as Fields & { messages: Fields[] }
  }
}

function refuseThread({ thread }: CountRequest): void {
  if (thread?.type === 'continue') {
    // The SDKs' tool runners recognize this code and send the whole conversation again.
    throw new CorralError('response_not_found', 'corral does not store conversations. Send all messages of this one.', {
      param: 'thread',
      details: { error_code: 'thread_not_found' }
    })
  }
}

/** Thinking is off unless the request enables it, because clients then expect the answer's text as the first block. */
function messageThinking({ thinking, output_config }: CountRequest, defaults: Fields): Fields {
  const template = (defaults.chat_template_kwargs ?? {}) as Fields
  const { enabled = template.enable_thinking !== undefined ? undefined : false, budget } = readThinking({ thinking })
  const { effort } = readThinking({ output_config })
  return {
    ...thinkingFields({ enabled, budget }, template),
    // Remote servers know three levels.
    ...(effort && { reasoning_effort: effort === 'xhigh' || effort === 'max' ? 'high' : effort })
  }
}

const MODES = { auto: undefined, none: 'none', any: 'required', tool: 'required' } as const

/**
 * Converts tools that clients run to functions. Tools that Anthropic's servers run are left out, because many programs
 * offer them in every request.
 * @throws CorralError `unsupported_capability` if a call is demanded and only such tools are left
 */
function requestedTools(request: CountRequest) {
  const { tools, messages, tool_choice: choice, mcp_servers: servers, container } = request
  const functions: ClientFunction[] = []
  const ignored = new Set<string>()
  const { offered, toolChanges } = offeredTools(tools ?? [], messages)
  for (const { tool, place } of offered) {
    const found = clientFunctions(tool) ?? ownFunction(tool, place)
    if (found) functions.push(...found)
    else if (!SEARCH.test(`${tool.type}`)) ignored.add(String(tool.name || tool.mcp_server_name || tool.type))
  }
  for (const server of Array.isArray(servers) ? servers : [])
    if (isObject(server)) ignored.add(String(server.name ?? server.url))
  if (container) ignored.add('container')
  const demanded = choice?.type === 'tool' ? choice.name : undefined
  const isLost = demanded != null && ignored.has(demanded) && functions.every(each => each.function.name !== demanded)
  if (functions.length === 0 && ignored.size > 0 && (isLost || choice?.type === 'any')) {
    const message = `"tool_choice" demands a call, but the only tools are run by Anthropic's servers: ${[...ignored].join(', ').slice(0, 200)}. Send tools with a "name" and an "input_schema", and run them yourself.`
    throw new CorralError('unsupported_capability', message, { param: 'tool_choice' })
  }
  const fields = toolFields(
    functions.map(of => ({ type: 'function', function: of.function })),
    {
      mode: choice && !isLost ? MODES[choice.type] : undefined,
      ...(choice?.type === 'tool' && !isLost && { names: [{ name: choice.name, param: 'tool_choice.name' }] })
    }
  )
  return {
    tools: {
      ...fields,
      ...(fields.tools && choice?.disable_parallel_tool_use ? { parallel_tool_calls: false } : {})
    } as Fields,
    called: new Map(functions.map(each => [each.function.name, each.called])),
    ignored: [...ignored],
    toolChanges
  }
}

/** Tools that find others. Nothing is lost without them, because then all tools are offered. */
const SEARCH = /^tool_search_tool_/

interface OfferedTool {
  tool: Fields
  place: string
}

/**
 * Converts a client's own tool into a function. Tools within messages are not covered by the request schema.
 * @returns undefined for a tool of another type, which Anthropic's servers run
 */
function ownFunction({ type, name, description, input_schema: parameters }: Fields, place: string) {
  const isOwn = type === undefined || type === null || type === 'custom'
  if (!isOwn && !isObject(parameters)) return undefined
  if (typeof name !== 'string' || name === '') throw invalid(`${place}.name`, "must be the tool's name")
  if (!isObject(parameters)) throw invalid(`${place}.input_schema`, 'must be a JSON schema')
  const about = typeof description === 'string' ? description : ''
  return [{ function: { name, ...(about !== '' && { description: about }), parameters } }] as ClientFunction[]
}

/**
 * Returns the tools that the model may call at the end of the conversation: all tools without `defer_loading`, plus the
 * changes in messages (`tool_reference`, `tool_addition`, `tool_removal`).
 * @throws CorralError `invalid_request` for a change that names no tool
 */
function offeredTools(tools: readonly ToolParam[], messages: readonly MessageParam[]) {
  const known = new Map<unknown, OfferedTool>()
  const offered = new Set<unknown>()
  const define = (tool: Fields, place: string) => {
    // Tools without a name are sets, or refused later.
    const key = tool.name || place
    known.set(key, { tool, place })
    return key
  }
  const isSearched = tools.some(({ type }) => SEARCH.test(`${type}`))
  tools.forEach((tool, index) => {
    const key = define(tool, `tools.${index}`)
    if (!tool.defer_loading || isSearched) offered.add(key)
  })
  for (const { block, place } of blocksIn(messages)) {
    if (block.type === 'tool_reference') offered.add(block.tool_name)
    if (block.type !== 'tool_addition' && block.type !== 'tool_removal') continue
    const { name, definition, server_name: server } = isObject(block.tool) ? block.tool : {}
    if (server !== undefined) continue
    if (block.type === 'tool_removal') offered.delete(name)
    else if (typeof name === 'string') offered.add(name)
    else if (isObject(definition)) offered.add(define(definition, `${place}.tool.definition`))
    else throw invalid(`${place}.tool`, 'must name a tool or contain the "definition" of one')
  }
  const toolChanges: Fields[] = []
  for (const [name, { tool, place }] of known) {
    const isDefinition = !place.startsWith('tools.')
    const change = isDefinition || tool.defer_loading ? 'tool_addition' : 'tool_removal'
    if (offered.has(name) !== (change === 'tool_addition') || (isSearched && !isDefinition)) continue
    const reference = isDefinition ? { type: 'tool_definition', definition: tool } : { type: 'tool_reference', name }
    toolChanges.push({ type: change, tool: reference })
  }
  return { offered: [...known].flatMap(([key, tool]) => (offered.has(key) ? [tool] : [])), toolChanges }
}

function* blocksIn(messages: readonly MessageParam[]): Generator<{ block: Fields; place: string }> {
  for (const [index, { content }] of messages.entries()) {
    if (!Array.isArray(content)) continue
    for (const [at, block] of content.entries()) {
      const place = `messages.${index}.content.${at}`
      yield { block, place }
      const { content: inside, tool_changes: changes } = block as Fields
      const references = isObject(inside) ? inside.tool_references : inside
      for (const inner of [references, changes].flat()) if (isObject(inner)) yield { block: inner, place }
    }
  }
}

/*
 * Anthropic's tools that clients run. Clients only send a type, because Anthropic's servers know the parameters. Here
 * each tool becomes a function, and each tool of a set becomes one too.
 *
 * The JSON file writes the parameters of a tool as a list of names: `?` marks optional ones, `=a|b` lists the values,
 * and `:key` names another entry of `parameters`. Tools in `disabled` are only offered if the request enables them.
 * `meanings` says what tools of sets do, if their names do not say it.
 */

/** A function, and for a tool of a set the names that its calls have. */
interface ClientFunction {
  function: { name: string; description: string; parameters: Fields }
  /** The fields of a `tool_use` block that names the function, if its name is another one there. */
  called?: { name: string; toolset_name: string }
}

const PARAMETERS: Fields = data.parameters
const SETS: Record<string, Record<string, string>> = data.sets
const MEANINGS: Record<string, string> = data.meanings

/** Returns the functions for a tool that clients run, or undefined for any other tool. */
function clientFunctions(tool: Fields): ClientFunction[] | undefined {
  const type = String(tool.type)
  const [, set] = /^(computer|browser)_toolset_/.exec(type) ?? []
  if (set) return setFunctions(set, isObject(tool.configs) ? tool.configs : {})
  const known = data.tools.find(each => new RegExp(each.type).test(type))
  if (!known) return undefined
  const { display_width_px: width, display_height_px: height } = tool
  const size = width && height ? ` The screen has ${width} × ${height} pixels.` : ''
  const parameters = tool.enable_zoom ? known.parameters : known.parameters.replace(/\|zoom| region\?/g, '')
  const name = typeof tool.name === 'string' && tool.name !== '' ? tool.name : known.name
  return [{ function: { name, description: known.description + size, parameters: schema(parameters) } }]
}

function setFunctions(set: string, configs: Fields): ClientFunction[] {
  return Object.entries(SETS[set]!).flatMap(([parameters, names]) =>
    names.split(' ').flatMap(name => {
      const config = configs[name]
      if (!((isObject(config) ? config.enabled : undefined) ?? !data.disabled.includes(name))) return []
      const description = `In the ${set}: ${MEANINGS[name] ?? name.replaceAll('_', ' ')}.`
      const called = { name, toolset_name: set }
      return [{ function: { name: `${set}_${name}`, description, parameters: schema(parameters) }, called }]
    })
  )
}

function schema(parameters: string): Fields {
  const properties: Fields = {}
  const required: string[] = []
  for (const word of parameters.split(' ').filter(Boolean)) {
    const [, key, name, values, optional] = /^(([a-z_]+)(?::\w+)?)(?:=([\w|]+))?(\??)$/.exec(word)!
    properties[name!] = values ? { type: 'string', enum: values.split('|') } : PARAMETERS[key!]
    if (!optional) required.push(name!)
  }
  return { type: 'object', properties, required }
}
