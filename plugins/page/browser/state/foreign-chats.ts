import { strFromU8, unzipSync } from 'fflate'
import { isObject } from '../../../../core/system/json-object.ts'
import { fill, texts } from '../texts/texts.ts'
import { ChatFault, checkTree } from './chat-check.ts'
import type { Attachment, Chat, Message, ToolCall } from './chat-format.ts'
import { titleOf } from './conversation-tree.ts'

/*
 * Parses chats exported by other programs: llama.cpp's own page (a file of lines, an archive of several, or JSON as of
 * 2025), Open WebUI (JSON), ChatGPT (its archive, or the conversations.json in it) and LM Studio (one file per chat).
 */

/** Fields of an untrusted file, which may have any type. */
// biome-ignore lint/suspicious/noExplicitAny: each field is checked before it is used
type Fields = Record<string, any>

/** A message in the common form of those programs, linked to its parent. */
interface Node extends Omit<Message, 'chat' | 'role' | 'at'> {
  role: string
  /** Epoch milliseconds. */
  at?: number | undefined
}

interface Conversation extends Pick<Chat, 'id' | 'title' | 'pinned' | 'system'> {
  createdAt?: number | undefined
  /** Last message of the branch that was shown last. */
  current?: string | undefined
  nodes: Node[]
}

/**
 * Parses the chats in a file. Returns undefined if it has none in a known format.
 * @param maxBytes total of all unpacked files
 * @throws Error if the file is broken
 */
export function foreignChats(
  bytes: Uint8Array,
  name: string,
  maxBytes: number
): { chats: Chat[]; messages: Message[] } | undefined {
  const isArchive = bytes[0] === 0x50 && bytes[1] === 0x4b
  let left = maxBytes
  const isWanted = ({ name, originalSize }: { name: string; originalSize: number }) => {
    if (!/\.jsonl?$/i.test(name)) return false
    left -= originalSize
    if (left < 0) throw new Error(fill(texts.peek().importTooLarge, { name }))
    return true
  }
  const files = isArchive ? Object.entries(unzipSync(bytes, { filter: isWanted })) : [[name, bytes] as const]
  const all = files.flatMap(([name, bytes]) => conversationsIn(strFromU8(bytes), name)).map(chatFrom)
  if (all.length === 0) return undefined
  return { chats: all.map(({ chat }) => chat), messages: all.flatMap(({ messages }) => messages) }
}

function conversationsIn(text: string, name: string): Conversation[] {
  const records = recordsIn(text)
  // llama.cpp: one line for the chat, then one for each message.
  if (records[0]?.type === 'session') {
    const chats: { conv: Fields; messages: Fields[] }[] = []
    for (const record of records) {
      if (record.type === 'session') chats.push({ conv: record, messages: [] })
      else if (record.type === 'message' && isObject(record.message)) chats.at(-1)?.messages.push(record.message)
    }
    return chats.map(llamaChat)
  }
  return records.flatMap(record => {
    if (isObject(record.conv) && Array.isArray(record.messages)) return llamaChat(record as never)
    if (isObject(record.mapping)) return chatGptChat(record)
    if (isObject(record.chat)) return openWebUiChat(record)
    return isObject(record.messages?.[0]) && 'versions' in record.messages[0] ? lmStudioChat(record, name) : []
  })
}

/** Parses a file with one JSON value, a list, or one value per line. */
function recordsIn(text: string): Fields[] {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    const lines = text.split('\n').filter(line => line.trim() !== '')
    value = lines.map(line => JSON.parse(line) as unknown)
  }
  return (Array.isArray(value) ? value : [value]).filter(isObject)
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : '')
const optional = (value: unknown) => textOf(value) || undefined
const numberOf = (value: unknown, factor = 1): number | undefined =>
  typeof value === 'number' && Number.isFinite(value) && value > 0 ? Math.round(factor * value) : undefined
/** Converts seconds to milliseconds. */
const msOf = (seconds: unknown) => numberOf(seconds, 1000)
const listOf = (value: unknown): Fields[] => (Array.isArray(value) ? value.filter(isObject) : [])
const imageOf = (name: string, url: unknown): Attachment[] => {
  const [, type] = /^data:(image\/[^;,]*)/.exec(textOf(url)) ?? []
  return type ? [{ name, kind: 'image', type, data: url as string }] : []
}

