import { batch, computed, type Signal, signal } from '@preact/signals'
import { newId, openChannel } from './browser-storage.ts'
import { openDatabase, storedChat, storedChats, storedMessage, storedMessages, writeChanges } from './chat-database.ts'
import type { Chat, Message } from './chat-format.ts'
import { startOfDay } from './chat-groups.ts'
import { branchTo, getSiblings, newestLeafBelow, titleOf, withDescendants } from './conversation-tree.ts'
import { keepDraft } from './drafts.ts'
import { type ChatDocument, isSameChat, mergeChats, withChange } from './merge-chats.ts'

/*
 * The chats in this browser. This module alone changes them, in memory and in the database. Each message is its own
 * signal, so that a token updates one message and nothing else. Chats that have been opened or changed stay in memory
 * until the tab is closed, so they can be used even if the browser refuses to store them.
 */

export const chats = signal<ReadonlyMap<string, Chat>>(new Map())
/** Whether `chats` has been read. */
export const isReady = signal(false)
/** Pinned chats first, then the newest. */
export const sortedChats = computed(() =>
  [...chats.value.values()]
    .filter(({ isProject }) => !isProject)
    .sort((a, b) => Number(b.pinned ?? false) - Number(a.pinned ?? false) || b.updatedAt - a.updatedAt)
)
/** Projects by name. They are stored, merged and synchronized like chats. */
export const projects = computed(() =>
  [...chats.value.values()].filter(({ isProject }) => isProject).sort((a, b) => a.title.localeCompare(b.title))
)
/** Id of the project that a chat is in; empty for no project, or a missing one. */
export const projectOf = ({ project = '' }: Pick<Chat, 'project'>): string =>
  chats.value.get(project)?.isProject ? project : ''
/** Chats by the id of their project. */
export const chatsByProject = computed(() => {
  const lists = new Map<string, Chat[]>()
  for (const chat of sortedChats.value) {
    const id = projectOf(chat)
    lists.set(id, lists.get(id) ?? [])
    lists.get(id)!.push(chat)
  }
  return lists
})

/** Start of the current day. */
export const today = signal(0)
let midnight: ReturnType<typeof setTimeout> | undefined
function noteDay(): void {
  clearTimeout(midnight)
  const now = Date.now()
  today.value = startOfDay(now)
  midnight = setTimeout(noteDay, startOfDay(now, -1) - now)
}
noteDay()
// Timers stop while the machine sleeps, and travellers change the time zone.
document.addEventListener('visibilitychange', noteDay)

export interface OpenChat {
  readonly messages: ReadonlyMap<string, Signal<Message>>
}
/** Chats whose messages are in memory. */
const open = new Map<string, Signal<OpenChat>>()

/** Messages to other tabs about changes. */
type Notice = { chat: string; changed?: string[]; gone?: string[] } | { all: true }
const { post } = openChannel<Notice>('corral-chats', notice => {
  if ('all' in notice) void readAllAgain()
  else void readAgain(notice.chat, notice.changed ?? [], notice.gone ?? [])
})

/** Opens the database and reads the list of chats. @param owner name of the key that the chats belong to, or empty */
export async function openChats(owner: string): Promise<void> {
  await openDatabase(owner)
  await readChats()
  isReady.value = true
}

async function readChats(): Promise<void> {
  chats.value = new Map((await storedChats()).map(chat => [chat.id, chat]))
}

/** Reloads everything after an import in another tab. */
async function readAllAgain(): Promise<void> {
  await readChats()
  for (const id of open.keys()) show(id, await storedMessages(id), [])
}

/** Reloads a chat and its messages that another tab changed. */
async function readAgain(id: string, changed: string[], gone: string[]): Promise<void> {
  const chat = await storedChat(id)
  const next = new Map(chats.value)
  if (chat) next.set(id, chat)
  else next.delete(id)
  const opened = open.get(id)
  if (!chat) open.delete(id)
  const messages = opened ? await Promise.all(changed.map(storedMessage)) : []
  const found = messages.filter(message => message !== undefined)
  batch(() => {
    // The current branch may end with one of these messages.
    show(id, found, gone)
    chats.value = next
  })
}

function show(id: string, changed: readonly Message[], gone: readonly string[]): void {
  const opened = open.get(id)
  if (!opened) return
  const messages = new Map(opened.peek().messages)
  for (const message of changed) {
    const seen = messages.get(message.id)
    if (seen) seen.value = message
    else messages.set(message.id, signal(message))
  }
  for (const message of gone) messages.delete(message)
  if (gone.length > 0 || messages.size !== opened.peek().messages.size) opened.value = { messages }
}

