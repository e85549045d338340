import { strFromU8, unzipSync } from 'fflate'
import { fill, texts } from '../texts/texts.ts'
import { ChatFault, checkTree } from './chat-check.ts'
import { type Attachment, type Chat, type Message, type ToolCall, titleOf } from './conversation-tree.ts'

/*
 * Parses chats exported by other programs: llama.cpp's own page (a file of lines, an archive of several, or JSON as of
 * 2025), Open WebUI (JSON), ChatGPT (its archive, or the conversations.json in it) and LM Studio (one file per chat).
 */

/** Chats with all their messages. */
export interface ForeignChats {
  chats: Chat[]
  messages: Message[]
}

/** Fields of an untrusted file, which may have any type. */
// biome-ignore lint/suspicious/noExplicitAny: each field is looked at before it is used
type Fields = Record<string, any>

/** A message in the common form of those programs, linked to its parent. */
interface Node {
  id: string
  parent?: string | undefined
  role: string
  content: string
  /** Epoch milliseconds. */
  at?: number | undefined
  model?: string | undefined
  thinking?: string | undefined
  attachments?: Attachment[] | undefined
  toolCalls?: ToolCall[] | undefined
  callId?: string | undefined
}

interface Conversation {
  id: string
  title: string
  createdAt?: number | undefined
  pinned?: boolean | undefined
  system?: string | undefined
  /** Last message of the branch that was shown last. */
  current?: string | undefined
  nodes: Node[]
}

/**
 * Parses the chats in a file. Returns undefined if it has none in a known format.
 * @param maxBytes total of all unpacked files
 * @throws Error if the file is broken
 */
export function foreignChatsOf(bytes: Uint8Array, name: string, maxBytes: number): ForeignChats | undefined {
  const isArchive = bytes[0] === 0x50 && bytes[1] === 0x4b
  let left = maxBytes
  const isWanted = ({ name, originalSize }: { name: string; originalSize: number }) => {
    if (!/\.jsonl?$/i.test(name)) return false
    left -= originalSize
    if (left < 0) throw new Error(fill(texts.peek().importTooLarge, { name }))
    return true
  }
  const files = isArchive ? Object.entries(unzipSync(bytes, { filter: isWanted })) : [[name, bytes] as const]
  const conversations = files.flatMap(([name, bytes]) => conversationsOf(strFromU8(bytes), name))
  if (conversations.length === 0) return undefined
  const all = conversations.map(treeOf)
  return { chats: all.map(({ chat }) => chat), messages: all.flatMap(({ messages }) => messages) }
}

function conversationsOf(text: string, name: string): Conversation[] {
  const records = recordsOf(text)
  // llama.cpp: one line for the chat, then one for each message.
  if (records[0]?.type === 'session') {
    const chats: { conv: Fields; messages: Fields[] }[] = []
    for (const record of records) {
      if (record.type === 'session') chats.push({ conv: record, messages: [] })
      else if (record.type === 'message' && isFields(record.message)) chats.at(-1)?.messages.push(record.message)
    }
    return chats.map(llamaChat)
  }
  return records.flatMap(record => {
    if (isFields(record.conv) && Array.isArray(record.messages)) return llamaChat(record as never)
    if (isFields(record.mapping)) return chatGptChat(record)
    if (isFields(record.chat)) return openWebUiChat(record)
    if (Array.isArray(record.messages) && isFields(record.messages[0]) && 'versions' in record.messages[0]) {
      return lmStudioChat(record, name)
    }
    return []
  })
}

/** Parses a file with one JSON value, a list, or one value per line. */
function recordsOf(text: string): Fields[] {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    value = text
      .split('\n')
      .filter(line => line.trim() !== '')
      .map(line => JSON.parse(line) as unknown)
  }
  return (Array.isArray(value) ? value : [value]).filter(isFields)
}

const isFields = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
const textOf = (value: unknown): string => (typeof value === 'string' ? value : '')
const numberOf = (value: unknown): number | undefined =>
  typeof value === 'number' && Number.isFinite(value) && value > 0 ? value : undefined
/** Converts seconds to epoch milliseconds. */
const msOf = (seconds: unknown): number | undefined => {
  const known = numberOf(seconds)
  return known === undefined ? undefined : Math.round(known * 1000)
}
const optional = (value: unknown) => textOf(value) || undefined
const listOf = (value: unknown): Fields[] => (Array.isArray(value) ? value.filter(isFields) : [])

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

