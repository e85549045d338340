import { signal } from '@preact/signals'
import { isAsked, isDecided } from './answer-calls.ts'
import { afterAnswers, answer, stop } from './answering.ts'
import { newId, noteStorageFault, openChannel, openStore } from './browser-storage.ts'
import type { Attachment, Message } from './chat-format.ts'
import { addMessage, chats, messagesOf } from './chats.ts'
import { branchTo, isUnderWay } from './conversation-tree.ts'
import { chatsOwner } from './preferences.ts'

/*
 * Messages that wait until an answer is finished. They are stored in this browser only. Changes are transactions of one
 * database, so that no two tabs send the same message. A message leaves the queue after the chat has stored it.
 */

export interface Queued {
  id: string
  text: string
  attachments: readonly Attachment[]
  /** Whether a tab shows it in a field. It is not sent meanwhile. */
  isEdited?: boolean
}

interface Queue {
  items: readonly Queued[]
  /** The answer after which the last message was sent, so that a tab with an old view of the chat sends nothing. */
  after?: string
}

/** The queued messages by chat, as far as this tab has read them. */
export const queues = signal<ReadonlyMap<string, readonly Queued[]>>(new Map())
/** Queues that the browser refused to store. */
const refused = new Map<string, Queue>()
const { post } = openChannel<string>('corral-queues', chat => void changeQueue(chat, () => undefined))

const database = openStore(`corral-queues ${chatsOwner.peek()}`, db => db.createObjectStore('queues'))

/** Changes a queue in one transaction. @param edit returns the new queue, or undefined to leave it */
async function changeQueue(chat: string, edit: (queue: Queue) => Queue | undefined): Promise<void> {
  const write = (await database)?.transaction('queues', 'readwrite')
  const stored: Queue = refused.get(chat) ?? (await write?.store.get(chat)) ?? { items: [] }
  const changed = edit(stored)
  const { items } = changed ?? stored
  queues.value = new Map(queues.peek()).set(chat, items)
  if (!changed) return
  refused.delete(chat)
  try {
    if (!write) refused.set(chat, changed)
    else if (items.length === 0) await write.store.delete(chat)
    else await write.store.put(changed, chat)
    await write?.done
  } catch (error) {
    noteStorageFault(error)
    refused.set(chat, changed)
  }
  post(chat)
}

const changeItems = (chat: string, change: (items: readonly Queued[]) => readonly Queued[]) =>
  changeQueue(chat, queue => ({ ...queue, items: change(queue.items) }))

export async function enqueue(chat: string, text: string, attachments: readonly Attachment[]): Promise<void> {
  await changeItems(chat, items => [...items, { id: newId(), text, attachments }])
  // The answer may have ended by now.
  await sendNext(chat)
}

/** Begins or ends editing. */
export async function editQueued(chat: string, { id, ...edit }: Partial<Queued>): Promise<void> {
  await changeItems(chat, items => items.map(item => (item.id === id ? { ...item, ...edit } : item)))
  if (!edit.isEdited) await sendNext(chat)
}

export const removeQueued = (chat: string, id: string): Promise<void> =>
  changeItems(chat, items => items.filter(item => item.id !== id))

const leafOf = (chat: string) => branchTo(messagesOf(chat), chats.peek().get(chat)?.leaf).at(-1)

/** Whether the next question may follow this message. */
const isComplete = ({ role, state, toolCalls, calls = [] }: Message) =>
  role === 'assistant' && state === undefined && !toolCalls && !calls.some(call => isAsked(call) || isDecided(call))

/** Sends the next message if the last answer is complete. */
export async function sendNext(chat: string): Promise<void> {
  const leaf = leafOf(chat)
  let next: Queued | undefined
  await changeQueue(chat, queue => {
    const [first] = queue.items
    if (!leaf || !isComplete(leaf) || !first || first.isEdited || queue.after === leaf.id) return undefined
    next = first
    return { ...queue, after: leaf.id }
  })
  if (next && leafOf(chat)?.id === leaf?.id) await deliver(chat, next)
}

/** How often and how many times to look whether a stopped answer has ended. */
const [STOP_CHECK_MS, MAX_STOP_CHECKS] = [50, 100]

/** Sends a message at once. An answer that is being received is stopped. */
export async function sendNow(chat: string, item: Queued): Promise<void> {
  const isBusy = () => isUnderWay(leafOf(chat) ?? { state: undefined })
  if (isBusy()) stop(leafOf(chat)!.id)
  for (let checks = 0; isBusy() && checks < MAX_STOP_CHECKS; checks++) {
    await new Promise(resolve => setTimeout(resolve, STOP_CHECK_MS))
  }
  if (!isBusy()) await deliver(chat, item)
}

async function deliver(chat: string, { id, text, attachments }: Queued): Promise<void> {
  const parent = chats.peek().get(chat)?.leaf
  const files = attachments.length > 0 ? [...attachments] : undefined
  // A tab that was closed between these steps has added the message already.
  const isNew = !messagesOf(chat).has(id)
  if (isNew) await addMessage({ id, chat, parent, role: 'user', content: text, attachments: files })
  await removeQueued(chat, id)
  if (isNew) await answer(chat, id)
}

afterAnswers.add(chat => void sendNext(chat))

// Queues of chats that were deleted.
void database.then(async db => {
  for (const chat of (await db?.getAllKeys('queues')) ?? [])
    if (!chats.peek().has(`${chat}`)) await db!.delete('queues', chat)
}, noteStorageFault)
