import { CorralError } from '../../core/errors.ts'
import { engineMessages } from './engine-messages.ts'
import { askLogprobs } from './logprobs.ts'
import type { ChatRequest } from './request-schemas.ts'

type Fields = Record<string, unknown>
type Tool = NonNullable<ChatRequest['tools']>[number]

/** What a chat asks that engines do not do by themselves. */
export interface ChatExtras {
  /** How many of the likeliest tokens are told at each place; undefined where no probabilities are asked for. */
  logprobs?: number
  /** The request speaks of functions in the place of tools, and so does the answer. */
  legacyFunctions: boolean
}

/**
 * A hosted-chat body as engines take it.
 * @param fields the body that was checked, its options already in it
 * @throws CorralError with the field at fault as `param`
 */
export function chatFields(fields: ChatRequest & Fields): { fields: Fields; extras: ChatExtras } {
  const { messages, tools, tool_choice, functions, function_call, logprobs, top_logprobs, ...rest } = fields
  if (rest.modalities?.some(kind => kind !== 'text')) {
    throw new CorralError('unsupported_capability', 'Answers are text: "modalities" may ask for nothing else.', {
      param: 'modalities'
    })
  }
  if (rest.response_format?.type === 'json_schema' && !rest.response_format.json_schema) {
    const param = 'response_format.json_schema'
    throw new CorralError('invalid_request', `"${param}" is missing. It must be an object with "schema".`, { param })
  }
  if (top_logprobs && !logprobs) {
    throw new CorralError('invalid_request', '"top_logprobs" needs "logprobs": true beside it.', {
      param: 'top_logprobs'
    })
  }
  const legacyFunctions = Boolean(functions?.length) && !tools?.length
  const given = legacyFunctions ? functions!.map(called => ({ type: 'function' as const, function: called })) : tools
  const choice = legacyFunctions ? olderChoice(function_call) : tool_choice
  return {
    fields: {
      ...rest,
      ...withStops(rest.stop),
      ...chosenTools((given ?? []).map(plainTool), choice),
      // Older clients expect one call at most.
      ...(legacyFunctions && { parallel_tool_calls: false }),
      ...(logprobs && askLogprobs(top_logprobs ?? 0)),
      messages: engineMessages(messages)
    },
    extras: { legacyFunctions, ...(logprobs && { logprobs: top_logprobs ?? 0 }) }
  }
}

/** An empty stop text would end every answer at once. */
export function withStops(stop: string | string[] | null | undefined): Fields {
  return stop === undefined || stop === null ? {} : { stop: [stop].flat().filter(text => text !== '') }
}

/** Without what is null: engines may take it for a value. */
function plainTool({ type, function: called }: Tool): Tool {
  return {
    type,
    function: Object.fromEntries(Object.entries(called).filter(([, value]) => value !== null)) as Tool['function']
  }
}

function olderChoice(choice: ChatRequest['function_call']): ChatRequest['tool_choice'] {
  return typeof choice === 'object' && choice ? { type: 'function', function: { name: choice.name } } : choice
}

/**
 * The tools that may be called, and whether one must be. Not every engine takes a choice but by a word: where one is
 * named, it gets no other tool to choose.
 */
function chosenTools(tools: readonly Tool[], choice: ChatRequest['tool_choice']): Fields {
  const need = (names: (string | undefined)[], param: string, mode: string): Fields => {
    const chosen = tools.filter(tool => names.includes(tool.function.name))
    if (chosen.length > 0 && names.every(name => chosen.some(tool => tool.function.name === name))) {
      return { tools: chosen, tool_choice: mode }
    }
    throw new CorralError('invalid_request', `"${param}" must name a function that is among the tools.`, { param })
  }
  if (typeof choice === 'object' && choice) {
    if (choice.type === 'function') return need([choice.function?.name], 'tool_choice.function.name', 'required')
    if (choice.type === 'allowed_tools' && choice.allowed_tools) {
      const { mode, tools: allowed } = choice.allowed_tools
      const names = allowed.map(tool => (tool as Partial<Tool>).function?.name)
      return need(names, 'tool_choice.allowed_tools.tools', mode)
    }
    throw new CorralError('invalid_request', '"tool_choice.type" must be "function" or "allowed_tools".', {
      param: 'tool_choice.type'
    })
  }
  if (choice === 'required' && tools.length === 0) {
    throw new CorralError('invalid_request', '"tool_choice" requires a call, but there are no "tools".', {
      param: 'tool_choice'
    })
  }
  // A model that knows of tools might call one all the same.
  if (tools.length === 0 || choice === 'none') return {}
  return { tools, ...(choice && { tool_choice: choice }) }
}
