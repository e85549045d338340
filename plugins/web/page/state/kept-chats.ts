import { effect, signal } from '@preact/signals'
import { ApiError, ask } from './api.ts'
import { chats, deleteChat, readChat, storeAll } from './chats.ts'
import type { Chat, Message } from './conversation-tree.ts'
import { chatsOwner } from './preferences.ts'

/*
 * Chats that the server keeps, where its configuration says so: they follow a person from browser to browser. What is here
 * and what is there are merged by the ids of messages, of which none is ever overwritten.
 */

/** Whether the server keeps the chats of this browser. */
export const areKept = signal(false)

interface Kept {
  id: string
  updated_at: string
  version: number
}
interface Document {
  chat: Chat
  messages: Message[]
}

/** The version of each chat that this browser and the server have both seen, and when it was changed here. */
type Seen = Record<string, { version: number; updatedAt: number }>
const storedAs = () => `corral-kept ${chatsOwner.peek()}`
const readSeen = (): Seen => JSON.parse(localStorage.getItem(storedAs()) ?? '{}')
let seen: Seen = {}

function note(id: string, entry: Seen[string] | undefined): void {
  if (entry) seen[id] = entry
  else delete seen[id]
  localStorage.setItem(storedAs(), JSON.stringify(seen))
}

/** Milliseconds between a change and its way to the server. */
const DELAY = 2000
let timer: ReturnType<typeof setTimeout> | undefined
let working: Promise<void> = Promise.resolve()

/** Brings what the server has, and from then on takes to it what changes here. Does nothing where the server keeps none. */
export async function keepChats(): Promise<void> {
  if (document.querySelector<HTMLMetaElement>('meta[name=corral-conversations]')?.content !== 'server') return
  seen = readSeen()
  try {
    await takeFromServer()
  } catch (error) {
    if ((error as ApiError).code !== 'conversations_off') setTimeout(() => void keepChats(), 30_000)
    return
  }
  areKept.value = true
  effect(() => {
    chats.value
    clearTimeout(timer)
    timer = setTimeout(() => {
      working = working.then(takeToServer).catch(() => undefined)
    }, DELAY)
  })
  addEventListener('focus', () => {
    working = working.then(takeFromServer).catch(() => undefined)
  })
}

async function takeFromServer(): Promise<void> {
  const kept: Kept[] = []
  for (let total = 1; kept.length < total; ) {
    const page = await ask<{ conversations: Kept[]; total: number }>(
      'GET',
      `api/conversations?limit=500&offset=${kept.length}`
    )
    kept.push(...page.conversations)
    total = page.conversations.length === 0 ? 0 : page.total
  }
  const there = new Set(kept.map(({ id }) => id))
  for (const id of Object.keys(seen)) {
    // It was deleted by another browser.
    if (!there.has(id)) {
      note(id, undefined)
      await deleteChat(id)
    }
  }
  for (const { id, version } of kept) if (seen[id]?.version !== version) await fetchOne(id)
}

/** Merges what the server has of a chat with what is here. @returns the version that it has there */
async function fetchOne(id: string): Promise<number> {
  const { document, version } = await ask<{ document: Document; version: number }>('GET', `api/conversations/${id}`)
  const here = await readChat(id)
  const messages = new Map(document.messages.map(message => [message.id, message]))
  for (const message of here?.messages ?? []) messages.set(message.id, message)
  const isNewer = here !== undefined && here.chat.updatedAt > document.chat.updatedAt
  const chat = isNewer ? here.chat : document.chat
  await storeAll({ chats: [chat], messages: [...messages.values()] })
  const isSame = messages.size === document.messages.length && !isNewer
  // What is more here is still to be taken there.
  note(id, { version, updatedAt: isSame ? chat.updatedAt : 0 })
  return version
}

async function takeToServer(): Promise<void> {
  const all = chats.peek()
  for (const id of Object.keys(seen)) {
    if (all.has(id)) continue
    await ask('DELETE', `api/conversations/${id}`).catch(ignoreMissing)
    note(id, undefined)
  }
  for (const { id, updatedAt } of all.values()) {
    if (seen[id]?.updatedAt === updatedAt) continue
    await putOne(id, seen[id]?.version ?? 0)
  }
}

async function putOne(id: string, version: number): Promise<void> {
  const document = await readChat(id)
  // A chat in which nothing was said is not kept.
  if (!document || document.messages.length === 0) return
  const { chat, messages } = document
  const body = {
    title: chat.title,
    pinned: chat.pinned ?? false,
    updated_at: new Date(chat.updatedAt).toISOString(),
    text: messages.map(({ content }) => content).join('\n'),
    version,
    document
  }
  try {
    const kept = await ask<Kept>('PUT', `api/conversations/${id}`, { body })
    note(id, { version: kept.version, updatedAt: chat.updatedAt })
  } catch (error) {
    // Another tab or browser was quicker: what both have is put together.
    if ((error as ApiError).code === 'conversation_changed') return await putOne(id, await fetchOne(id))
    if ((error as ApiError).code === 'conversation_not_found') {
      note(id, undefined)
      return await deleteChat(id)
    }
    throw error
  }
}

function ignoreMissing(error: unknown): void {
  if (!(error instanceof ApiError) || error.code !== 'conversation_not_found') throw error
}
