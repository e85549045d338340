import { effect, signal } from '@preact/signals'
import { type ApiError, ask } from './api.ts'
import { chats, deleteChat, readChat, storeAll } from './chats.ts'
import { type Chat, isUnderWay, type Message } from './conversation-tree.ts'
import { chatsOwner } from './preferences.ts'

/*
 * Chats that the server keeps, where its configuration says so: they follow a person from browser to browser. What is here
 * and what is there are merged by the ids of messages, of which none is ever overwritten.
 */

/** Why what was said last is not kept by the server yet; empty where it is, or where the server keeps none. */
export const keepFault = signal('')

interface Kept {
  id: string
  updated_at: string
  version: number
}
interface Document {
  chat: Chat
  messages: Message[]
}

/** What this browser and the server have both seen of a chat. */
interface SeenChat {
  version: number
  /** When it was changed here, as it was then. */
  updatedAt: number
  /** It was deleted here, and the server does not know yet. One that is merely missing here was lost, and is brought again. */
  isDeleted?: true
}
let seen: Record<string, SeenChat> = {}

const storedAs = () => `corral-kept ${chatsOwner.peek()}`
const readSeen = (): typeof seen => JSON.parse(localStorage.getItem(storedAs()) ?? '{}')

function note(id: string, entry: SeenChat | undefined): void {
  if (entry) seen[id] = entry
  else delete seen[id]
  localStorage.setItem(storedAs(), JSON.stringify(seen))
}

/** Milliseconds between a change and its way to the server, and until that is tried again. */
const DELAY = 2000
const RETRY = 30_000
let timer: ReturnType<typeof setTimeout> | undefined
/** One exchange at a time. */
let working: Promise<void> = Promise.resolve()

/** Exchanges what has changed, now or after a while; what fails is said, and tried again. */
function exchange(delay: number): void {
  clearTimeout(timer)
  timer = setTimeout(() => {
    working = working.then(async () => {
      try {
        // Another tab may have exchanged something since.
        seen = readSeen()
        await takeFromServer()
        await takeToServer()
        keepFault.value = ''
      } catch (error) {
        keepFault.value = (error as Error).message
        exchange(RETRY)
      }
    })
  }, delay)
}

/** Brings what the server has, and from then on takes to it what changes here. Does nothing where the server keeps none. */
export function keepChats(): void {
  if (document.querySelector<HTMLMetaElement>('meta[name=corral-conversations]')?.content !== 'server') return
  seen = readSeen()
  exchange(0)
  let before: ReadonlyMap<string, Chat> | undefined
  effect(() => {
    const now = chats.value
    for (const id of before?.keys() ?? []) {
      const entry = seen[id]
      if (entry && !now.has(id)) note(id, { ...entry, isDeleted: true })
    }
    if (before) exchange(DELAY)
    before = now
  })
  addEventListener('focus', () => exchange(0))
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
  for (const [id, { updatedAt }] of Object.entries(seen)) {
    if (there.has(id)) continue
    // It was deleted by another browser; what was said here since then is not lost by that, and goes there anew.
    const isUnchanged = chats.peek().get(id)?.updatedAt === updatedAt
    note(id, undefined)
    if (isUnchanged) await deleteChat(id)
  }
  for (const { id, version } of kept) {
    const entry = seen[id]
    const isMissing = !entry?.isDeleted && !chats.peek().has(id)
    if (entry?.version !== version || isMissing) await fetchOne(id)
  }
}

/** Merges what the server has of a chat with what is here. @returns the version that it has there */
async function fetchOne(id: string): Promise<number> {
  const { document, version } = await ask<{ document: Document; version: number }>('GET', `api/conversations/${id}`)
  const here = await readChat(id)
  const messages = new Map(document.messages.map(message => [message.id, message]))
  for (const message of here?.messages ?? []) {
    const there = messages.get(message.id)
    // Of an answer that grew here or there, the longer one counts.
    if (!there || message.content.length >= there.content.length) messages.set(message.id, message)
  }
  const isNewer = here !== undefined && here.chat.updatedAt > document.chat.updatedAt
  const chat = isNewer ? here.chat : document.chat
  await storeAll({ chats: [chat], messages: [...messages.values()] })
  const isSame = messages.size === document.messages.length && !isNewer
  // What is more here is still to be taken there.
  note(id, { version, updatedAt: isSame ? chat.updatedAt : 0 })
  return version
}

async function takeToServer(): Promise<void> {
  let fault: unknown
  const attempt = async (work: Promise<unknown>) => {
    // One chat that the server does not take keeps no other one from it.
    await work.catch(error => {
      fault ??= error
    })
  }
  for (const [id, { isDeleted }] of Object.entries(seen)) if (isDeleted) await attempt(deleteThere(id))
  for (const { id, updatedAt } of chats.peek().values()) {
    if (seen[id]?.updatedAt !== updatedAt) await attempt(putOne(id, seen[id]?.version ?? 0))
  }
  if (fault !== undefined) throw fault
}

async function deleteThere(id: string): Promise<void> {
  await ask('DELETE', `api/conversations/${id}`).catch((error: ApiError) => {
    if (error.code !== 'conversation_not_found') throw error
  })
  note(id, undefined)
}

async function putOne(id: string, version: number): Promise<void> {
  const document = await readChat(id)
  // A chat in which nothing was said is not kept; an answer that still comes is, once it has ended.
  if (!document || document.messages.length === 0 || document.messages.some(isUnderWay)) return
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
    // It was deleted by another browser while something was said here.
    if ((error as ApiError).code === 'conversation_not_found' && version > 0) return await putOne(id, 0)
    throw error
  }
}