function llamaAttachment({ name, content, base64Url, base64Data, mimeType }: Fields): Attachment | [] {
  const given = { name: textOf(name) }
  const type = textOf(mimeType)
  if (/^data:image\//.test(textOf(base64Url))) {
    return { ...given, kind: 'image', type: /^data:([^;,]+)/.exec(base64Url)![1]!, data: base64Url }
  }
  if (type.startsWith('audio/') && textOf(base64Data) !== '') {
    return { ...given, kind: 'audio', type, data: `data:${type};base64,${base64Data}` }
  }
  return textOf(content) === '' ? [] : { ...given, kind: 'text', type: 'text/plain', data: content }
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
  const byId: Fields = isFields(chat.history?.messages) ? chat.history.messages : {}
  const nodes = Object.entries(byId).map(
    ([id, message]): Node => ({
      id,
      parent: optional(message.parentId),
      role: textOf(message.role),
      ...withoutThoughts(textOf(message.content)),
      at: msOf(message.timestamp),
      model: optional(message.model),
      attachments: listOf(message.files).flatMap(({ type, url, name }): Attachment[] =>
        type === 'image' && /^data:image\//.test(textOf(url))
          ? [{ name: textOf(name) || 'image', kind: 'image', type: /^data:([^;,]+)/.exec(url)![1]!, data: url }]
          : []
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
    const message: Fields = isFields(node?.message) ? node.message : {}
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
      const said = steps.map(step => ({
        isThought: step.style?.type === 'thinking',
        text: listOf(step.content)
          .map(({ text }) => textOf(text))
          .join('')
      }))
      const joined = (isThought: boolean) =>
        said
          .filter(step => step.isThought === isThought)
          .map(({ text }) => text)
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
function treeOf(conversation: Conversation): { chat: Chat; messages: Message[] } {
  const { nodes, title, pinned, system, current } = conversation
  const chatId = idOf(conversation.id)
  checkTree(title, nodes, new Set())
  const byId = new Map(nodes.map(node => [node.id, node]))
  for (const { id, role } of nodes) {
    if (ROLES.includes(role) || OTHER_ROLES.includes(role)) continue
    throw new ChatFault(title, fill(texts.peek().chatFaults.messageField, { id, field: 'role' }))
  }
  const isSaid = ({ role, content, thinking, attachments, toolCalls }: Node) =>
    ROLES.includes(role) && Boolean(content || thinking || attachments?.length || toolCalls?.length)
  /** Returns the nearest ancestor with content. */
  const saidFrom = (id: string | undefined): Node | undefined => {
    const seen = new Set<Node>()
    for (let at = byId.get(id ?? ''); at && !seen.has(at); at = byId.get(at.parent ?? '')) {
      if (isSaid(at)) return at
      seen.add(at)
    }
    return undefined
  }
  const children = new Map<string | undefined, Node[]>()
  for (const node of nodes.filter(isSaid)) {
    const parent = saidFrom(node.parent)?.id
    const siblings = children.get(parent)
    if (siblings) siblings.push(node)
    else children.set(parent, [node])
  }
  const createdAt =
    conversation.createdAt && Number.isFinite(conversation.createdAt) ? conversation.createdAt : Date.now()
  const messages: Message[] = []
  const waiting = (children.get(undefined) ?? []).map(node => ({ node, after: undefined as Message | undefined }))
  // In file order, so that the later of two simultaneous messages counts as newer.
  for (const { node, after } of waiting) {
    const newest = messages.at(-1)?.at ?? 0
    const { role, content, model, thinking, attachments, toolCalls, callId } = node
    const message: Message = {
      id: `${chatId}-${node.id}`,
      chat: chatId,
      ...(after && { parent: after.id }),
      role: role as Message['role'],
      content,
      at: Math.max(node.at ?? createdAt, (after?.at ?? 0) + 1, node.at === undefined ? newest + 1 : 0),
      ...(model !== undefined && { model }),
      ...(thinking !== undefined && { thinking }),
      ...(attachments?.length && { attachments }),
      ...(toolCalls && { toolCalls }),
      ...(callId !== undefined && { callId })
    }
    messages.push(message)
    waiting.push(...(children.get(node.id) ?? []).map(child => ({ node: child, after: message })))
  }
  const last = saidFrom(current)
  const leaf = last ? `${chatId}-${last.id}` : messages.at(-1)?.id
  const model = messages.findLast(message => message.role === 'assistant')?.model
  return {
    chat: {
      id: chatId,
      title: title.slice(0, MAX_TITLE_LENGTH) || titleOf(messages.find(({ role }) => role === 'user')?.content ?? ''),
      createdAt,
      updatedAt: Math.max(createdAt, ...messages.map(({ at }) => at)),
      ...(leaf !== undefined && { leaf }),
      ...(pinned && { pinned }),
      ...(system !== undefined && { system }),
      ...(model !== undefined && { model })
    },
    messages
  }
}

/**
 * Converts an id to the server's format. The same chat always gets the same id, so that importing a file twice adds
 * nothing.
 */
function idOf(id: string): string {
  return `from-${id.toLowerCase().replace(/[^a-z0-9]+/g, '-')}`.slice(0, 64)
}
