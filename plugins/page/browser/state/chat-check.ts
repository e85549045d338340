import { isObject } from '../../../../core/system/json-object.ts'
import { fill, texts } from '../texts/texts.ts'
import type { Attachment, Chat, Message } from './conversation-tree.ts'

/* Validates chats from files and servers, so that no view fails on them later. */

/** Maximum messages of one chat. */
const MAX_MESSAGES = 20_000
/** Maximum depth of nested objects. */
const MAX_DEPTH = 32

type Check = (value: unknown) => boolean
type Shape = Record<string, Check>

const text: Check = value => typeof value === 'string'
const id: Check = value => typeof value === 'string' && value !== '' && value.length <= 300 && value !== '__proto__'
const number: Check = value => Number.isFinite(value)
const flag: Check = value => typeof value === 'boolean'
const oneOf = (...values: unknown[]) => values.includes.bind(values) as Check
const listOf = (item: Check) => (value: unknown) => Array.isArray(value) && value.every(item)
const valuesOf = (item: Check) => (value: unknown) => isObject(value) && Object.values(value).every(item)
const shape = (fields: Shape) => (value: unknown) => isObject(value) && wrongField(value, fields) === undefined
/** Makes all fields of a shape optional. */
const optional = (fields: Shape): Shape =>
  Object.fromEntries(
    Object.entries(fields).map(([field, check]) => [field, value => value === undefined || check(value)])
  )

function isShallow(value: unknown, depth = MAX_DEPTH): boolean {
  if (typeof value !== 'object' || value === null) return true
  return depth > 0 && Object.values(value).every(field => isShallow(field, depth - 1))
}

const isAttachment = shape({ name: text, kind: oneOf('image', 'audio', 'text'), type: text, data: text })
const attachment: Check = value => {
  if (!isAttachment(value)) return false
  const { kind, data } = value as Attachment
  // Loading a URL on another server would reveal what is being read.
  return kind === 'text' || data.startsWith(`data:${kind}/`)
}

const SETTINGS = optional({
  system: text,
  schema: text,
  tools: text,
  options: value => isObject(value) && isShallow(value)
})
const CHAT = {
  id,
  title: text,
  createdAt: number,
  ...SETTINGS,
  ...optional({
    updatedAt: number,
    changedAt: number,
    stamps: valuesOf(number),
    gone: valuesOf(number),
    leaf: id,
    pinned: flag,
    model: text
  })
}
const MESSAGE = {
  id,
  chat: id,
  role: oneOf('user', 'assistant', 'tool'),
  content: text,
  at: number,
  ...optional({
    parent: id,
    rev: number,
    attachments: listOf(attachment),
    callId: text,
    model: text,
    thinking: text,
    toolCalls: listOf(shape({ id: text, name: text, arguments: text })),
    state: oneOf('waiting', 'answering', 'stopped', 'failed'),
    status: text,
    stream: shape({ id: text, last: number }),
    finish: text,
    timing: valuesOf(number),
    dropped: number,
    error: shape({ message: text, code: text })
  })
}

/** Returns the first field that is missing or has the wrong type. */
const wrongField = (value: Record<string, unknown>, fields: Shape): string | undefined =>
  Object.keys(fields).find(field => !fields[field]!(value[field]))

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
    const wrong = wrongField(chat, CHAT)
    if (wrong !== undefined) throw new ChatFault(chat.title, fill(t.field, { field: wrong }))
    const known = knownFields(chat, CHAT) as Chat
    if (byId.has(known.id)) throw new ChatFault(known.title, fill(t.twice, { id: known.id }))
    byId.set(known.id, { chat: { ...known, updatedAt: known.updatedAt ?? known.createdAt }, messages: [] })
  }
  for (const value of messages) {
    const message = isObject(value) ? value : {}
    const own = byId.get(message.chat as string)
    if (!own) throw new ChatFault('', fill(t.noChat, { id: String(message.id) }))
    const wrong = wrongField(message, MESSAGE)
    if (wrong !== undefined)
      throw new ChatFault(own.chat.title, fill(t.messageField, { id: String(message.id), field: wrong }))
    own.messages.push(knownFields(message, MESSAGE) as Message)
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

/** Validates presets. */
export const arePresets = listOf(shape({ name: text, ...SETTINGS }))
