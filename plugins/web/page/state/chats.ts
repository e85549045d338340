import { batch, computed, type Signal, signal } from '@preact/signals'
import { type DBSchema, type IDBPDatabase, openDB } from 'idb'
import {
  branchTo,
  type Chat,
  type Message,
  newestLeafBelow,
  siblingsOf,
  titleOf,
  withDescendants
} from './conversation-tree.ts'
import { keepDraft } from './drafts.ts'
import { newId } from './identifier.ts'

/*
 * The chats of this browser: the one place that changes them, in memory and in its database. Messages are signals of their
 * own, so that a token changes one message on the page and nothing else.
 */

interface Schema extends DBSchema {
  chats: { key: string; value: Chat }
  messages: { key: string; value: Message; indexes: { chat: string } }
}

let database: IDBPDatabase<Schema> | undefined
/** Why nothing is kept, where the browser refuses to. */
export const storageFault = signal('')

/** All chats by their ids. */
export const chats = signal<ReadonlyMap<string, Chat>>(new Map())
/** Whether `chats` has been read. */
export const isReady = signal(false)
/** Pinned ones first, then the newest. */
export const sortedChats = computed(() =>
  [...chats.value.values()].sort(
    (a, b) => Number(b.pinned ?? false) - Number(a.pinned ?? false) || b.updatedAt - a.updatedAt
  )
)

/** The messages of one chat that is open. */
export interface OpenChat {
  readonly messages: ReadonlyMap<string, Signal<Message>>
}
/** Chats whose messages are in memory. */
const open = new Map<string, Signal<OpenChat>>()

/** Tells the other tabs what has changed. */
const channel = new BroadcastChannel('corral-chats')
type Notice = { chat: string; changed?: string[]; gone?: string[] } | { all: true }
channel.onmessage = ({ data }: MessageEvent<Notice>) => {
  if ('all' in data) void readChats()
  else void readAgain(data.chat, data.changed ?? [], data.gone ?? [])
}

/** Opens the database and reads the list. @param owner the name of the key whose chats they are; empty without one */
export async function openChats(owner: string): Promise<void> {
  try {
    database = await openDB<Schema>(owner ? `corral ${owner}` : 'corral', 1, {
      upgrade(db) {
        db.createObjectStore('chats', { keyPath: 'id' })
        db.createObjectStore('messages', { keyPath: 'id' }).createIndex('chat', 'chat')
      }
    })
    await readChats()
  } catch (error) {
    storageFault.value = String((error as Error).message)
  }
  isReady.value = true
}

async function readChats(): Promise<void> {
  const all = (await database?.getAll('chats')) ?? []
  chats.value = new Map(all.map(chat => [chat.id, chat]))
}

/** Takes what another tab has changed: the chat, and those of its messages. */
async function readAgain(id: string, changed: string[], gone: string[]): Promise<void> {
  const chat = await database?.get('chats', id)
  const next = new Map(chats.value)
  if (chat) next.set(id, chat)
  else next.delete(id)
  const opened = open.get(id)
  if (!chat) open.delete(id)
  const messages = opened ? await Promise.all(changed.map(message => database?.get('messages', message))) : []
  batch(() => {
    // The branch that is shown may end with one of the messages.
    for (const message of messages) {
      if (!message) continue
      const seen = opened!.value.messages.get(message.id)
      if (seen) seen.value = message
      else opened!.value = { messages: new Map(opened!.value.messages).set(message.id, signal(message)) }
    }
    if (opened && gone.length > 0) {
      const rest = new Map(opened.value.messages)
      for (const message of gone) rest.delete(message)
      opened.value = { messages: rest }
    }
    chats.value = next
  })
}

/** What is to be written, by id, until the next time. */
const dirty = new Map<string, Message>()
let timer: ReturnType<typeof setTimeout> | undefined
/** Milliseconds between two writes of what changes all the time. */
const WRITE_INTERVAL = 1000

