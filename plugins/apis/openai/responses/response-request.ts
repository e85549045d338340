import { randomBytes } from 'node:crypto'
import { Type } from 'typebox'
import { callArguments } from '../../../../core/answers/call-arguments.ts'
import { passedFields } from '../../../../core/answers/engine-fields.ts'
import { CorralError } from '../../../../core/errors.ts'
import { Given, ListOf, Loose } from '../../../../core/http/request-fields.ts'
import type { ParsedOptions } from '../../../../core/models/options.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { faultPlace } from '../../../../core/system/schema-check.ts'
import { stopField } from '../generation.ts'
import { logprobFields } from '../openai-answer.ts'
import { checkAgainst, type Path } from '../request-validation.ts'
import { callOf, isKnownItem, isOpenAiType, resultOf } from './call-items.ts'
import type { InputPart, Item, Message, Reasoning, ResponseRequest } from './schemas.ts'
import { engineTools, invalid, type PlacedTool, readTools } from './tools.ts'

type Fields = Record<string, unknown>

export type EngineRequest = ReturnType<typeof engineRequest>

/** Fields that are not passed to the engine, or have another meaning there. */
const OWN = [
  ...['model', 'name', 'input', 'instructions', 'previous_response_id', 'tools', 'tool_choice', 'parallel_tool_calls'],
  ...['text', 'reasoning', 'options', 'keep_alive', 'stream', 'stream_options', 'store', 'max_output_tokens'],
  ...['max_tool_calls', 'top_logprobs', 'include', 'truncation', 'metadata', 'user', 'background', 'service_tier'],
  ...['safety_identifier', 'prompt_cache_key', 'prompt_cache_options', 'prompt_cache_retention', 'conversation'],
  ...['prompt', 'context_management', 'moderation', 'messages', 'n']
]

const LOGPROBS = 'message.output_text.logprobs'

const REFUSED: Record<string, string> = {
  background: 'Responses cannot run in the background here. Remove "background" and use "stream".',
  conversation: 'Conversations are not stored here. Use "previous_response_id", or send the earlier items as "input".',
  prompt: 'Prompt templates are not stored here. Send their text as "instructions" and "input".',
  moderation: 'There is no moderation here. Remove "moderation".'
}

/**
 * @param added tools that items of the input add
 * @throws CorralError `unsupported_capability` or `invalid_request` with the field as `param`
 */