function llamaChat({ conv, messages }: { conv: Fields; messages: Fields[] }): Conversation {
  const nodes = listOf(messages).map(
    (message): Node => ({
      id: textOf(message.id),
      parent: optional(message.parent),
      role: textOf(message.role),
      content: textOf(message.content),
      at: numberOf(message.timestamp),
      model: optional(message.model),
      thinking: optional(message.reasoningContent) ?? optional(message.thinking),
      attachments: listOf(message.extra).flatMap(llamaAttachment),
      toolCalls: llamaToolCalls(message.toolCalls),
      callId: optional(message.toolCallId)
    })
  )
  return {
    id: textOf(conv.id),
    title: textOf(conv.name),
    createdAt: Math.min(...nodes.flatMap(({ at }) => at ?? []), numberOf(conv.lastModified) ?? Infinity),
    pinned: conv.pinned === true,
    system: nodes.find(({ role, content }) => role === 'system' && content !== '')?.content,
    current: optional(conv.currNode),
    nodes
  }
}

function llamaAttachment(extra: Fields): Attachment[] {
  const [name, type, audio] = [textOf(extra.name), textOf(extra.mimeType), textOf(extra.base64Data)]
  const images = imageOf(name, extra.base64Url)
  if (images.length > 0) return images
  if (type.startsWith('audio/') && audio) return [{ name, kind: 'audio', type, data: `data:${type};base64,${audio}` }]
  const data = textOf(extra.content)
  return data === '' ? [] : [{ name, kind: 'text', type: 'text/plain', data }]
}

function llamaToolCalls(calls: unknown): ToolCall[] | undefined {
  const known = listOf(typeof calls === 'string' && calls !== '' ? JSON.parse(calls) : calls)
  if (known.length === 0) return undefined
  return known.map(({ id, function: called }) => ({
    id: textOf(id),
    name: textOf(called?.name),
    arguments: textOf(called?.arguments)
  }))
}

function openWebUiChat({ id, title, pinned, created_at, chat }: Fields): Conversation {
  const byId: Fields = isObject(chat.history?.messages) ? chat.history.messages : {}
  const nodes = Object.entries(byId).map(
    ([id, message]): Node => ({
      id,
      parent: optional(message.parentId),
      role: textOf(message.role),
      ...withoutThoughts(textOf(message.content)),
      at: msOf(message.timestamp),
      model: optional(message.model),
      attachments: listOf(message.files).flatMap(({ type, url, name }) =>
        type === 'image' ? imageOf(textOf(name) || 'image', url) : []
      )
    })
  )
  return {
    id: textOf(id),
    title: textOf(title) || textOf(chat.title),
    createdAt: msOf(created_at) ?? numberOf(chat.timestamp),
    pinned: pinned === true,
    system: optional(chat.params?.system) ?? optional(chat.system),
    current: optional(chat.history?.currentId),
    nodes
  }
}

/** Separates the thoughts that Open WebUI stores inside the answer. */
function withoutThoughts(text: string): Pick<Node, 'content' | 'thinking'> {
  const found = /^\s*<details type="reasoning"[^>]*>\s*(?:<summary>.*?<\/summary>)?([\s\S]*?)<\/details>/.exec(text)
  if (!found) return { content: text }
  const thinking = found[1]!.replace(/^(?:&gt;|>) ?/gm, '').trim()
  return { content: text.slice(found[0].length).trim(), ...(thinking && { thinking }) }
}

function chatGptChat({ id, conversation_id, title, create_time, current_node, mapping }: Fields): Conversation {
  const nodes = Object.entries(mapping as Fields).map(([id, node]): Node => {
    const message: Fields = isObject(node?.message) ? node.message : {}
    const { content_type, parts } = message.content ?? {}
    const isSaid =
      ['text', 'multimodal_text'].includes(content_type) && !message.metadata?.is_visually_hidden_from_conversation
    const texts = isSaid && Array.isArray(parts) ? parts.filter(part => typeof part === 'string') : []
    return {
      id,
      parent: optional(node?.parent),
      // Calls and results of its built-in tools belong to the answer that follows.
      role: message.author?.role === 'tool' ? '' : textOf(message.author?.role),
      content: texts.join('\n\n'),
      at: msOf(message.create_time),
      model: optional(message.metadata?.model_slug)
    }
  })
  return {
    id: textOf(conversation_id) || textOf(id),
    title: textOf(title),
    createdAt: msOf(create_time),
    current: optional(current_node),
    nodes
  }
}