function writeSoon(message: Message, now: boolean): void {
  dirty.set(message.id, message)
  if (now) void writeDirty()
  else timer ??= setTimeout(() => void writeDirty(), WRITE_INTERVAL)
}

async function writeDirty(): Promise<void> {
  clearTimeout(timer)
  timer = undefined
  const messages = [...dirty.values()]
  dirty.clear()
  if (!database || messages.length === 0) return
  try {
    const write = database.transaction('messages', 'readwrite')
    await Promise.all([...messages.map(message => write.store.put(message)), write.done])
    for (const chat of new Set(messages.map(({ chat }) => chat))) {
      const changed = messages.filter(message => message.chat === chat).map(({ id }) => id)
      channel.postMessage({ chat, changed } satisfies Notice)
    }
  } catch (error) {
    storageFault.value = String((error as Error).message)
  }
}
// What was said last is there when the page is opened again.
addEventListener('pagehide', () => void writeDirty())

/** The messages of a chat, read at the first time. */
export async function openChat(id: string): Promise<Signal<OpenChat>> {
  const known = open.get(id)
  if (known) return known
  const messages = (await database?.getAllFromIndex('messages', 'chat', id)) ?? []
  const opened = open.get(id) ?? signal<OpenChat>({ messages: new Map(messages.map(each => [each.id, signal(each)])) })
  open.set(id, opened)
  return opened
}

/** The messages of a chat that is open, as they are now. */
export function messagesOf(id: string): Map<string, Message> {
  const messages = open.get(id)?.peek().messages ?? new Map<string, Signal<Message>>()
  return new Map([...messages].map(([id, message]) => [id, message.peek()]))
}

/** Makes a chat, which is kept once something is said in it. */
export async function createChat(from: Partial<Chat>): Promise<Chat> {
  const now = Date.now()
  const chat: Chat = { title: '', ...from, id: newId(), createdAt: now, updatedAt: now }
  open.set(chat.id, signal({ messages: new Map() }))
  await changeChat(chat.id, chat)
  return chat
}

/** Changes some of a chat's fields. */
export async function changeChat(id: string, change: Partial<Chat>): Promise<void> {
  const known = chats.peek().get(id)
  // One that was deleted meanwhile stays away.
  if (!known && change.id === undefined) return
  const chat = { ...known, ...change } as Chat
  chats.value = new Map(chats.peek()).set(id, chat)
  try {
    await database?.put('chats', chat)
  } catch (error) {
    storageFault.value = String((error as Error).message)
  }
  channel.postMessage({ chat: id } satisfies Notice)
}

/** Adds a message to an open chat and shows the branch that ends with it. */
export async function addMessage(message: Omit<Message, 'id' | 'at'>): Promise<Message> {
  const opened = await openChat(message.chat)
  const newest = Math.max(0, ...[...opened.peek().messages.values()].map(each => each.peek().at))
  // Of two in one millisecond the order counts.
  const added: Message = { ...message, id: newId(), at: Math.max(Date.now(), newest + 1) }
  batch(() => {
    opened.value = { messages: new Map(opened.peek().messages).set(added.id, signal(added)) }
  })
  writeSoon(added, true)
  const chat = chats.peek().get(message.chat)
  const title = chat?.title || (message.role === 'user' ? titleOf(message.content) : '')
  await changeChat(message.chat, { leaf: added.id, updatedAt: added.at, title })
  return added
}

/**
 * Changes a message. What changes while it streams (`often`) is written once a second.
 * @returns false where it has been deleted
 */
export function changeMessage(message: Pick<Message, 'id' | 'chat'>, change: Partial<Message>, often = false): boolean {
  const known = open.get(message.chat)?.peek().messages.get(message.id)
  if (!known) return false
  known.value = { ...known.peek(), ...change }
  writeSoon(known.peek(), !often)
  return true
}

/** Shows the branch that goes through a message. */
export async function showBranch(message: Message): Promise<void> {
  await changeChat(message.chat, { leaf: newestLeafBelow(messagesOf(message.chat), message.id) })
}

