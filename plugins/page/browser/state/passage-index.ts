import { signal } from '@preact/signals'
import { ask } from './api.ts'
import { newId, noteStorageFault, openChannel } from './browser-storage.ts'
import { openVectors, VECTORS, vectorRange } from './chat-database.ts'
import type { Source } from './chat-format.ts'
import { chats } from './chats.ts'
import { quantized } from './passage-search.ts'

/*
 * The vectors of documents, in a database of their own that older pages need not know. They can be computed again. One
 * tab computes the vectors of a chat: it holds a lease, which it renews, and which expires if the tab is closed.
 */

/** A document to index. Its id depends on its text. */
export interface Indexed {
  id: string
  passages: readonly Source[]
}

/** The vectors of the first passages of a document, one after the other. */
interface Vectors {
  chat: string
  id: string
  model: string
  vectors: Int8Array
  count: number
}
interface Lease {
  chat: string
  id: ''
  tab: string
  until: number
  done: number
  total: number
  /** The user has stopped indexing. */
  isStopped?: boolean
}
type Entry = Vectors | Lease

/** Progress of indexing by chat, or why it failed. */
export interface IndexState {
  done: number
  total: number
  fault?: string
  isStopped?: boolean
}
export const indexStates = signal<ReadonlyMap<string, IndexState>>(new Map())

function setState(chat: string, state: IndexState | undefined): void {
  const next = new Map(indexStates.peek())
  if (state) next.set(chat, state)
  else next.delete(chat)
  indexStates.value = next
}

const PASSAGES_PER_REQUEST = 16
const LEASE_MS = 8000
const RENEWAL_MS = 2000
const POLL_MS = 500
const tab = newId()
const running = new Map<string, AbortController>()
const { post } = openChannel<{ stop: string }>('corral-indexing', ({ stop }) => running.get(stop)?.abort())

/** The entries of this tab if the browser stores nothing. */
const unstored = new Map<string, Entry>()

const keyOf = ({ chat, id }: Pick<Entry, 'chat' | 'id'>) => `${chat} ${id}`

async function read<Kind extends Entry>(chat: string, id: Kind['id']): Promise<Kind | undefined> {
  const db = await openVectors()
  return db ? await db.get(VECTORS, [chat, id]) : (unstored.get(keyOf({ chat, id })) as Kind | undefined)
}

/** Takes or renews the lease of a chat, and stores an entry with it. @returns the lease of another tab, if it has one */
async function hold(lease: Lease, entry?: Vectors): Promise<Lease | undefined> {
  const db = await openVectors()
  const held = { ...lease, until: Date.now() + LEASE_MS }
  const entries = entry ? [held, entry] : [held]
  if (!db) {
    for (const each of entries) unstored.set(keyOf(each), each)
    return undefined
  }
  const write = db.transaction(VECTORS, 'readwrite')
  const known: Lease | undefined = await write.store.get([lease.chat, ''])
  const isTaken = known && known.tab !== tab && known.until > Date.now()
  if (!isTaken) for (const each of entries) void write.store.put(each)
  await write.done
  return isTaken ? known : undefined
}

/** Ends the lease. @param isStopped whether the user does not want the index for now */
async function release(lease: Lease, isStopped: boolean): Promise<void> {
  const db = await openVectors()
  const ended: Lease = { ...lease, until: 0, ...(isStopped && { isStopped }) }
  if (db) await db.put(VECTORS, ended)
  else unstored.set(keyOf(ended), ended)
}

/** Deletes the vectors of a chat's removed documents. @param kept ids of its documents */
export async function forgetVectors(chat: string, kept: readonly string[]): Promise<void> {
  const db = await openVectors()
  const keys = ((await db?.getAllKeys(VECTORS, vectorRange(chat))) ?? []) as [chat: string, id: string][]
  for (const key of keys) if (kept.length === 0 || !['', ...kept].includes(key[1])) await db!.delete(VECTORS, key)
}

/** Stops indexing, in whichever tab it runs. */
export function stopIndexing(chat: string): void {
  running.get(chat)?.abort()
  post({ stop: chat })
}

/** Whether documents of a chat were searched before, and whether the user has stopped indexing, which is shown. */
export async function indexingState(chat: string): Promise<'none' | 'wanted' | 'stopped'> {
  const lease = await read<Lease>(chat, '')
  if (lease?.isStopped) setState(chat, lease)
  return lease ? (lease.isStopped ? 'stopped' : 'wanted') : 'none'
}

