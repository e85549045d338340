import type { Chat } from './chat-format.ts'

/** Start of a day in local time. Days may have 23 or 25 hours. @param before days before that of `at` */
export function startOfDay(at: number, before = 0): number {
  const date = new Date(at)
  return new Date(date.getFullYear(), date.getMonth(), date.getDate() - before).getTime()
}

export interface ChatGroup {
  name: 'pinned' | 'today' | 'yesterday' | 'week' | 'month'
  /** Time of a chat of the month. */
  at: number
  chats: Chat[]
}

/** Groups sorted chats by the day of their last message. @param now start of the current day */
export function groupChats(chats: readonly Chat[], now: number): ChatGroup[] {
  const [yesterday, week] = [startOfDay(now, 1), startOfDay(now, 7)]
  const nameOf = ({ pinned }: Chat, at: number): ChatGroup['name'] => {
    if (pinned) return 'pinned'
    if (at >= now) return 'today'
    return at >= yesterday ? 'yesterday' : at >= week ? 'week' : 'month'
  }
  const groups = new Map<string, ChatGroup>()
  for (const chat of chats) {
    // Files may contain any number.
    const at = Math.max(0, chat.updatedAt)
    const name = nameOf(chat, at)
    const date = new Date(at)
    const key = name === 'month' ? `${date.getFullYear()} ${date.getMonth()}` : name
    const group = groups.get(key)
    if (group) group.chats.push(chat)
    else groups.set(key, { name, at, chats: [chat] })
  }
  return [...groups.values()]
}
