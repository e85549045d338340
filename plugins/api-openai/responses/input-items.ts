import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import {
  type FunctionCallOutput,
  type InputPart,
  type Item,
  type ItemStatus,
  newId,
  type OutputText,
  type ReasoningItem
} from './items.ts'

type Fields = Record<string, unknown>

/** Gives an item that an earlier response left here, by its id. */
export type FindItem = (id: string) => Item | undefined

export function invalid(param: string, allowed: string): CorralError {
  return new CorralError('invalid_request', `"${param}" must be ${allowed}.`, { param })
}

function unsupported(param: string, what: string, instead: string): CorralError {
  return new CorralError('unsupported_capability', `"${param}": ${what} ${instead}`, { param })
}

/** What type of thing a client sent, where it may be repeated to it: anything else could be part of a prompt. */
export function ofType(type: string): string {
  return /^[\w.-]{1,60}$/.test(type) ? `of type "${type}"` : 'of an unknown type'
}

/**
 * The `input` of a request as items in full: each with an id, text as parts, references replaced by what they refer to.
 * @throws CorralError `invalid_request` or `unsupported_capability` with the place as `param`, `response_not_found`
 */
export function readInput(input: string | readonly unknown[], find: FindItem): Item[] {
  if (typeof input === 'string') {
    return [
      { type: 'message', id: newId('msg'), status: 'completed', role: 'user', content: inputParts(input, 'input') }
    ]
  }
  return input.map((item, index) => readItem(item, `input[${index}]`, find))
}

function readItem(item: unknown, at: string, find: FindItem): Item {
  if (!isObject(item)) throw invalid(at, 'an object')
  switch (typeOf(item)) {
    case 'message':
      return message(item, at)
    case 'function_call': {
      const { name, call_id } = item
      if (!isText(name)) throw invalid(`${at}.name`, 'the name of a function')
      if (!isText(call_id)) throw invalid(`${at}.call_id`, 'the id of the call')
      return {
        type: 'function_call',
        ...common(item, 'fc'),
        call_id,
        name,
        ...(isText(item.namespace) && { namespace: item.namespace }),
        arguments: callArguments(item, at)
      }
    }
    case 'function_call_output':
      return callOutput(item, at)
    case 'reasoning':
      return reasoning(item, at)
    case 'item_reference':
      return referred(item.id, `${at}.id`, find)
    default:
      if (!isText(item.type)) throw invalid(`${at}.type`, 'the type of an item, such as "message"')
      throw unsupported(
        `${at}.type`,
        `items ${ofType(item.type)} cannot be read here.`,
        'Send messages, reasoning, function calls and their outputs.'
      )
  }
}

/** Messages and references may come without a type. */
function typeOf(item: Fields): unknown {
  if (item.type !== undefined && item.type !== null) return item.type
  if (item.role !== undefined) return 'message'
  return item.id === undefined ? undefined : 'item_reference'
}

const isText = (value: unknown): value is string => typeof value === 'string' && value !== ''

function common(item: Fields, prefix: Parameters<typeof newId>[0]): { id: string; status: ItemStatus } {
  const id = isText(item.id) && item.id.length <= 200 ? item.id : newId(prefix)
  return { id, status: item.status === 'incomplete' ? 'incomplete' : 'completed' }
}

function message(item: Fields, at: string): Item {
  const { role, content } = item
  if (role === 'assistant') {
    return { type: 'message', ...common(item, 'msg'), role, content: outputParts(content, `${at}.content`) }
  }
  if (role !== 'user' && role !== 'system' && role !== 'developer') {
    throw invalid(`${at}.role`, '"user", "assistant", "system" or "developer"')
  }
  return { type: 'message', ...common(item, 'msg'), role, content: inputParts(content, `${at}.content`) }
}