const pause = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

/** Embeds texts. Some models distinguish questions from documents by a prefix. */
export async function embed(
  model: string,
  texts: readonly string[],
  kind: 'query' | 'document',
  signal: AbortSignal
): Promise<Int8Array[]> {
  const prefix = /nomic-embed/i.test(model) ? `search_${kind}: ` : ''
  const body = { model, input: texts.map(text => prefix + text), truncate: true }
  const { embeddings } = await ask<{ embeddings: number[][] }>('POST', 'api/embed', { body, signal })
  return embeddings.map(quantized)
}

const done = new Map<string, Promise<void>>()

/** Computes the missing vectors, or waits until another tab has. Failures are shown. @param version of the model */
export function indexDocuments(chat: string, documents: readonly Indexed[], model: string, version: string) {
  const known = done.get(chat)
  if (known) return known
  const work = run(chat, documents, model, version).finally(() => done.delete(chat))
  done.set(chat, work)
  return work
}

async function run(chat: string, documents: readonly Indexed[], model: string, version: string): Promise<void> {
  const controller = new AbortController()
  running.set(chat, controller)
  const { signal } = controller
  const total = documents.reduce((sum, { passages }) => sum + passages.length, 0)
  const lease: Lease = { chat, id: '', tab, until: 0, done: 0, total }
  let isMine = false
  let timer: ReturnType<typeof setInterval> | undefined
  const leave = () => void (isMine && release(lease, false))
  try {
    for (let other = await hold(lease); other; other = await hold(lease)) {
      setState(chat, other)
      await pause(POLL_MS)
      signal.throwIfAborted()
    }
    isMine = true
    addEventListener('pagehide', leave)
    timer = setInterval(() => void hold(lease), RENEWAL_MS)
    for (const { id, passages } of documents) {
      const known = (await vectorsOf(chat, id, version)) ?? (await copied(lease, id, version))
      const rows = known ? [known.vectors] : []
      lease.done += known?.count ?? 0
      for (let count = known?.count ?? 0; count < passages.length; ) {
        setState(chat, lease)
        const next = passages.slice(count, count + PASSAGES_PER_REQUEST)
        rows.push(...(await embed(model, next.map(passageText), 'document', signal)))
        count += next.length
        const vectors = joined(rows)
        rows.splice(0, rows.length, vectors)
        lease.done += next.length
        if (!chats.peek().has(chat)) return
        // Another tab has taken over, because this one was suspended.
        if (await hold(lease, { chat, id, model: version, vectors, count })) return
      }
    }
    setState(chat, undefined)
  } catch (error) {
    const { done } = lease
    setState(chat, { done, total, ...(signal.aborted ? { isStopped: true } : { fault: (error as Error).message }) })
  } finally {
    clearInterval(timer)
    removeEventListener('pagehide', leave)
    running.delete(chat)
    if (isMine && chats.peek().has(chat)) await release(lease, signal.aborted).catch(noteStorageFault)
  }
}

/** Takes the vectors of a document from another chat, such as the one that this one was branched from. */
async function copied(lease: Lease, id: string, model: string): Promise<Vectors | undefined> {
  const keys = ((await (await openVectors())?.getAllKeys(VECTORS)) ?? []) as [chat: string, id: string][]
  for (const [chat] of keys.filter(key => key[1] === id)) {
    const found = await vectorsOf(chat, id, model)
    const copy = found && { ...found, chat: lease.chat }
    if (copy && !(await hold(lease, copy))) return copy
  }
  return undefined
}

/** The text that is embedded. A heading tells what its passage is about. */
const passageText = ({ heading, text }: Source) => (heading && !text.includes(heading) ? `${heading}\n${text}` : text)

function joined(rows: readonly Int8Array[]): Int8Array {
  const all = new Int8Array(rows.reduce((sum, { length }) => sum + length, 0))
  let at = 0
  for (const row of rows) {
    all.set(row, at)
    at += row.length
  }
  return all
}

/** The vectors of a document that a version of a model has made so far. */
export async function vectorsOf(chat: string, id: string, version: string): Promise<Vectors | undefined> {
  const entry = await read<Vectors>(chat, id)
  return entry?.model === version ? entry : undefined
}
