import { signal } from '@preact/signals'
import { ask } from './api.ts'
import { newId, noteStorageFault, openChannel } from './browser-storage.ts'
import { openVectors, VECTORS, vectorRange } from './chat-database.ts'
import type { Source } from './chat-format.ts'
import { chats } from './chats.ts'
import { quantized } from './passage-search.ts'

/*
 * The vectors of documents. They can be computed again, and without a database there are none. One tab computes those
 * of a chat: it holds a lease, which it renews, and which expires if the tab is closed. Browsers have no locks over
 * plain HTTP.
 */

/** A document to index. Its id depends on its text. */
export interface Indexed {
  /** The chat or project that it belongs to. */
  chat: string
  id: string
  passages: readonly Source[]
}

/** The vectors of the first passages of a document, one after the other, by a version of a model. */
interface Vectors {
  chat: string
  id: string
  version: string
  vectors: Int8Array
  count: number
}

/** Progress of indexing, and why it ended early. */
interface IndexState {
  done: number
  total: number
  fault?: string
  isStopped?: boolean
}
interface Lease extends IndexState {
  chat: string
  id: ''
  tab: string
  until: number
}

export const indexStates = signal<ReadonlyMap<string, IndexState>>(new Map())

function setState(chat: string, state: IndexState | undefined): void {
  const next = new Map(indexStates.peek())
  if (state) next.set(chat, state)
  else next.delete(chat)
  indexStates.value = next
}

const PASSAGES_PER_REQUEST = 16
/** More vectors are written less often, since they are written together. */
const BYTES_PER_WRITE = 2 ** 19
const LEASE_MS = 8000
const RENEWAL_MS = 2000
const POLL_MS = 500
const tab = newId()
const running = new Map<string, { stop: AbortController; work: Promise<void> }>()
const { post } = openChannel<string>('corral-indexing', chat => running.get(chat)?.stop.abort())

/** Takes or renews the lease of a chat, and stores vectors with it. @returns the lease of another tab, if it has one */
async function hold(lease: Lease, entry?: Vectors): Promise<Lease | undefined> {
  const write = (await openVectors())!.transaction(VECTORS, 'readwrite')
  const known: Lease | undefined = await write.store.get([lease.chat, ''])
  const isTaken = known && known.tab !== tab && known.until > Date.now()
  if (!isTaken) void write.store.put({ ...lease, until: Date.now() + LEASE_MS })
  if (!isTaken && entry) void write.store.put(entry)
  await write.done
  return isTaken ? known : undefined
}

const allKeys = async (range?: IDBKeyRange) =>
  ((await (await openVectors())?.getAllKeys(VECTORS, range)) ?? []) as [chat: string, id: string][]

/** Deletes the vectors of a chat's removed documents. @param kept ids of its documents */
export async function forgetVectors(chat: string, kept: readonly string[]): Promise<void> {
  const gone = (await allKeys(vectorRange(chat))).filter(([, id]) => kept.length === 0 || (id && !kept.includes(id)))
  for (const key of gone) await (await openVectors())!.delete(VECTORS, key)
}

/** Stops indexing, in whichever tab it runs. */
export function stopIndexing(chat: string): void {
  running.get(chat)?.stop.abort()
  post(chat)
}

/** Whether documents of a chat were searched before, and whether the user has stopped indexing, which is shown. */
export async function indexingState(chat: string): Promise<'none' | 'wanted' | 'stopped'> {
  const lease: Lease | undefined = await (await openVectors())?.get(VECTORS, [chat, ''])
  if (lease?.isStopped) setState(chat, lease)
  return lease ? (lease.isStopped ? 'stopped' : 'wanted') : 'none'
}

/** Embeds texts. Some models distinguish questions from documents by a prefix. @param version name and digest */
export async function embed(
  version: string,
  texts: readonly string[],
  kind: 'query' | 'document',
  signal: AbortSignal
): Promise<Int8Array[]> {
  const prefix = /nomic-embed/i.test(version) ? `search_${kind}: ` : ''
  const body = { model: version.split(' ', 1)[0], input: texts.map(text => prefix + text), truncate: true }
  const { embeddings } = await ask<{ embeddings: number[][] }>('POST', 'api/embed', { body, signal })
  return embeddings.map(quantized)
}

/** Computes the missing vectors, or waits until another tab has. Failures are shown. @param version of the model */
export function indexDocuments(chat: string, documents: readonly Indexed[], version: string): Promise<void> {
  const known = running.get(chat)
  if (known) return known.work
  const stop = new AbortController()
  const work = run(chat, documents, version, stop.signal).finally(() => running.delete(chat))
  running.set(chat, { stop, work })
  return work
}

async function run(chat: string, documents: readonly Indexed[], version: string, signal: AbortSignal): Promise<void> {
  const database = await openVectors()
  if (!database) return
  const total = documents.reduce((sum, { passages }) => sum + passages.length, 0)
  const lease: Lease = { chat, id: '', tab, until: 0, done: 0, total }
  const release = (ended: Partial<Lease>) => database.put(VECTORS, { ...lease, ...ended, until: 0 })
  const leave = () => void release({})
  let timer: ReturnType<typeof setInterval> | undefined
  let ended: Partial<IndexState> = {}
  try {
    for (let other = await hold(lease); other; other = await hold(lease)) {
      setState(chat, other)
      await new Promise(resolve => setTimeout(resolve, POLL_MS))
      signal.throwIfAborted()
    }
    addEventListener('pagehide', leave)
    timer = setInterval(() => void hold(lease).catch(noteStorageFault), RENEWAL_MS)
    for (const { id, passages } of documents) {
      const known = (await vectorsOf(chat, id, version)) ?? (await copied(lease, id, version))
      let { vectors, count } = known ?? { vectors: new Int8Array(), count: 0 }
      lease.done += count
      for (let batch = 1; count < passages.length; batch++) {
        setState(chat, { ...lease })
        const texts = passages.slice(count, count + PASSAGES_PER_REQUEST).map(passageText)
        vectors = joined([vectors, ...(await embed(version, texts, 'document', signal))])
        count += texts.length
        lease.done += texts.length
        if (!chats.peek().has(chat)) return
        const isDue = count === passages.length || batch % (1 + Math.floor(vectors.length / BYTES_PER_WRITE)) === 0
        // Another tab may have taken over, if this one was suspended.
        if (isDue && (await hold(lease, { chat, id, version, vectors, count }))) {
          clearInterval(timer)
          timer = undefined
          return
        }
      }
    }
  } catch (error) {
    ended = signal.aborted ? { isStopped: true } : { fault: (error as Error).message }
  } finally {
    clearInterval(timer)
    removeEventListener('pagehide', leave)
    const { done } = lease
    setState(chat, ended.isStopped || ended.fault !== undefined ? { done, total, ...ended } : undefined)
    if (timer && chats.peek().has(chat)) await release(ended).catch(noteStorageFault)
  }
}

/** Takes the vectors of a document from another chat, such as the one that this one was branched from. */
async function copied(lease: Lease, id: string, version: string): Promise<Vectors | undefined> {
  for (const [chat] of (await allKeys()).filter(key => key[1] === id)) {
    const found = await vectorsOf(chat, id, version)
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
  const entry: Vectors | undefined = await (await openVectors())?.get(VECTORS, [chat, id])
  return entry?.version === version ? entry : undefined
}
