import type { Chat, Message } from './chat-format.ts'

/*
 * Merges two browsers' versions of a chat. Each field has the time of its last change, each message may have one, and
 * deleted messages leave theirs behind. The result does not depend on the order in which browsers synchronize.
 */

/** A chat with all its messages. */
export interface ChatDocument {
  chat: Chat
  messages: Message[]
}

/** Fields that never change or are merged separately. */
const UNSTAMPED = new Set(['id', 'createdAt', 'updatedAt', 'changedAt', 'stamps', 'gone'])

/** Time of the last change of a chat. Old chats only have the time of their last message. */
export const lastChange = ({ changedAt, updatedAt }: Chat): number => changedAt ?? updatedAt

/** Changes fields of a chat. The change is always later than the previous one, whatever the clock says. */
export function withChange(chat: Chat, change: Partial<Chat>, now: number): Chat {
  const stamps = { ...chat.stamps }
  for (const [field, value] of Object.entries(change)) {
    if (UNSTAMPED.has(field) || canonical(value) === canonical(chat[field as keyof Chat])) continue
    stamps[field] = Math.max(now, (stamps[field] ?? 0) + 1)
  }
  return { ...chat, ...change, stamps, changedAt: Math.max(now, lastChange(chat) + 1) }
}

/** Merges two versions of a chat. Nothing that was written or set is lost, and nothing deleted comes back. */
export function mergeChats(a: ChatDocument, b: ChatDocument): ChatDocument {
  const chat: Record<string, unknown> = {
    id: a.chat.id,
    createdAt: Math.min(a.chat.createdAt, b.chat.createdAt),
    updatedAt: Math.max(a.chat.updatedAt, b.chat.updatedAt)
  }
  const changedAt = Math.max(a.chat.changedAt ?? 0, b.chat.changedAt ?? 0)
  if (changedAt > 0) chat.changedAt = changedAt
  for (const times of ['stamps', 'gone'] as const) {
    if (a.chat[times] || b.chat[times]) chat[times] = latest(a.chat[times], b.chat[times])
  }
  for (const field of new Set([...Object.keys(a.chat), ...Object.keys(b.chat)])) {
    if (UNSTAMPED.has(field)) continue
    const value = newerField(a.chat, b.chat, field as keyof Chat)
    if (value !== undefined) chat[field] = value
  }
  const gone = (chat as unknown as Chat).gone ?? {}
  const messages = new Map<string, Message>()
  for (const message of [...a.messages, ...b.messages]) {
    if ((gone[message.id] ?? 0) > (message.rev ?? 0)) continue
    const known = messages.get(message.id)
    messages.set(message.id, known ? newerMessage(known, message) : message)
  }
  return { chat: chat as unknown as Chat, messages: [...messages.values()].sort(byAge) }
}

/** Whether two versions of a chat are the same. */
export const isSameChat = (a: ChatDocument, b: ChatDocument): boolean =>
  canonical({ ...a, messages: a.messages.toSorted(byAge) }) ===
  canonical({ ...b, messages: b.messages.toSorted(byAge) })

const byAge = (a: Message, b: Message) => a.at - b.at || (a.id < b.id ? -1 : 1)

function latest(a: Record<string, number> = {}, b: Record<string, number> = {}): Record<string, number> {
  const all = { ...a }
  for (const [name, time] of Object.entries(b)) all[name] = Math.max(all[name] ?? 0, time)
  return all
}

function newerField(a: Chat, b: Chat, field: keyof Chat): unknown {
  const [inA, inB] = [a.stamps?.[field] ?? 0, b.stamps?.[field] ?? 0]
  if (inA !== inB) return (inA > inB ? a : b)[field]
  // Old chats have no times of fields. The chat with the later message takes precedence.
  if (inA === 0 && a.updatedAt !== b.updatedAt) return (a.updatedAt > b.updatedAt ? a : b)[field]
  return canonical(a[field]) >= canonical(b[field]) ? a[field] : b[field]
}

/** Returns the message that was edited later. Otherwise returns the longer one, since answers grow. */
function newerMessage(a: Message, b: Message): Message {
  const size = ({ content, thinking = '', calls = [] }: Message) =>
    content.length + thinking.length + calls.reduce((sum, { output = '' }) => sum + 1 + output.length, 0)
  const isComplete = ({ state }: Message) => Number(state === undefined)
  const order =
    (a.rev ?? 0) - (b.rev ?? 0) ||
    size(a) - size(b) ||
    isComplete(a) - isComplete(b) ||
    (canonical(a) >= canonical(b) ? 1 : -1)
  return order > 0 ? a : b
}

/** JSON with sorted fields, so that equal values have equal texts. */
function canonical(value: unknown): string {
  const ordered = (_: string, field: unknown) =>
    typeof field === 'object' && field !== null && !Array.isArray(field)
      ? Object.fromEntries(Object.entries(field).sort(([a], [b]) => (a < b ? -1 : 1)))
      : field
  return JSON.stringify(value, ordered) ?? ''
}