/** What a model said before. */
function outputParts(content: unknown, at: string): OutputText[] {
  const texts = typeof content === 'string' ? [content] : listOf(content, at).map(textOf)
  return texts.map(text => ({ type: 'output_text', text, annotations: [], logprobs: [] }))

  function textOf(part: Fields, index: number): string {
    const text = part.type === 'refusal' ? part.refusal : part.text
    if (typeof text !== 'string') throw invalid(`${at}[${index}]`, 'a part with the text that the assistant gave')
    return text
  }
}

function inputParts(content: unknown, at: string): InputPart[] {
  if (typeof content === 'string') return [{ type: 'input_text', text: content }]
  return listOf(content, at).map((part, index) => inputPart(part, `${at}[${index}]`))
}

function listOf(content: unknown, at: string): Fields[] {
  if (!Array.isArray(content)) throw invalid(at, 'text or a list of parts')
  content.forEach((part, index) => {
    if (!isObject(part)) throw invalid(`${at}[${index}]`, 'an object')
  })
  return content
}

/** Images and sounds are looked into once the model is known that is to understand them. */
function inputPart(part: Fields, at: string): InputPart {
  const { type } = part
  if (type === 'input_text' || type === 'output_text' || type === 'text') {
    if (typeof part.text !== 'string') throw invalid(`${at}.text`, 'text')
    return { type: 'input_text', text: part.text }
  }
  if (type === 'input_image') {
    if (!isText(part.image_url) && isText(part.file_id)) {
      throw unsupported(`${at}.file_id`, 'no files are kept here.', 'Send the image as a data URL in "image_url".')
    }
    const { image_url, detail } = part
    return { type: 'input_image', image_url, detail: isText(detail) ? detail : 'auto' }
  }
  if (type === 'input_audio') {
    const { data, format } = isObject(part.input_audio) ? part.input_audio : {}
    return { type: 'input_audio', input_audio: { data, ...(isText(format) && { format }) } }
  }
  if (type === 'input_file') {
    throw unsupported(`${at}.type`, 'files cannot be read here.', 'Send their text as "input_text".')
  }
  if (!isText(type)) throw invalid(`${at}.type`, '"input_text" or "input_image"')
  throw unsupported(`${at}.type`, `parts ${ofType(type)} cannot be read here.`, 'Send text or images.')
}

/** The JSON text of a call's arguments; templates take it apart. */
function callArguments(item: Fields, at: string): string {
  const given = item.arguments ?? ''
  if (given === '') return '{}'
  // What a response that was cut left of a call is no JSON yet.
  if (typeof given === 'string' && item.status === 'incomplete') return given
  try {
    if (typeof given === 'string') {
      JSON.parse(given)
      return given
    }
  } catch {
    // Said below.
  }
  throw invalid(`${at}.arguments`, 'JSON text')
}

function callOutput(item: Fields, at: string): FunctionCallOutput {
  const { call_id, output } = item
  if (!isText(call_id)) throw invalid(`${at}.call_id`, 'the id of the call that this is the output of')
  return {
    type: 'function_call_output',
    ...common(item, 'fco'),
    call_id,
    output: typeof output === 'string' ? output : inputParts(output, `${at}.output`)
  }
}

function reasoning(item: Fields, at: string): ReasoningItem {
  const texts = (field: 'content' | 'summary') =>
    listOf(item[field] ?? [], `${at}.${field}`).map(({ text }, index) => {
      if (typeof text !== 'string') throw invalid(`${at}.${field}[${index}].text`, 'text')
      return text
    })
  return {
    type: 'reasoning',
    ...common(item, 'rs'),
    summary: texts('summary').map(text => ({ type: 'summary_text', text })),
    content: texts('content').map(text => ({ type: 'reasoning_text', text }))
  }
}

function referred(id: unknown, param: string, find: FindItem): Item {
  if (!isText(id)) throw invalid(param, 'the id of an item')
  const item = find(id)
  if (item) return item
  throw new CorralError(
    'response_not_found',
    `"${param}" refers to an item that is not here: it was never stored, or its response has been deleted, was among the oldest when room was needed, or came before a restart. Send the item itself.`,
    { param }
  )
}