/** Messages by id that are written at the next interval. */
const dirty = new Map<string, Message>()
let timer: ReturnType<typeof setTimeout> | undefined
/** Interval for writing messages that change all the time, in milliseconds. */
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
  if (messages.length === 0) return
  await writeChanges({ messages })
  for (const { chat, id } of messages) post({ chat, changed: [id] })
}
// Save the latest text when the page is closed.
addEventListener('pagehide', () => void writeDirty())

/** Returns the messages of a chat, and reads them on the first call. */
export async function openChat(id: string): Promise<Signal<OpenChat>> {
  const known = open.get(id)
  if (known) return known
  const messages = await storedMessages(id)
  return open.get(id) ?? keepOpen(id, messages)
}

function keepOpen(id: string, messages: readonly Message[]): Signal<OpenChat> {
  const opened = signal<OpenChat>({ messages: new Map(messages.map(each => [each.id, signal(each)])) })
  open.set(id, opened)
  return opened
}

export function messagesOf(id: string): Map<string, Message> {
  const messages = open.get(id)?.peek().messages ?? new Map<string, Signal<Message>>()
  return new Map([...messages].map(([id, message]) => [id, message.peek()]))
}

/** Creates a chat. It is stored once it has a message. */
export async function createChat(from: Partial<Chat>): Promise<Chat> {
  const now = Date.now()
  const chat: Chat = { title: '', ...from, id: newId(), createdAt: now, updatedAt: now }
  keepOpen(chat.id, [])
  await changeChat(chat.id, chat)
  return chat
}

/**
 * Changes fields of a chat. Without fields, only records that its messages changed.
 * @param now time of the change; 0 for one that later changes of the user take precedence over, wherever they are made
 */
export async function changeChat(id: string, change: Partial<Chat> = {}, now = Date.now()): Promise<void> {
  const known = chats.peek().get(id)
  // Do not bring back a chat that was deleted elsewhere.
  if (!known && change.id === undefined) return
  const chat = known ? withChange(known, change, now) : (change as Chat)
  chats.value = new Map(chats.peek()).set(id, chat)
  await writeChanges({ chats: [chat] })
  post({ chat: id })
}

/** Adds a message to an open chat and shows the branch that ends with it. */
export async function addMessage(message: Omit<Message, 'id' | 'at'> & { id?: string }): Promise<Message> {
  const opened = await openChat(message.chat)
  const newest = Math.max(0, ...[...opened.peek().messages.values()].map(each => each.peek().at))
  // The next millisecond, to keep the order of two messages in the same one.
  const added: Message = { id: newId(), ...message, at: Math.max(Date.now(), newest + 1) }
  opened.value = { messages: new Map(opened.peek().messages).set(added.id, signal(added)) }
  writeSoon(added, true)
  const chat = chats.peek().get(message.chat)
  const title = chat?.title || (message.role === 'user' ? titleOf(message.content) : '')
  await changeChat(message.chat, { leaf: added.id, updatedAt: added.at, title })
  return added
}

/** Changes a message. Frequent changes (`often`) are written once a second. @returns false if it was deleted */
export function changeMessage(message: Pick<Message, 'id' | 'chat'>, change: Partial<Message>, often = false): boolean {
  const known = open.get(message.chat)?.peek().messages.get(message.id)
  if (!known) return false
  known.value = { ...known.peek(), ...change }
  writeSoon(known.peek(), !often)
  return true
}

export async function editMessage(message: Message, change: Partial<Message>): Promise<void> {
  const known = open.get(message.chat)?.peek().messages.get(message.id)?.peek()
  changeMessage(message, { ...change, rev: Math.max(Date.now(), (known?.rev ?? 0) + 1) })
  await changeChat(message.chat)
}

export async function showBranch(message: Message): Promise<void> {
  await changeChat(message.chat, { leaf: newestLeafBelow(messagesOf(message.chat), message.id) })
}

/** Deletes a message and everything after it. The branch then ends before it, or continues with a sibling. */
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
  const sibling = getSiblings(messages, message).at(-1)
  const leaf = sibling ? newestLeafBelow(messages, sibling.id) : message.parent
  const now = Date.now()
  const times = gone.map(({ id, rev = 0 }) => [id, Math.max(now, rev + 1)] as const)
  const all = { ...chats.peek().get(message.chat)?.gone, ...Object.fromEntries(times) }
  await changeChat(message.chat, { leaf: leaf!, gone: all })
  const goneMessages = gone.map(({ id }) => id)
  await writeChanges({ goneMessages })
  post({ chat: message.chat, gone: goneMessages })
}