/** Deletes a message with all that follows it; the branch ends before it then, or goes on with a sibling. */
export async function deleteMessage(message: Message): Promise<void> {
  const messages = messagesOf(message.chat)
  const gone = withDescendants(messages, message.id)
  const opened = open.get(message.chat)!
  const rest = new Map(opened.peek().messages)
  for (const { id } of gone) {
    rest.delete(id)
    messages.delete(id)
    dirty.delete(id)
  }
  opened.value = { messages: rest }
  const sibling = siblingsOf(messages, message).at(-1)
  const leaf = sibling ? newestLeafBelow(messages, sibling.id) : message.parent
  await changeChat(message.chat, { leaf: leaf! })
  await Promise.all(gone.map(({ id }) => database?.delete('messages', id)))
  channel.postMessage({ chat: message.chat, gone: gone.map(({ id }) => id) } satisfies Notice)
}

/** Deletes a chat with its messages. */
export async function deleteChat(id: string): Promise<void> {
  const rest = new Map(chats.peek())
  rest.delete(id)
  chats.value = rest
  for (const [message, { chat }] of dirty) if (chat === id) dirty.delete(message)
  open.delete(id)
  keepDraft(id, '')
  if (database) {
    const write = database.transaction(['chats', 'messages'], 'readwrite')
    const keys = await write.objectStore('messages').index('chat').getAllKeys(id)
    await Promise.all([
      write.objectStore('chats').delete(id),
      ...keys.map(key => write.objectStore('messages').delete(key)),
      write.done
    ])
  }
  channel.postMessage({ chat: id } satisfies Notice)
}

/** A chat with its messages; undefined where it is not here. */
export async function readChat(id: string): Promise<{ chat: Chat; messages: Message[] } | undefined> {
  await writeDirty()
  const chat = chats.peek().get(id)
  return chat && { chat, messages: (await database?.getAllFromIndex('messages', 'chat', id)) ?? [] }
}

/** A chat with the same messages on one branch. @param end the message that it ends with; by default of the branch shown */
export async function forkChat(id: string, change: Partial<Chat>, end?: string): Promise<Chat> {
  const { leaf, ...from } = chats.peek().get(id)!
  const fork = await createChat({ ...from, ...change })
  let parent: string | undefined
  for (const message of branchTo(messagesOf(id), end ?? leaf)) {
    const { id: _id, at: _at, parent: _parent, stream: _stream, ...rest } = message
    const copy = await addMessage({ ...rest, chat: fork.id, ...(parent !== undefined && { parent }) })
    parent = copy.id
  }
  return fork
}

/** All chats with their messages, for export and search. */
export async function readAll(): Promise<{ chats: Chat[]; messages: Message[] }> {
  await writeDirty()
  return { chats: [...chats.peek().values()], messages: (await database?.getAll('messages')) ?? [] }
}

/** Stores chats with their messages, such as those of an export. Those that are here under the same ids are replaced. */
export async function storeAll(imported: { chats: Chat[]; messages: Message[] }): Promise<void> {
  if (!database) throw new Error(storageFault.peek())
  const write = database.transaction(['chats', 'messages'], 'readwrite')
  await Promise.all([
    ...imported.chats.map(chat => write.objectStore('chats').put(chat)),
    ...imported.messages.map(message => write.objectStore('messages').put(message)),
    write.done
  ])
  // What is shown gets what is new; the rest is read when it is opened.
  for (const { id } of imported.chats) {
    const own = imported.messages.filter(({ chat }) => chat === id)
    if (open.has(id))
      await readAgain(
        id,
        own.map(message => message.id),
        []
      )
  }
  await readChats()
  channel.postMessage({ all: true } satisfies Notice)
}

/** The chats in whose messages a text stands. @param words in lower case */
export async function findInMessages(words: string): Promise<Set<string>> {
  const { messages } = await readAll()
  const found = messages.filter(({ content }) => content.toLowerCase().includes(words))
  return new Set(found.map(({ chat }) => chat))
}
