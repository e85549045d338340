import { type DBSchema, type IDBPDatabase, openDB } from 'idb'
import { noteStorageFault } from './browser-storage.ts'
import type { Chat, Message } from './chat-format.ts'

interface Schema extends DBSchema {
  chats: { key: string; value: Chat }
  messages: { key: string; value: Message; indexes: { chat: string } }
}

/** Changes that are written in one transaction. */
export interface Changes {
  chats?: readonly Chat[]
  messages?: readonly Message[]
  goneMessages?: readonly string[]
  /** Id of a chat to delete with its messages. */
  goneChat?: string
}

let database: IDBPDatabase<Schema> | undefined
/** Rows that the browser refused to store, kept in memory. Undefined marks a deleted row. */
const refused = { chats: new Map<string, Chat | undefined>(), messages: new Map<string, Message | undefined>() }

/** Opens the browser's database. Without one, everything is kept in memory. @param owner name of the key, or empty */
export async function openDatabase(owner: string): Promise<void> {
  try {
    database = await openDB<Schema>(owner ? `corral ${owner}` : 'corral', 1, {
      upgrade(db) {
        db.createObjectStore('chats', { keyPath: 'id' })
        db.createObjectStore('messages', { keyPath: 'id' }).createIndex('chat', 'chat')
      }
    })
  } catch (error) {
    noteStorageFault(error)
  }
}

async function rowsOf<Row extends { id: string }>(
  read: Promise<Row[]> | undefined,
  refused: ReadonlyMap<string, Row | undefined>,
  isWanted: (row: Row) => boolean = () => true
): Promise<Row[]> {
  let rows: Row[] = []
  try {
    rows = (await read) ?? []
  } catch (error) {
    noteStorageFault(error)
  }
  if (refused.size === 0) return rows
  const others = [...refused.values()].filter(row => row !== undefined)
  return [...rows.filter(({ id }) => !refused.has(id)), ...others.filter(isWanted)]
}

export const storedChats = (): Promise<Chat[]> => rowsOf(database?.getAll('chats'), refused.chats)

/** The messages of one chat, or of all. */
export const storedMessages = (chat?: string): Promise<Message[]> =>
  chat === undefined
    ? rowsOf(database?.getAll('messages'), refused.messages)
    : rowsOf(database?.getAllFromIndex('messages', 'chat', chat), refused.messages, message => message.chat === chat)

export const storedChat = async (id: string): Promise<Chat | undefined> =>
  refused.chats.has(id) ? refused.chats.get(id) : await database?.get('chats', id)

export const storedMessage = async (id: string): Promise<Message | undefined> =>
  refused.messages.has(id) ? refused.messages.get(id) : await database?.get('messages', id)

/** Writes all or none of the changes. Rows that the browser refuses are kept in memory. */
export async function writeChanges(changes: Changes): Promise<void> {
  const { chats = [], messages = [], goneMessages = [], goneChat } = changes
  for (const { id } of chats) refused.chats.delete(id)
  for (const id of [...messages.map(({ id }) => id), ...goneMessages]) refused.messages.delete(id)
  try {
    if (database) {
      const write = database.transaction(['chats', 'messages'], 'readwrite')
      const [allChats, allMessages] = [write.objectStore('chats'), write.objectStore('messages')]
      const done: Promise<unknown>[] = [
        ...chats.map(chat => allChats.put(chat)),
        ...messages.map(message => allMessages.put(message)),
        ...goneMessages.map(id => allMessages.delete(id)),
        write.done
      ]
      if (goneChat !== undefined) {
        done.push(allChats.delete(goneChat))
        for (const id of await allMessages.index('chat').getAllKeys(goneChat)) done.push(allMessages.delete(id))
      }
      await Promise.all(done)
      return
    }
  } catch (error) {
    noteStorageFault(error)
  }
  for (const chat of chats) refused.chats.set(chat.id, chat)
  for (const message of messages) refused.messages.set(message.id, message)
  for (const id of goneMessages) refused.messages.set(id, undefined)
  if (goneChat === undefined) return
  refused.chats.set(goneChat, undefined)
  for (const [id, message] of refused.messages) if (message?.chat === goneChat) refused.messages.set(id, undefined)
}