export function engineRequest(request: ResponseRequest, options: ParsedOptions, added: readonly PlacedTool[] = []) {
  for (const [field, sentence] of Object.entries(REFUSED)) {
    const value = (request as Fields)[field]
    if (value === undefined || value === null || value === false) continue
    throw new CorralError('unsupported_capability', sentence, { param: field })
  }
  const { top_logprobs: top, truncation, reasoning, max_output_tokens, parallel_tool_calls: parallel } = request
  const tools = readTools(request.tools ?? [], added)
  const logprobs = top || request.include?.includes(LOGPROBS) ? (top ?? 0) : undefined
  const overflow = truncation && (truncation === 'auto' ? 'drop_oldest' : 'error')
  const passed = passedFields(request, options, OWN)
  return {
    fields: {
      ...passed,
      ...stopField(passed.stop as string | string[] | undefined),
      ...(max_output_tokens && { max_tokens: max_output_tokens }),
      ...engineTools(tools, request.tool_choice),
      ...(typeof parallel === 'boolean' && { parallel_tool_calls: parallel }),
      ...responseFormat(request.text?.format as Fields | null | undefined),
      ...(reasoning?.effort && { reasoning_effort: reasoning.effort }),
      ...(logprobs !== undefined && logprobFields(logprobs))
    } as Fields,
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

type FindItem = (id: string) => Item | undefined

const Text = Type.String({ minLength: 1 })
const Content = Type.Union([Type.String(), ListOf({})])
const OtherItem = Loose({ call_id: Given(Type.String()) })
const Output = Loose({ call_id: Text, output: Content })
const Texts = Given(ListOf({ text: Type.String() }))

const ROLES = ['user', 'assistant', 'system', 'developer'] as const
/** Other roles of messages that the API has returned. Templates only know the usual ones. */
const OTHER_ROLES = ['unknown', 'critic', 'discriminator', 'tool'] as const

const Anything = Loose({})
const TextPart = Loose({ text: Type.String() })
const REQUIRED = {
  message: Loose({ role: Type.Enum([...ROLES, ...OTHER_ROLES]), content: Content }),
  function_call: Loose({
    name: Text,
    call_id: Text,
    namespace: Given(Type.String()),
    arguments: Type.Optional(Type.Unknown())
  }),
  custom_tool_call: Loose({ name: Text, call_id: Text, input: Type.String() }),
  function_call_output: Output,
  custom_tool_call_output: Output,
  reasoning: Loose({ summary: Texts, content: Texts }),
  item_reference: Loose({ id: Text })
}

export function newId(prefix: string): string {
  return `${prefix}_${randomBytes(24).toString('hex')}`
}

function unsupported(path: Path, sentences: string): CorralError {
  const param = faultPlace({ path })
  return new CorralError('unsupported_capability', `"${param}": ${sentences}`, { param })
}

/** Quotes a type in an error only if it looks like a type. Anything else could be part of a prompt. */
function describeType(type: string): string {
  return /^[\w.-]{1,60}$/.test(type) ? `of type "${type}"` : 'of an unknown type'
}

/** Completes the items of an `input` with ids, text as parts and resolved references. @throws CorralError */
export function readInput(input: string | readonly unknown[], find: FindItem): Item[] {
  const items = typeof input === 'string' ? [{ role: 'user', content: input }] : input
  return items.map((item, index) => readItem(item, ['input', index], find))
}

function readItem(given: unknown, at: Path, find: FindItem): Item {
  const item = checkAgainst(Anything, given, at) as Fields
  const type = itemType(item)
  switch (type) {
    case 'message':
      return message(item, at)
    case 'function_call': {
      const { name, call_id, namespace, arguments: given } = checkAgainst(REQUIRED[type], item, at)
      const group = namespace ? { namespace } : {}
      const text = typeof given === 'string' ? given : JSON.stringify(given ?? {})
      return { type, ...identity(item, 'fc'), call_id, name, ...group, arguments: text }
    }
    case 'function_call_output':
    case 'custom_tool_call_output': {
      const { call_id, output } = checkAgainst(REQUIRED[type], item, at)
      const read = typeof output === 'string' ? output : inputParts(output, [...at, 'output'])
      return { type, ...identity(item, 'fco'), call_id, output: read }
    }
    case 'reasoning': {
      const { summary, content } = checkAgainst(REQUIRED[type], item, at)
      return {
        type,
        ...identity(item, 'rs'),
        summary: (summary ?? []).map(({ text }) => ({ type: 'summary_text', text })),
        content: (content ?? []).map(({ text }) => ({ type: 'reasoning_text', text }))
      }
    }
    case 'item_reference':
      return referenced(checkAgainst(REQUIRED[type], item, at).id, [...at, 'id'], find)
    default:
      if (typeof type !== 'string' || type === '')
        throw invalid([...at, 'type'], 'the type of an item, such as "message"')
      checkAgainst(type === 'custom_tool_call' ? REQUIRED[type] : OtherItem, item, at)
      if (isKnownItem(type) || (isOpenAiType(type) && item.role === undefined)) {
        return { ...item, type, ...identity(item, 'item') }
      }
      throw unsupported(
        [...at, 'type'],
        `items ${describeType(type)} are unknown. Send messages, reasoning, calls of tools and their outputs.`
      )
  }
}

/** Messages and references may lack a type. */
function itemType({ type, role, id }: Fields): unknown {
  if (type !== undefined && type !== null) return type
  if (role !== undefined) return 'message'
  return id === undefined ? undefined : 'item_reference'
}

function identity({ id, status }: Fields, prefix: string): Pick<Item, 'id' | 'status'> {
  const usable = typeof id === 'string' && id !== '' && id.length <= 200
  const isTruncated = status === 'incomplete' || status === 'in_progress'
  return { id: usable ? id : newId(prefix), status: isTruncated ? 'incomplete' : 'completed' }
}

function message(item: Fields, at: Path): Item {
  const { role, content } = checkAgainst(REQUIRED.message, item, at)
  const common = { type: 'message', ...identity(item, 'msg') } as const
  const place = [...at, 'content']
  if (role !== 'assistant') {
    const known = role === 'system' || role === 'developer' ? role : 'user'
    return { ...common, role: known, content: inputParts(content, place) }
  }
  const texts = typeof content === 'string' ? [content] : (content as Fields[]).map(assistantText)
  return { ...common, role, content: texts.map(text => ({ type: 'output_text', text, annotations: [], logprobs: [] })) }

  function assistantText(part: Fields, index: number): string {
    const { type, text = part.transcript } = part
    const said = type === 'refusal' ? part.refusal : text
    if (typeof said === 'string') return said
    if (/text|refusal/.test(`${type}`)) throw invalid([...place, index], "a part with the assistant's text")
    return unreadable(part, [...place, index]).text
  }
}

/** Returns a sentence instead of a part that the API has returned, but that models cannot read here. */
function unreadable({ type }: Fields, at: Path): { type: 'input_text'; text: string } {
  if (typeof type !== 'string') throw invalid([...at, 'type'], '"input_text" or "input_image"')
  if (isOpenAiType(type)) return { type: 'input_text', text: `[There was a part of type ${type} here.]` }
  throw unsupported([...at, 'type'], `parts ${describeType(type)} are not supported. Send text or images.`)
}

function inputParts(content: string | object[], at: Path): InputPart[] {
  if (typeof content === 'string') return [{ type: 'input_text', text: content }]
  return content.map((part, index) => inputPart(part as Fields, [...at, index]))
}

/** Images and audio are checked later, when the model is known. */
function inputPart(part: Fields, at: Path): InputPart {
  const { type } = part
  switch (type) {
    case 'input_text':
    case 'output_text':
    case 'summary_text':
    case 'reasoning_text':
    case 'text':
      return { type: 'input_text', text: checkAgainst(TextPart, part, at).text }
    case 'refusal':
      return { type: 'input_text', text: String(part.refusal ?? '') }
    case 'input_image':
    case 'computer_screenshot': {
      const { image_url, detail } = part
      return { type: 'input_image', image_url, detail: typeof detail === 'string' ? detail : 'auto' }
    }
    case 'input_audio': {
      const { data, format } = isObject(part.input_audio) ? part.input_audio : {}
      return { type, input_audio: { data, ...(typeof format === 'string' && { format }) } }
    }
    case 'input_file': {
      const texts = ['file_data', 'file_id', 'file_url', 'filename'].filter(name => typeof part[name] === 'string')
      return { type, ...Object.fromEntries(texts.map(name => [name, part[name]])) }
    }
    default:
      return unreadable(part, at)
  }
}

function referenced(id: string, path: Path, find: FindItem): Item {
  const item = find(id)
  if (item) return item
  const param = faultPlace({ path })
  const message = `"${param}" refers to an item that is not stored: it was never stored, its response was deleted or removed to free memory, or the server was restarted. Send the item itself.`
  throw new CorralError('response_not_found', message, { param })
}

const isReasoning = (item: Item): item is Reasoning => item.type === 'reasoning'
const isMessage = (item: Item): item is Message => item.type === 'message'

type Content = string | Record<string, unknown>[]

export interface EngineMessage {
  role: 'system' | 'user' | 'assistant' | 'tool'
  content?: Content
  reasoning_content?: string
  tool_calls?: { id: string; type: 'function'; function: { name: string; arguments: string } }[]
  tool_call_id?: string
  name?: string
  [other: string]: unknown
}

/** An item and its place in the request. Items of earlier responses have no place. */
export interface PlacedItem {
  item: Item
  place?: string
}

function engineContent(parts: readonly InputPart[]): Content {
  const [first] = parts
  if (parts.length === 1 && first!.type === 'input_text') return first!.text
  return parts.map(part => {
    if (part.type === 'input_text') return { type: 'text', text: part.text }
    if (part.type === 'input_image') return { type: 'image_url', image_url: { url: part.image_url } }
    if (part.type === 'input_file') return { type: 'file', file: part }
    return { ...part }
  })
}

/**
 * Converts a conversation to chat messages. Consecutive reasoning, text and calls become one assistant message, and
 * leading system messages become one, because many templates allow no more.
 * @returns the messages, and the place of each one's content in the request
 */
export function engineMessages(items: readonly PlacedItem[], instructions?: string) {
  const messages: EngineMessage[] = []
  const places: string[] = []
  const names = new Map<string, string>()
  const answered = new Set(items.map(({ item }) => resultOf(item)?.id))
  const push = (message: EngineMessage, place = 'previous_response_id') => {
    messages.push(message)
    places.push(place)
    return message
  }
  /** Returns the last assistant message, or a new one if the last has a field that must come after the added one. */
  const assistant = (...closed: (keyof EngineMessage)[]) => {
    const last = messages.at(-1)
    const open = last?.role === 'assistant' && closed.every(field => last[field] === undefined)
    return open ? last : push({ role: 'assistant' })
  }
  if (instructions) push({ role: 'system', content: instructions }, 'instructions')
  for (const { item, place } of items) {
    if (isReasoning(item)) {
      const text = (item.content.length > 0 ? item.content : item.summary).map(part => part.text).join('\n')
      if (text) assistant('content', 'tool_calls', 'reasoning_content').reasoning_content = text
    } else if (!isMessage(item)) addCall(item, place)
    else if (item.role === 'assistant') {
      assistant('content', 'tool_calls').content = item.content.map(part => part.text).join('')
    } else if (item.role === 'user')
      push({ role: 'user', content: engineContent(item.content) }, place && `${place}.content`)
    else addSystem(engineContent(item.content), place && `${place}.content`)
  }
  // Engines require content in a message without calls.
  for (const message of messages) if (!message.tool_calls) message.content ??= ''
  return { messages, places }

  function addCall(item: Item, place: string | undefined): void {
    const call = callOf(item)
    // A truncated call is kept only if the client answered it.
    if (call && (!call.isOpen || answered.has(call.id))) {
      const { id, name } = call
      names.set(id, name)
      const message = assistant()
      message.tool_calls ??= []
      message.tool_calls.push({ id, type: 'function', function: { name, arguments: callArguments(call.arguments) } })
    }
    const result = resultOf(item)
    if (!result) return
    const { id, content } = result
    const name = names.get(id)
    const output = typeof content === 'string' ? content : engineContent(content)
    push({ role: 'tool', tool_call_id: id, ...(name && { name }), content: output }, place && `${place}.output`)
  }

  function addSystem(content: Content, place: string | undefined): void {
    const [first] = messages
    const joinable = messages.length === 1 && first!.role === 'system' && typeof first!.content === 'string'
    if (joinable && typeof content === 'string') first!.content = `${first!.content}\n\n${content}`
    else push({ role: 'system', content }, place)
  }
}
