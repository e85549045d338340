import { callArguments } from '../../../core/answers/call-arguments.ts'
import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import type { CountRequest, MessageParam } from './schemas.ts'

type Fields = Record<string, unknown>

/** A block and its place in the request. */
interface Block {
  block: Fields
  place: string
}

/** A part of an engine message, and the place in the request that it comes from. */
interface Part {
  content: { type: 'text'; text: string } | { type: 'image_url'; image_url: { url: string } }
  place: string
}

/**
 * Clients see tool call ids with this prefix. It is removed for the engine, because templates may need the original id.
 */
const ID_PREFIX = 'toolu_'

/**
 * A header that Claude Code puts before its system message. Models cannot use it, and because it differs in every
 * request, it would prevent prompt caching.
 */
const BILLING_HEADER = /^x-anthropic-billing-header:(\s*[\w.-]+=[^;\n]*;)+\s*/

const MEDIA_TYPE = /^image\/[a-z0-9.+-]+$/i

export function toClientId(id: string): string {
  return ID_PREFIX + id
}

function engineId(id: string): string {
  return id.startsWith(ID_PREFIX) ? id.slice(ID_PREFIX.length) : id
}

export function invalid(place: string, must: string): CorralError {
  return new CorralError('invalid_request', `"${place}" ${must}.`, { param: place })
}

/** Returns the error for a block whose type is not allowed in its place. */
function blockNotAllowed({ block, place }: Block, allowed: string): CorralError {
  const type = typeof block.type === 'string' ? block.type : ''
  return new CorralError(
    'invalid_request',
    `"${place}" is a block of type ${JSON.stringify(type.slice(0, 60))}, which is not allowed there. Allowed are ${allowed}.`,
    { param: `${place}.type` }
  )
}

/**
 * Converts the messages and system blocks of a request for the engine. Consecutive messages of the same role become
 * one, tool results become messages, and leading system blocks become one message. Later system blocks go into a user
 * message, because most templates refuse a system message there.
 * @returns the messages, and for each part of each message its place in the request
 * @throws CorralError `invalid_request` or `unsupported_capability` with the place as `param`
 */
export function engineMessages({ system, messages }: Pick<CountRequest, 'system' | 'messages'>): {
  messages: Fields[]
  places: string[][]
} {
  const converted: { messages: Fields[]; places: string[][] } = { messages: [], places: [] }
  const add = (message: Fields, parts: readonly Part[] = []) => {
    converted.messages.push(message)
    converted.places.push(parts.map(({ place }) => place))
  }
  const turns = mergeMessages(messages)
  const opening = turns[0]?.role === 'system' ? turns.shift()! : undefined
  const text = systemText([...readBlocks(system ?? [], 'system'), ...(opening?.blocks ?? [])])
  if (text !== '') add({ role: 'system', content: text })
  for (const { role, blocks } of turns) {
    if (role === 'assistant') add(assistantMessage(blocks))
    else addUserMessages(blocks, add)
  }
  const last = turns.at(-1)
  if (last?.role === 'assistant' && last.blocks.some(({ block }) => block.type === 'tool_use')) {
    throw invalid(
      `messages.${messages.length - 1}`,
      'has tool calls without results. Add a user message with their tool_result blocks'
    )
  }
  return converted
}

function mergeMessages(messages: readonly MessageParam[]): { role: string; blocks: Block[] }[] {
  const turns: { role: string; blocks: Block[] }[] = []
  const lastOfUser = messages.findLastIndex(({ role }) => role === 'user')
  messages.forEach((message, index) => {
    if (message.clear_at === 'next_user_message' && index < lastOfUser) return
    let role: string = message.role
    let blocks = readBlocks(message.content, `messages.${index}.content`)
    if (role === 'system' && turns.some(turn => turn.role !== 'system')) {
      role = 'user'
      blocks = reminder(blocks)
      if (blocks.length === 0) return
    }
    const turn = turns.at(-1)
    if (turn?.role === role) turn.blocks.push(...blocks)
    else turns.push({ role, blocks })
  })
  return turns
}

/** The tag that programs for Anthropic's models used before system messages were allowed within a conversation. */
function reminder(blocks: readonly Block[]): Block[] {
  const text = systemText(blocks)
  if (text === '') return []
  const marked = `<system-reminder>\n${text}\n</system-reminder>`
  return [{ block: { type: 'text', text: marked }, place: blocks[0]!.place }]
}

function systemText(blocks: readonly Block[]): string {
  const texts = blocks.map(given => {
    const { type } = given.block
    if (type === 'tool_addition' || type === 'tool_removal') return ''
    if (type !== 'text') throw blockNotAllowed(given, 'text, tool_addition and tool_removal')
    return requireText(given, 'text').replace(BILLING_HEADER, '')
  })
  return texts.filter(text => text !== '').join('\n')
}

