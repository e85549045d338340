import { effect, signal } from '@preact/signals'
import type { ListedConversation } from '../../../../core/contracts/native-records.ts'
import { type ApiError, ask } from './api.ts'
import { localTexts } from './browser-storage.ts'
import { chats, deleteChat, mergeIn, readChat } from './chats.ts'
import { isUnderWay } from './conversation-tree.ts'
import { type ChatDocument, lastChange } from './merge-chats.ts'
import { chatsOwner } from './preferences.ts'

/*
 * Synchronizes chats with the server, if its configuration stores them, so that they are available in every browser of
 * the same user. Local and remote versions are merged (`merge-chats.ts`).
 */

/** Why the latest changes are not on the server yet. */
export const keepFault = signal<{ message: string; code?: string } | undefined>(undefined)

/** The last version of a chat that this browser and the server both had. */
interface SeenChat {
  version: number
  /** Times of the last message and the last change in that version, by the clock of a browser. */
  updatedAt: number
  changedAt?: number
  /** Deleted here, but not on the server yet. A chat that is only missing here was lost and is downloaded again. */
  isDeleted?: true
}
let seen: Record<string, SeenChat> = {}

const storedAs = () => `corral-kept ${chatsOwner.peek()}`
const readSeen = () => localTexts.getJson<typeof seen>(storedAs(), {})

function note(id: string, entry: SeenChat | undefined): void {
  // Another tab may have updated it.
  seen = readSeen()
  if (entry) seen[id] = entry
  else delete seen[id]
  localTexts.set(storedAs(), JSON.stringify(seen))
}

/** Delay before changes are uploaded, and before a retry, in milliseconds. */
const DELAY = 2000
const RETRY = 30_000
let timer: ReturnType<typeof setTimeout> | undefined
/** One synchronization at a time. */
let working: Promise<void> = Promise.resolve()

/** Synchronizes now or after a delay. Failures are shown and retried. */
function exchange(delay: number): void {
  clearTimeout(timer)
  timer = setTimeout(() => {
    working = working.then(async () => {
      const faults: ApiError[] = []
      // A chat that fails must not block the others.
      const attempt = (work: Promise<unknown>) => work.catch(error => faults.push(error))
      seen = readSeen()
      await attempt(takeFromServer(attempt))
      await takeToServer(attempt)
      keepFault.value = faults[0]
      if (faults.length > 0) exchange(RETRY)
    })
  }, delay)
}

/** Whether the server stores chats. */
export const isOn = document.querySelector<HTMLMetaElement>('meta[name=corral-conversations]')?.content === 'server'

/** Downloads the chats and from then on uploads changes, if the server stores chats. */
export function keepChats(): void {
  if (!isOn) return
  exchange(0)
  let isFirst = true
  effect(() => {
    chats.value
    if (!isFirst) exchange(DELAY)
    isFirst = false
  })
  addEventListener('focus', () => exchange(0))
}

/** Stores a new chat on the server at once. @throws ApiError */
export async function keepNow(id: string): Promise<void> {
  if (!readSeen()[id]) await putOne(id, 0)
}

export async function deleteEverywhere(id: string): Promise<void> {
  if (isOn) note(id, { version: 0, updatedAt: 0, ...seen[id], isDeleted: true })
  await deleteChat(id)
}

type Attempt = (work: Promise<unknown>) => Promise<unknown>

/** @throws ApiError if the server returns no list */
async function takeFromServer(attempt: Attempt): Promise<void> {
  const kept: ListedConversation[] = []
  for (let total = 1; kept.length < total; ) {
    const path = `api/conversations?limit=500&offset=${kept.length}`
    const page = await ask<{ conversations: ListedConversation[]; total: number }>('GET', path)
    kept.push(...page.conversations)
    total = page.conversations.length === 0 ? 0 : page.total
  }
  const there = new Set(kept.map(({ id }) => id))
  for (const [id, entry] of Object.entries(seen)) {
    if (there.has(id) || entry.isDeleted) continue
    // Another browser deleted the chat. If it was changed here since, that browser did not know the change, so the chat
    // is brought back with the version after its deletion.
    const here = chats.peek().get(id)
    if (here && here.updatedAt !== entry.updatedAt) note(id, { ...entry, version: entry.version + 1, changedAt: 0 })
    else await deleteHere(id)
  }
  for (const { id, version } of kept) {
    const entry = seen[id]
    if (entry?.isDeleted) continue
    if (entry?.version !== version || !chats.peek().has(id)) await attempt(fetchOne(id))
  }
}

async function deleteHere(id: string): Promise<void> {
  await deleteChat(id)
  note(id, undefined)
}

/** Merges the server's version of a chat into the local one. @returns the server's version number */
async function fetchOne(id: string): Promise<number> {
  const { document, version } = await ask<{ document: ChatDocument; version: number }>('GET', `api/conversations/${id}`)
  const { checkedChats } = await import('./chat-check.ts')
  checkedChats([document.chat], document.messages, false)
  // The chat may have been deleted during the download.
  if (readSeen()[id]?.isDeleted) return version
  const { chat, isSame } = await mergeIn(document)
  // Local changes that the server lacks still have to be uploaded.
  note(id, { version, updatedAt: document.chat.updatedAt, changedAt: isSame ? lastChange(chat) : 0 })
  return version
}

async function takeToServer(attempt: Attempt): Promise<void> {
  for (const [id, { isDeleted }] of Object.entries(seen)) if (isDeleted) await attempt(deleteThere(id))
  for (const chat of chats.peek().values()) {
    const entry = seen[chat.id]
    if ((entry?.changedAt ?? entry?.updatedAt) === lastChange(chat)) continue
    await attempt(putOne(chat.id, entry?.version ?? 0))
  }
}

async function deleteThere(id: string): Promise<void> {
  await ask('DELETE', `api/conversations/${id}`).catch((error: ApiError) => {
    if (error.code !== 'conversation_not_found') throw error
  })
  note(id, undefined)
}

async function putOne(id: string, version: number): Promise<void> {
  const document = await readChat(id)
  // Does not store chats without messages, or chats with an unfinished answer until it ends.
  if (!document || document.messages.some(isUnderWay)) return
  const { chat, messages } = document
  if (messages.length === 0 && !chat.isProject) return
  const body = {
    title: chat.title,
    pinned: chat.pinned ?? false,
    updated_at: new Date(chat.updatedAt).toISOString(),
    text: messages.map(({ content }) => content).join('\n'),
    version,
    document
  }
  try {
    const kept = await ask<ListedConversation>('PUT', `api/conversations/${id}`, { body })
    const entry = { version: kept.version, updatedAt: chat.updatedAt, changedAt: lastChange(chat) }
    note(id, chats.peek().has(id) ? entry : { ...entry, isDeleted: true })
  } catch (error) {
    const { code, body: reply } = error as ApiError
    if (code === 'conversation_not_found' && version > 0) return await putOne(id, 0)
    if (code !== 'conversation_changed') throw error
    const { version: there, deleted_at } = reply as { version: number; deleted_at?: string }
    // Another tab or browser was faster: merge both versions.
    if (deleted_at === undefined) return await putOne(id, await fetchOne(id))
    const entry = seen[id]
    const isNew = entry ? entry.updatedAt !== chat.updatedAt : lastChange(chat) > Date.parse(deleted_at)
    if (isNew) await putOne(id, there)
    else await deleteHere(id)
  }
}
