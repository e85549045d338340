import { randomBytes } from 'node:crypto'
import { Type } from 'typebox'
import { CorralError } from '../../../../core/errors.ts'
import { Given, ListOf, Loose } from '../../../../core/http/request-fields.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { faultPlace } from '../../../../core/system/schema-check.ts'
import { checkAgainst, type Path } from '../request-validation.ts'
import type { InputPart, Item } from './schemas.ts'

type Fields = Record<string, unknown>

/** Finds an item of an earlier response by its id. */
type FindItem = (id: string) => Item | undefined

const Text = Type.String({ minLength: 1 })
const Content = Type.Union([Type.String(), ListOf({})])
const Texts = Given(ListOf({ text: Type.String() }))

const Anything = Loose({})
const TextPart = Loose({ text: Type.String() })
/** The required fields of each type of item. */
const REQUIRED = {
  message: Loose({ role: Type.Enum(['user', 'assistant', 'system', 'developer']), content: Content }),
  function_call: Loose({
    name: Text,
    call_id: Text,
    namespace: Given(Type.String()),
    arguments: Type.Optional(Type.Unknown())
  }),
  function_call_output: Loose({ call_id: Text, output: Content }),
  reasoning: Loose({ summary: Texts, content: Texts }),
  item_reference: Loose({ id: Text })
}

/** Generates an id in OpenAI's format, such as `msg_` with 48 hex digits. */
export function newId(prefix: 'resp' | 'msg' | 'rs' | 'fc' | 'fco' | 'call'): string {
  return `${prefix}_${randomBytes(24).toString('hex')}`
}

export function invalid(path: Path, allowed: string): CorralError {
  const param = faultPlace({ path })
  return new CorralError('invalid_request', `"${param}" must be ${allowed}.`, { param })
}

function unsupported(path: Path, sentences: string): CorralError {
  const param = faultPlace({ path })
  return new CorralError('unsupported_capability', `"${param}": ${sentences}`, { param })
}

/** Quotes a type in an error only if it looks like a type. Anything else could be part of a prompt. */
export function describeType(type: string): string {
  return /^[\w.-]{1,60}$/.test(type) ? `of type "${type}"` : 'of an unknown type'
}

/**
 * Parses the `input` of a request into complete items: with ids, with text as parts, and with references resolved.
 * @throws CorralError `invalid_request` or `unsupported_capability` with the place as `param`, `response_not_found`
 */
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
    case 'function_call_output': {
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
      throw unsupported(
        [...at, 'type'],
        `items ${describeType(type)} are not supported. Send messages, reasoning, function calls and their outputs.`
      )
  }
}

/** Messages and references may lack a type. */
function itemType({ type, role, id }: Fields): unknown {
  if (type !== undefined && type !== null) return type
  if (role !== undefined) return 'message'
  return id === undefined ? undefined : 'item_reference'
}

function identity({ id, status }: Fields, prefix: Parameters<typeof newId>[0]): Pick<Item, 'id' | 'status'> {
  const usable = typeof id === 'string' && id !== '' && id.length <= 200
  return { id: usable ? id : newId(prefix), status: status === 'incomplete' ? 'incomplete' : 'completed' }
}

function message(item: Fields, at: Path): Item {
  const { role, content } = checkAgainst(REQUIRED.message, item, at)
  const common = { type: 'message', ...identity(item, 'msg') } as const
  const place = [...at, 'content']
  if (role !== 'assistant') return { ...common, role, content: inputParts(content, place) }
  const texts = typeof content === 'string' ? [content] : (content as Fields[]).map(assistantText)
  return { ...common, role, content: texts.map(text => ({ type: 'output_text', text, annotations: [], logprobs: [] })) }

  function assistantText(part: Fields, index: number): string {
    const text = part.type === 'refusal' ? part.refusal : part.text
    if (typeof text === 'string') return text
    throw invalid([...place, index], "a part with the assistant's text")
  }
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
    case 'text':
      return { type: 'input_text', text: checkAgainst(TextPart, part, at).text }
    case 'input_image': {
      const { image_url, detail, file_id } = part
      if (!image_url && file_id) {
        throw unsupported([...at, 'file_id'], 'files are not stored here. Send the image as a data URL in "image_url".')
      }
      return { type, image_url, detail: typeof detail === 'string' ? detail : 'auto' }
    }
    case 'input_audio': {
      const { data, format } = isObject(part.input_audio) ? part.input_audio : {}
      return { type, input_audio: { data, ...(typeof format === 'string' && { format }) } }
    }
    case 'input_file':
      throw unsupported([...at, 'type'], 'files are not supported. Send their text as "input_text".')
    default:
      if (typeof type !== 'string') throw invalid([...at, 'type'], '"input_text" or "input_image"')
      throw unsupported([...at, 'type'], `parts ${describeType(type)} are not supported. Send text or images.`)
  }
}

function referenced(id: string, path: Path, find: FindItem): Item {
  const item = find(id)
  if (item) return item
  const param = faultPlace({ path })
  throw new CorralError(
    'response_not_found',
    `"${param}" refers to an item that is not stored: it was never stored, its response was deleted or removed to free memory, or the server was restarted. Send the item itself.`,
    { param }
  )
}
