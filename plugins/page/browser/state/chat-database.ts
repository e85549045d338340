import type { DBSchema, IDBPDatabase } from 'idb'
import { noteStorageFault, openStore } from './browser-storage.ts'
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
let owned = ''

/** Vectors of documents. They have their own database, since open tabs would block a new version of the other one. */
export const VECTORS = 'entries'
let vectors: Promise<IDBPDatabase | undefined> | undefined
/** Opens the database of vectors. Without one, vectors exist only in memory. */
export const openVectors = (): Promise<IDBPDatabase | undefined> =>
  (vectors ??= openStore(`corral-passages ${owned}`, db => db.createObjectStore(VECTORS, { keyPath: ['chat', 'id'] })))

/** All vectors of a chat. */
export const vectorRange = (chat: string) => IDBKeyRange.bound([chat], [chat, []])

/** Opens the browser's database. Without one, chats exist only in memory. @param owner name of the key, or empty */
export async function openDatabase(owner: string): Promise<void> {
  owned = owner
  database = await openStore<Schema>(owner ? `corral ${owner}` : 'corral', db => {
    db.createObjectStore('chats', { keyPath: 'id' })
    db.createObjectStore('messages', { keyPath: 'id' }).createIndex('chat', 'chat')
  })
}

async function rowsOf<Row>(read: Promise<Row[]> | undefined): Promise<Row[]> {
  try {
    return (await read) ?? []
  } catch (error) {
    noteStorageFault(error)
    return []
  }
}

export const storedChats = (): Promise<Chat[]> => rowsOf(database?.getAll('chats'))

/** The messages of one chat, or of all. */
export const storedMessages = (chat?: string): Promise<Message[]> =>
  rowsOf(chat === undefined ? database?.getAll('messages') : database?.getAllFromIndex('messages', 'chat', chat))

/** Some of all messages, in the order of their ids. @param last id of the message before them */
export const messagesAfter = (last: string, count: number): Promise<Message[]> =>
  rowsOf(database?.getAll('messages', IDBKeyRange.lowerBound(last, true), count))

export const storedChat = async (id: string): Promise<Chat | undefined> => await database?.get('chats', id)
export const storedMessage = async (id: string): Promise<Message | undefined> => await database?.get('messages', id)

/** Writes all or none of the changes. @returns whether the browser has stored them */
export async function writeChanges(changes: Changes): Promise<boolean> {
  const { chats = [], messages = [], goneMessages = [], goneChat } = changes
  if (!database) return false
  try {
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
    if (goneChat !== undefined) await (await openVectors())?.delete(VECTORS, vectorRange(goneChat))
    return true
  } catch (error) {
    noteStorageFault(error)
    return false
  }
}
