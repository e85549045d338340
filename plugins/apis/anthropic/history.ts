import { callArguments } from '../../../core/answers/call-arguments.ts'
import type { FilePart } from '../../../core/answers/media-parts.ts'
import { type CorralError, invalidRequest } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import type { CountRequest, MessageParam } from './schemas.ts'

type Fields = Record<string, unknown>

interface Block {
  block: Fields
  place: string
}

interface Turn {
  role: string
  blocks: Block[]
}

interface Part {
  content:
    | { type: 'text'; text: string }
    | { type: 'image_url'; image_url: { url: string } }
    | { type: 'file'; file: FilePart['file'] }
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

const CALL = /^(\w+_)?tool_use$/
const RESULT = /^(\w+_)?tool_result$/

/** Blocks that models cannot use: data that only Anthropic's servers can read, and notes to clients. */
const SKIPPED = new Set<unknown>(
  'redacted_thinking thinking compaction container_upload mcp_tool_listing fallback tool_addition tool_removal'.split(
    ' '
  )
)

/** Blocks that become parts of messages, wherever they are. */
const PARTS = new Set<unknown>('text image document search_result tool_reference browser_state'.split(' '))

/** Fields of a hosted tool's result that say nothing to a model. */
const OPAQUE = /^(type|encrypted_\w+|citations|cache_control|file_id)$/

/** Templates and models expect a result for each call. */
const NO_RESULT = 'The tool was not run.'

const MEDIA_TYPE = /^image\/[a-z0-9.+-]+$/i

export function toClientId(id: string): string {
  return ID_PREFIX + id
}

export function engineName({ toolset_name: set, name }: Fields): string {
  return typeof set === 'string' ? `${set}_${name}` : String(name)
}

export function summaryText(summary: string): string {
  return `The earlier part of this conversation was replaced by this summary of it:\n\n${summary}`
}

function engineId(id: string): string {
  return id.startsWith(ID_PREFIX) ? id.slice(ID_PREFIX.length) : id
}

export function invalid(place: string, must: string): CorralError {
  return invalidRequest(place, `"${place}" ${must}.`)
}

function blockNotAllowed({ block, place }: Block, allowed: string): CorralError {
  const type = typeof block.type === 'string' ? block.type : ''
  const message = `"${place}" is a block of type ${JSON.stringify(type.slice(0, 60))}, which is not allowed there. Allowed are ${allowed}.`
  return invalidRequest(`${place}.type`, message)
}

/**
 * Converts the messages and system blocks of a request for the engine.
 *
 * - Consecutive messages of the same role become one, and leading system blocks become one message. Later system blocks
 *   go into a user message, because most templates refuse a system message there.
 * - Results become messages after their calls, also results of tools that Anthropic's servers ran within an answer. A
 *   call without a result gets a result that says that the tool was not run.
 * - Everything before the last summary (`compaction`) is dropped.
 * @returns the messages, and for each part of each message its place in the request
 * @throws CorralError `invalid_request` with the place as `param`
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
  const all = mergeMessages(messages)
  const opening = all[0]?.role === 'system' ? all.shift()! : undefined
  const text = systemText([...readBlocks(system ?? [], 'system'), ...(opening?.blocks ?? [])])
  if (text !== '') add({ role: 'system', content: text })
  const turns = sinceSummary(all)
  const results = turns.flatMap(({ blocks }) => blocks.filter(({ block }) => RESULT.test(`${block.type}`)))
  const answered = new Set(results.map(({ block }) => block.tool_use_id))
  for (const turn of turns) addTurn(turn, answered, add)
  // An answer cannot continue a call. Its id may be that of an earlier result.
  const open = converted.messages.at(-1)?.tool_calls as { id: string }[] | undefined
  for (const { id } of open ?? []) add(resultMessage(id, NO_RESULT))
  return converted
}

function mergeMessages(messages: readonly MessageParam[]): Turn[] {
  const turns: Turn[] = []
  const lastOfUser = messages.findLastIndex(({ role }) => role === 'user')
  messages.forEach(({ role, content, clear_at }, index) => {
    if (clear_at === 'next_user_message' && index < lastOfUser) return
    const blocks = readBlocks(role === 'system' ? (content ?? []) : content, `messages.${index}.content`)
    if (role !== 'system' || turns.every(turn => turn.role === 'system')) push(turns, { role, blocks })
    else push(turns, ...reminder(blocks))
  })
  return turns
}

function push(turns: Turn[], ...more: Turn[]): Turn[] {
  for (const { role, blocks } of more) {
    const last = turns.at(-1)
    if (last?.role === role) last.blocks.push(...blocks)
    else turns.push({ role, blocks: [...blocks] })
  }
  return turns
}

/** Replaces everything before the last summary by the summary. A summary without text is of a failed compaction. */
function sinceSummary(turns: Turn[]): Turn[] {
  const isSummary = ({ block }: Block) => block.type === 'compaction' && Boolean(block.content)
  const at = turns.findLastIndex(({ blocks }) => blocks.some(isSummary))
  if (at < 0) return turns
  const { role, blocks } = turns[at]!
  const index = blocks.findLastIndex(isSummary)
  const { block, place } = blocks[index]!
  const summary = { type: 'text', text: summaryText(requireText({ block, place }, 'content')) }
  const rest = blocks.slice(index + 1)
  return push(
    [{ role: 'user', blocks: [{ block: summary, place }] }],
    ...(rest.length > 0 ? [{ role, blocks: rest }] : []),
    ...turns.slice(at + 1)
  )
}

/** The tag that programs for Anthropic's models used before system messages were allowed within a conversation. */
function reminder(blocks: readonly Block[]): Turn[] {
  const text = systemText(blocks)
  if (text === '') return []
  const marked = `<system-reminder>\n${text}\n</system-reminder>`
  return [{ role: 'user', blocks: [{ block: { type: 'text', text: marked }, place: blocks[0]!.place }] }]
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

/** In a user's turn, results come first because templates expect them directly after the calls. */
function addTurn(
  { role, blocks }: Turn,
  answered: ReadonlySet<unknown>,
  add: (message: Fields, parts?: readonly Part[]) => void
): void {
  const isAssistant = role === 'assistant'
  let parts: Part[] = []
  let calls: Block[] = []
  let thoughts = ''
  let isEmpty = true
  const addSpoken = () => {
    isEmpty = false
    add(assistantMessage(parts, thoughts, calls))
    for (const { block } of calls) if (!answered.has(block.id)) add(resultMessage(block.id, NO_RESULT))
    parts = []
    calls = []
    thoughts = ''
  }
  for (const given of blocks) {
    const type = String(given.block.type)
    if (isAssistant && type === 'thinking') thoughts += given.block.thinking ?? ''
    else if (CALL.test(type)) calls.push(given)
    else if (RESULT.test(type)) {
      if (isAssistant && (parts.length > 0 || calls.length > 0)) addSpoken()
      const read = resultParts(given)
      add(resultMessage(requireText(given, 'tool_use_id'), joinParts(read)), read)
      isEmpty = false
    } else parts.push(...convertBlock(given, 'text, image, document, search_result, tool_use and tool_result'))
  }
  if (isAssistant) {
    if (isEmpty || parts.length > 0 || calls.length > 0 || thoughts !== '') addSpoken()
  } else if (isEmpty || parts.length > 0) add({ role, content: joinParts(parts) }, parts)
}

function assistantMessage(parts: readonly Part[], thoughts: string, calls: readonly Block[]): Fields {
  return {
    role: 'assistant',
    content: parts.map(({ content }) => (content.type === 'text' ? content.text : '')).join(''),
    ...(thoughts !== '' && { reasoning_content: thoughts }),
    ...(calls.length > 0 && { tool_calls: calls.map(toEngineCall) })
  }
}

function toEngineCall(given: Block): Fields {
  requireText(given, 'name')
  const called = { name: engineName(given.block), arguments: callArguments(given.block.input) }
  return { id: engineId(requireText(given, 'id')), type: 'function', function: called }
}

const resultMessage = (id: unknown, content: unknown) => ({ role: 'tool', tool_call_id: engineId(String(id)), content })

function resultParts({ block, place }: Block): Part[] {
  const { type, content, is_error: failed } = block
  const isPlain = type === 'tool_result' || type === 'mcp_tool_result'
  const parts = isPlain
    ? convertBlocks(content ?? [], `${place}.content`)
    : describe(content, 'content', `${place}.content`)
  // Templates cannot mark a result as failed, so the model must read it.
  if (failed === true) parts.unshift(textPart('Error:', place))
  return parts
}

/** Converts the result of a hosted tool: its fields, without the data that only Anthropic's servers can read. */
function describe(value: unknown, name: string, place: string): Part[] {
  if (Array.isArray(value)) return value.flatMap((each, index) => describe(each, name, `${place}.${index}`))
  if (isObject(value)) {
    if (PARTS.has(value.type)) return convertBlock({ block: value, place }, '')
    const fields = Object.entries(value).filter(([field]) => !OPAQUE.test(field))
    return fields.flatMap(([field, each]) => describe(each, field, `${place}.${field}`))
  }
  if (value === null || value === undefined || value === '') return []
  return [textPart(name === 'content' || name === 'text' ? String(value) : `${name}: ${value}`, place)]
}

function requireText({ block, place }: Block, field: string): string {
  const value = block[field]
  if (typeof value === 'string') return value
  throw invalid(`${place}.${field}`, 'must be text')
}

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
    case 'browser_state':
      return describe([block.tabs, block.state_changes], 'content', place)
    default:
      if (SKIPPED.has(block.type)) return []
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
  if (source.block.type !== 'base64') return absentPart('An image', source)
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
  const { data: file_data, url: file_url, file_id } = source.block
  const file = { file_data, file_url, file_id, filename: title }
  return [
    ...(typeof context === 'string' ? [textPart(context, given.place)] : []),
    { content: { type: 'file', file }, place: source.place }
  ]
}

/** A sentence for content that corral does not have. An error would fail every later request of the conversation too. */
function absentPart(what: string, { block, place }: Block): Part {
  const { url, file_id: file, media_type: type } = block
  const [name] = [url, file, type].filter(each => typeof each === 'string')
  const named = name === undefined ? '' : ` (${name})`
  return textPart(`[${what}${named} was here, but this server cannot read it.]`, place)
}
