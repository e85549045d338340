import { isObject } from '../../../../core/system/json-object.ts'
import { fill, texts } from '../texts/texts.ts'
import { CHAT_FIELDS, type Chat, MESSAGE_FIELDS, type Message, type Shape, wrongField } from './chat-format.ts'

/* Validates chats from files and servers, so that no view fails on them later. */

/** Maximum messages of one chat. */
const MAX_MESSAGES = 20_000

/** Copies the known fields of a value. */
const knownFields = (value: object, fields: Shape): object =>
  Object.fromEntries(Object.entries(value).filter(([field]) => Object.hasOwn(fields, field)))

/** A chat that cannot be used, with the reason in the user's language. */
export class ChatFault extends Error {
  constructor(title: unknown, fault: string) {
    const t = texts.peek()
    super(
      typeof title === 'string' && title
        ? fill(t.brokenChat, { title: title.slice(0, 80), fault })
        : fill(t.brokenChats, { fault })
    )
  }
}

/**
 * Validates chats and their messages.
 * @param isWhole whether each parent must be present or recorded as deleted
 * @returns the chats without unknown fields
 * @throws ChatFault
 */
export function checkedChats(
  chats: readonly unknown[],
  messages: readonly unknown[],
  isWhole: boolean
): { chats: Chat[]; messages: Message[] } {
  const t = texts.peek().chatFaults
  const byId = new Map<string, { chat: Chat; messages: Message[] }>()
  for (const value of chats) {
    const chat = isObject(value) ? value : {}
    const wrong = wrongField(chat, CHAT_FIELDS)
    if (wrong !== undefined) throw new ChatFault(chat.title, fill(t.field, { field: wrong }))
    const known = knownFields(chat, CHAT_FIELDS) as Chat
    if (byId.has(known.id)) throw new ChatFault(known.title, fill(t.twice, { id: known.id }))
    byId.set(known.id, { chat: { ...known, updatedAt: known.updatedAt ?? known.createdAt }, messages: [] })
  }
  for (const value of messages) {
    const message = isObject(value) ? value : {}
    const own = byId.get(message.chat as string)
    if (!own) throw new ChatFault('', fill(t.noChat, { id: String(message.id) }))
    const wrong = wrongField(message, MESSAGE_FIELDS)
    if (wrong !== undefined)
      throw new ChatFault(own.chat.title, fill(t.messageField, { id: String(message.id), field: wrong }))
    own.messages.push(knownFields(message, MESSAGE_FIELDS) as Message)
  }
  const all = [...byId.values()]
  const ids = new Set<string>()
  for (const { chat, messages } of all) {
    for (const { id } of messages) {
      if (ids.has(id)) throw new ChatFault(chat.title, fill(t.twice, { id }))
      ids.add(id)
    }
    checkTree(chat.title, messages, isWhole ? new Set(Object.keys(chat.gone ?? {})) : undefined)
  }
  return { chats: all.map(({ chat }) => chat), messages: all.flatMap(({ messages }) => messages) }
}

/** Validates that messages form a tree. @param gone parents that may be missing; undefined allows any */
export function checkTree(
  title: string,
  messages: readonly { id: string; parent?: string | undefined }[],
  gone: ReadonlySet<string> | undefined
): void {
  const t = texts.peek().chatFaults
  if (messages.length > MAX_MESSAGES) throw new ChatFault(title, fill(t.tooMany, { count: MAX_MESSAGES }))
  const byId = new Map(messages.map(message => [message.id, message]))
  const isChecked = new Set<string>()
  for (const message of messages) {
    const way = new Set<string>()
    for (let at: typeof message | undefined = message; at && !isChecked.has(at.id); at = byId.get(at.parent ?? '')) {
      if (way.has(at.id)) throw new ChatFault(title, fill(t.cycle, { id: at.id }))
      way.add(at.id)
      if (at.parent !== undefined && gone && !byId.has(at.parent) && !gone.has(at.parent)) {
        throw new ChatFault(title, fill(t.noParent, { id: at.id, parent: at.parent }))
      }
    }
    for (const id of way) isChecked.add(id)
  }
}
