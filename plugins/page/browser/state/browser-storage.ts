import { signal } from '@preact/signals'
import { type IDBPDatabase, openDB } from 'idb'
import { parseAnyJson } from '../../../../core/system/json-object.ts'

/* The browser's storage for the page. If it refuses to store something, the page keeps it in memory and warns. */

/** Why the browser cannot store any more. Empty while it can. */
export const storageFault = signal('')

/** Records that the browser refused to store something. The first reason is kept. */
export function noteStorageFault(error: unknown): void {
  storageFault.value ||= String((error as Error).message || error)
}

/** One of the browser's two text stores. Values that it refuses are kept in memory. */
function textStorage(of: () => Storage) {
  const refused = new Map<string, string>()
  /** Returns null if there is none. */
  const get = (name: string): string | null => {
    if (refused.has(name)) return refused.get(name)!
    try {
      return of().getItem(name)
    } catch (error) {
      noteStorageFault(error)
      return null
    }
  }
  /** Stores a text. An empty one is removed. */
  const set = (name: string, text: string): void => {
    refused.delete(name)
    try {
      if (text === '') of().removeItem(name)
      else of().setItem(name, text)
    } catch (error) {
      refused.set(name, text)
      noteStorageFault(error)
    }
  }
  /** Returns a stored JSON value, or the default if it is missing or was edited by hand. */
  const getJson = <Value>(name: string, otherwise: Value): Value =>
    (parseAnyJson(get(name) ?? '') as Value | null | undefined) ?? otherwise
  return { get, set, getJson }
}

/** Kept until the browser's data is deleted. */
export const localTexts = textStorage(() => localStorage)
/** Kept until the tab is closed. */
export const tabTexts = textStorage(() => sessionStorage)

/** Opens a database. Returns undefined if the browser stores nothing. */
export async function openStore<Schema>(name: string, upgrade: (database: IDBPDatabase<Schema>) => unknown) {
  try {
    return await openDB<Schema>(name, 1, { upgrade: database => void upgrade(database) })
  } catch (error) {
    noteStorageFault(error)
    return undefined
  }
}

/** Creates a random id. `crypto.randomUUID` is not available over plain HTTP. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), byte => byte.toString(16).padStart(2, '0')).join('')
}

/** Opens a channel between the tabs of the browser. Some browsers without storage have no channels either. */
export function openChannel<Sign>(
  name: string,
  onSign: (sign: Sign) => void
): { post(sign: Sign): void; close(): void } {
  try {
    const channel = new BroadcastChannel(name)
    channel.onmessage = ({ data }: MessageEvent<Sign>) => onSign(data)
    return { post: sign => channel.postMessage(sign), close: () => channel.close() }
  } catch {
    return { post: () => undefined, close: () => undefined }
  }
}