/** @param name of the file, used as the title of its chats */
function lmStudioChat({ name: title, createdAt, pinned, systemPrompt, messages }: Fields, name: string): Conversation {
  const id = `lm-studio-${name.replace(/\..*/, '')}`
  let parent: string | undefined
  const nodes: Node[] = []
  for (const [at, { versions, currentlySelected }] of listOf(messages).entries()) {
    const own = listOf(versions).map((version, number): Node => {
      const steps = version.type === 'multiStep' ? listOf(version.steps) : [version]
      const joined = (isThought: boolean) =>
        steps
          .filter(step => (step.style?.type === 'thinking') === isThought)
          .map(step => listOf(step.content).reduce((whole, { text }) => whole + textOf(text), ''))
          .join('\n\n')
      return {
        id: `${id}-${at}-${number}`,
        parent,
        role: textOf(version.role),
        content: joined(false).trim(),
        thinking: optional(joined(true)),
        at: numberOf(createdAt),
        model: optional(version.senderInfo?.senderName)
      }
    })
    nodes.push(...own)
    parent = (own[numberOf(currentlySelected) ?? 0] ?? own[0])?.id ?? parent
  }
  return {
    id,
    title: textOf(title),
    createdAt: numberOf(createdAt),
    pinned: pinned === true,
    system: optional(systemPrompt),
    current: parent,
    nodes
  }
}

const ROLES = ['user', 'assistant', 'tool']
/** Roles that are not imported. A system message becomes a setting of the chat. */
const OTHER_ROLES = ['', 'system', 'developer', 'function', 'root']
/** Maximum characters of a title on the server. */
const MAX_TITLE_LENGTH = 500

/** Converts a conversation. Empty nodes are skipped, and each message is newer than its parent. */
function chatFrom(conversation: Conversation): { chat: Chat; messages: Message[] } {
  const { nodes, title, pinned, system, current, createdAt: given } = conversation
  const chatId = idFrom(conversation.id)
  checkTree(title, nodes, new Set())
  const byId = new Map(nodes.map(node => [node.id, node]))
  const wrong = nodes.find(({ role }) => !ROLES.includes(role) && !OTHER_ROLES.includes(role))
  if (wrong) throw new ChatFault(title, fill(texts.peek().chatFaults.messageField, { id: wrong.id, field: 'role' }))
  const createdAt = given && Number.isFinite(given) ? given : Date.now()
  const messages: Message[] = []
  const placed = new Map<Node, Message | undefined>()
  /** Returns the message for a node, or that of its nearest ancestor with content. In file order, but after its parent. */
  const place = (node: Node | undefined): Message | undefined => {
    if (!node || placed.has(node)) return node && placed.get(node)
    const after = place(byId.get(node.parent ?? ''))
    const { role, content, thinking, attachments, toolCalls } = node
    const hasContent = Boolean(content || thinking || attachments?.length || toolCalls?.length)
    if (!ROLES.includes(role) || !hasContent) {
      placed.set(node, after)
      return after
    }
    const newest = messages.at(-1)?.at ?? 0
    const message: Message = {
      ...node,
      id: `${chatId}-${node.id}`,
      chat: chatId,
      parent: after?.id,
      role: role as Message['role'],
      at: Math.max(node.at ?? createdAt, (after?.at ?? 0) + 1, node.at === undefined ? newest + 1 : 0)
    }
    placed.set(node, message)
    messages.push(message)
    return message
  }
  nodes.forEach(place)
  const question = messages.find(({ role }) => role === 'user')
  const chat = {
    id: chatId,
    title: title.slice(0, MAX_TITLE_LENGTH) || titleOf(question?.content ?? ''),
    createdAt,
    updatedAt: Math.max(createdAt, ...messages.map(({ at }) => at)),
    leaf: (place(byId.get(current ?? '')) ?? messages.at(-1))?.id,
    pinned,
    system,
    model: messages.findLast(message => message.role === 'assistant')?.model
  }
  return { chat, messages }
}

/** Converts an id to the server's format. A chat always gets the same id, so that a second import adds nothing. */
const idFrom = (id: string) => `from-${id.toLowerCase().replace(/[^a-z0-9]+/g, '-')}`.slice(0, 64)