function assistantMessage(blocks: readonly Block[]): Fields {
  let content = ''
  let thoughts = ''
  const calls: Fields[] = []
  for (const given of blocks) {
    const { type, input } = given.block
    if (type === 'text') content += requireText(given, 'text')
    else if (type === 'thinking') thoughts += requireText(given, 'thinking')
    else if (type === 'tool_use') {
      const called = { name: requireText(given, 'name'), arguments: callArguments(input) }
      calls.push({ id: engineId(requireText(given, 'id')), type: 'function', function: called })
    } else if (type !== 'redacted_thinking') {
      // Redacted thinking is encrypted, so it is skipped.
      throw blockNotAllowed(given, 'text, thinking, redacted_thinking and tool_use')
    }
  }
  return {
    role: 'assistant',
    content,
    ...(thoughts !== '' && { reasoning_content: thoughts }),
    ...(calls.length > 0 && { tool_calls: calls })
  }
}

/** Tool results come first because templates expect them directly after the calls. */
function addUserMessages(blocks: readonly Block[], add: (message: Fields, parts: readonly Part[]) => void): void {
  const parts: Part[] = []
  let results = 0
  for (const given of blocks) {
    if (given.block.type === 'tool_result') {
      const read = resultParts(given)
      add({ role: 'tool', tool_call_id: engineId(requireText(given, 'tool_use_id')), content: joinParts(read) }, read)
      results++
    } else parts.push(...convertBlock(given, 'text, image, document, search_result and tool_result'))
  }
  if (parts.length > 0 || results === 0) add({ role: 'user', content: joinParts(parts) }, parts)
}

function resultParts({ block, place }: Block): Part[] {
  const parts = convertBlocks(block.content ?? [], `${place}.content`)
  // Templates cannot mark a result as failed, so the model must read it.
  if (block.is_error === true) parts.unshift(textPart('Error:', place))
  return parts
}

function requireText({ block, place }: Block, field: string): string {
  const value = block[field]
  if (typeof value === 'string') return value
  throw invalid(`${place}.${field}`, 'must be text')
}

/** Returns the blocks of content that is text or a list of blocks. @throws CorralError `invalid_request` */
function readBlocks(content: unknown, place: string): Block[] {
  if (typeof content === 'string') return [{ block: { type: 'text', text: content }, place }]
  if (!Array.isArray(content)) throw invalid(place, 'must be text or a list of blocks')
  return content.map((block, index) => {
    if (isObject(block)) return { block, place: `${place}.${index}` }
    throw invalid(`${place}.${index}`, 'must be a block: an object with a "type"')
  })
}

function convertBlocks(content: unknown, place: string): Part[] {
  return readBlocks(content, place).flatMap(given => convertBlock(given, 'text, image, document and search_result'))
}

/** Converts a block to content parts for the model. @param allowed types of blocks, for the error message */
function convertBlock(given: Block, allowed: string): Part[] {
  const { block, place } = given
  switch (block.type) {
    case 'text':
      return [textPart(requireText(given, 'text'), place)]
    case 'image':
      return [imagePart(given)]
    case 'document':
      return documentParts(given)
    case 'search_result':
      return [
        textPart([block.title, block.source].filter(text => typeof text === 'string').join('\n'), place),
        ...convertBlocks(block.content, `${place}.content`)
      ]
    case 'tool_reference':
      return [textPart(`The tool ${requireText(given, 'tool_name')} can be called now.`, place)]
    default:
      throw blockNotAllowed(given, allowed)
  }
}

/** Joins parts into plain text if they are all text, because every template supports that. */
function joinParts(parts: readonly Part[]): string | Part['content'][] {
  const texts = parts.flatMap(({ content }) => (content.type === 'text' ? [content.text] : []))
  return texts.length === parts.length ? texts.join('\n') : parts.map(({ content }) => content)
}

function textPart(text: string, place: string): Part {
  return { content: { type: 'text', text }, place }
}

function requireSource({ block, place }: Block): Block {
  if (isObject(block.source)) return { block: block.source, place: `${place}.source` }
  throw invalid(`${place}.source`, 'must be an object with a "type"')
}

function imagePart(given: Block): Part {
  const source = requireSource(given)
  const { place } = source
  if (source.block.type !== 'base64') {
    throw invalid(
      `${place}.type`,
      'must be "base64" because corral does not fetch URLs. Send the image as base64 in "data"'
    )
  }
  const type = requireText(source, 'media_type')
  if (!MEDIA_TYPE.test(type)) throw invalid(`${place}.media_type`, 'must be an image type such as "image/png"')
  const url = `data:${type};base64,${requireText(source, 'data')}`
  return { content: { type: 'image_url', image_url: { url } }, place }
}

function documentParts(given: Block): Part[] {
  const source = requireSource(given)
  const { type, content } = source.block
  const { title, context } = given.block
  const about = [title, context].filter(text => typeof text === 'string' && text !== '').join('\n')
  const heading = about === '' ? [] : [textPart(about, given.place)]
  if (type === 'text') return [...heading, textPart(requireText(source, 'data'), source.place)]
  if (type === 'content') return [...heading, ...convertBlocks(content, `${source.place}.content`)]
  throw new CorralError(
    'unsupported_capability',
    `"${given.place}" is a document that corral cannot read, such as a PDF file or a URL. Send its text: the source must have the type "text" or "content".`,
    { param: `${source.place}.type` }
  )
}
