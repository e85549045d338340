import { messagesAfter } from './chat-database.ts'
import type { Message } from './chat-format.ts'
import { type Hit, passageIn } from './chat-search.ts'
import { chats, isOpen, messagesOf, openChat, showBranch, sought } from './chats.ts'
import { branchTo, textsIn } from './conversation-tree.ts'

/** Milliseconds between two reports of a search. */
const REPORT_INTERVAL = 300

/**
 * Searches the messages of all chats in steps that delay no frame.
 * @param report receives the newest hit of each chat, several times
 */
export async function searchMessages(
  pattern: RegExp,
  signal: AbortSignal,
  report: (hits: ReadonlyMap<string, Hit>) => void
): Promise<void> {
  const hits = new Map<string, Hit>()
  let reported = performance.now()
  for await (const messages of messagesInParts()) {
    if (signal.aborted) return
    for (const message of messages) {
      if (message.at < (hits.get(message.chat)?.message.at ?? 0)) continue
      const passage = passageIn(message.content, pattern) ?? passageIn(message.summary ?? '', pattern)
      if (passage !== undefined) hits.set(message.chat, { message, passage })
    }
    if (performance.now() - reported < REPORT_INTERVAL) continue
    reported = performance.now()
    report(new Map(hits))
  }
  report(hits)
}

/** Characters of the messages that are read from the database at once, with attached files. */
const PART_SIZE = 500_000

async function* messagesInParts(): AsyncGenerator<readonly Message[]> {
  const inMemory = new Set([...chats.peek().keys()].filter(isOpen))
  for (const id of inMemory) yield [...messagesOf(id).values()]
  let [last, count] = ['', 16]
  while (true) {
    const part = await messagesAfter(last, count)
    if (part.length === 0) return
    last = part.at(-1)!.id
    const size = part.reduce((sum, message) => sum + sizeOf(message), 0)
    count = Math.max(1, Math.min(256, Math.floor((part.length * PART_SIZE) / (size + 1))))
    yield part.filter(({ chat }) => !inMemory.has(chat))
  }
}

const sizeOf = (message: Message) =>
  textsIn(message).reduce((sum, { length }) => sum + length, message.thinking?.length ?? 0)

/** Shows a message in its chat, on another branch if necessary. */
export async function seek(message: Message): Promise<void> {
  await openChat(message.chat)
  const branch = branchTo(messagesOf(message.chat), chats.peek().get(message.chat)?.leaf)
  if (branch.every(({ id }) => id !== message.id)) await showBranch(message)
  sought.value = message.id
}
