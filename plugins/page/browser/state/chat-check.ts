import { fill, texts } from '../texts/texts.ts'
import type { Chat, Message } from './conversation-tree.ts'

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
const oneOf =
  (...values: string[]): Check =>
  value =>
    values.includes(value as string)
const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
const listOf =
  (item: Check): Check =>
  value =>
    Array.isArray(value) && value.every(item)
const valuesOf =
  (item: Check): Check =>
  value =>
    isObject(value) && Object.values(value).every(item)
const shape =
  (fields: Shape): Check =>
  value =>
    isObject(value) && wrongField(value, fields, {}) === undefined
const optional =
  (check: Check): Check =>
  value =>
    value === undefined || check(value)

function isShallow(value: unknown, depth = MAX_DEPTH): boolean {
  if (typeof value !== 'object' || value === null) return true
  return depth > 0 && Object.values(value).every(field => isShallow(field, depth - 1))
}

const attachment: Check = value =>
  shape({ name: text, kind: oneOf('image', 'audio', 'text'), type: text, data: text })(value) &&
  // Loading a URL on another server would reveal what is being read.
  ((value as Record<string, string>).kind === 'text' ||
    (value as Record<string, string>).data!.startsWith(`data:${(value as Record<string, string>).kind}/`))

const SETTINGS: Shape = {
  system: text,
  schema: text,
  tools: text,
  options: value => isObject(value) && isShallow(value)
}
const CHAT: Shape = { id, title: text, createdAt: number }
const CHAT_MORE: Shape = {
  ...SETTINGS,
  updatedAt: number,
  changedAt: number,
  stamps: valuesOf(number),
  gone: valuesOf(number),
  leaf: id,
  pinned: flag,
  model: text
}
const MESSAGE: Shape = { id, chat: id, role: oneOf('user', 'assistant', 'tool'), content: text, at: number }
const MESSAGE_MORE: Shape = {
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
}

/** Returns the first field that is missing or has the wrong type. */
function wrongField(value: Record<string, unknown>, required: Shape, more: Shape): string | undefined {
  const wrong = ([field, check]: [string, Check]) => !check(value[field])
  const found =
    Object.entries(required).find(wrong) ??
    Object.entries(more)
      .map(([field, check]) => [field, optional(check)] as [string, Check])
      .find(wrong)
  return found?.[0]
}

/** Copies the known fields of a value. */
function picked<Value>(value: object, ...shapes: Shape[]): Value {
  const known = shapes.flatMap(fields => Object.keys(fields))
  return Object.fromEntries(Object.entries(value).filter(([field]) => known.includes(field))) as Value
}

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
    const wrong = wrongField(chat, CHAT, CHAT_MORE)
    if (wrong !== undefined) throw new ChatFault(chat.title, fill(t.field, { field: wrong }))
    const known = picked<Chat>(chat, CHAT, CHAT_MORE)
    if (byId.has(known.id)) throw new ChatFault(known.title, fill(t.twice, { id: known.id }))
    byId.set(known.id, { chat: { ...known, updatedAt: known.updatedAt ?? known.createdAt }, messages: [] })
  }
  for (const value of messages) {
    const message = isObject(value) ? value : {}
    const own = byId.get(message.chat as string)
    if (!own) throw new ChatFault('', fill(t.noChat, { id: String(message.id) }))
    const wrong = wrongField(message, MESSAGE, MESSAGE_MORE)
    if (wrong !== undefined)
      throw new ChatFault(own.chat.title, fill(t.messageField, { id: String(message.id), field: wrong }))
    own.messages.push(picked<Message>(message, MESSAGE, MESSAGE_MORE))
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

/**
 * Validates that messages form a tree.
 * @param gone ids of parents that may be missing; undefined allows any
 * @throws ChatFault
 */
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
export const arePresets = listOf(value => isObject(value) && wrongField(value, { name: text }, SETTINGS) === undefined)