export async function deleteChat(id: string): Promise<void> {
  chats.value = new Map([...chats.peek()].filter(([other]) => other !== id))
  for (const [message, { chat }] of dirty) if (chat === id) dirty.delete(message)
  open.delete(id)
  keepDraft(id, '')
  await writeChanges({ goneChat: id })
  post({ chat: id })
}

export async function readChat(id: string): Promise<ChatDocument | undefined> {
  const stored = open.has(id) ? [] : await storedMessages(id)
  const chat = chats.peek().get(id)
  return chat && { chat, messages: open.has(id) ? [...messagesOf(id).values()] : stored }
}

/** Merges another browser's version of a chat into the local one. `isSame`: the other has everything. */
export async function mergeIn(other: ChatDocument): Promise<{ chat: Chat; isSame: boolean }> {
  const { id } = other.chat
  const here = await readChat(id)
  const merged = here ? mergeChats(here, other) : other
  const before = new Map(here?.messages.map(message => [message.id, message]))
  const messages = merged.messages.filter(message => before.get(message.id) !== message)
  for (const message of merged.messages) before.delete(message.id)
  await store({ chats: [merged.chat], messages, goneMessages: [...before.keys()] })
  return { chat: merged.chat, isSame: isSameChat(merged, other) }
}

/** Copies one branch of a chat into a new chat. @param end last message; default is the end of the current branch */
export const forkChat = (id: string, change: Partial<Chat>, end?: string): Promise<Chat> =>
  copyChat({ ...chats.peek().get(id), ...change }, branchTo(messagesOf(id), end ?? chats.peek().get(id)!.leaf))

/** Makes a new chat with the fields of another, and copies of messages that follow each other. */
export async function copyChat(chat: Partial<Chat>, messages: readonly Message[]): Promise<Chat> {
  const { leaf: _leaf, stamps: _stamps, gone: _gone, changedAt: _changedAt, ...from } = chat
  const copy = await createChat(from)
  let parent: string | undefined
  for (const message of messages) {
    const { id: _id, at: _at, parent: _parent, stream: _stream, rev: _rev, ...rest } = message
    parent = (await addMessage({ ...rest, chat: copy.id, parent })).id
  }
  return copy
}

/** Reads all chats with their messages, for export. */
export async function readAll(): Promise<{ chats: Chat[]; messages: Message[] }> {
  const stored = await storedMessages()
  const inMemory = [...open.keys()].flatMap(id => [...messagesOf(id).values()])
  return { chats: [...chats.peek().values()], messages: [...stored.filter(({ chat }) => !open.has(chat)), ...inMemory] }
}

/** Stores imported chats with their messages. Chats with the same ids are replaced. */
export async function storeAll({ chats: all, messages }: { chats: Chat[]; messages: Message[] }): Promise<void> {
  const now = Date.now()
  // Imported chats take precedence over the versions of other browsers.
  const replaced = new Set(all.filter(({ id }) => chats.peek().has(id)).map(({ id }) => id))
  const stampsOf = (chat: Chat) => Object.fromEntries(Object.keys(chat).map(field => [field, now]))
  await store({
    chats: all.map(chat => ({ ...chat, changedAt: now, ...(replaced.has(chat.id) && { stamps: stampsOf(chat) }) })),
    messages: messages.map(message => (replaced.has(message.chat) ? { ...message, rev: now } : message))
  })
}

/** Shows and stores chats and messages that came from elsewhere. */
async function store(changes: { chats: Chat[]; messages: Message[]; goneMessages?: string[] }): Promise<void> {
  const { chats: changed, messages, goneMessages: gone = [] } = changes
  const ownOf = (id: string) => messages.filter(({ chat }) => chat === id)
  batch(() => {
    for (const { id } of changed) if (open.has(id)) show(id, ownOf(id), gone)
    chats.value = new Map([...chats.peek(), ...changed.map(chat => [chat.id, chat] as const)])
  })
  if (!(await writeChanges(changes))) for (const { id } of changed) if (!open.has(id)) keepOpen(id, ownOf(id))
  if (changed.length > 1) post({ all: true })
  else for (const { id: chat } of changed) post({ chat, changed: messages.map(({ id }) => id), gone: [...gone] })
}

/** Whether the messages of a chat are in memory. */
export const isOpen = (id: string): boolean => open.has(id)

/** Id of a message that its chat scrolls to once it is shown. */
export const sought = signal('')
