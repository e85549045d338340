import { signal } from '@preact/signals'

/*
 * The browser's storage for the page. A browser may refuse to store anything, or run out of space. The page then works
 * in memory and shows a warning.
 */

/** Why the browser stores nothing more. Empty while it works. */
export const storageFault = signal('')

/** Records that the browser refused to store something. The first reason is kept. */
export function noteStorageFault(error: unknown): void {
  storageFault.value ||= String((error as Error).message || error)
}

/** One of the browser's two text stores. Values that it refuses are kept in memory. */
class TextStorage {
  readonly #of: () => Storage
  readonly #refused = new Map<string, string>()

  constructor(of: () => Storage) {
    this.#of = of
  }

  /** Returns null if there is none. */
  get(name: string): string | null {
    const refused = this.#refused.get(name)
    if (refused !== undefined) return refused
    try {
      return this.#of().getItem(name)
    } catch (error) {
      noteStorageFault(error)
      return null
    }
  }

  /** Stores a text. An empty one is removed. */
  set(name: string, text: string): void {
    this.#refused.delete(name)
    try {
      if (text === '') this.#of().removeItem(name)
      else this.#of().setItem(name, text)
    } catch (error) {
      this.#refused.set(name, text)
      noteStorageFault(error)
    }
  }

  /** Returns a stored JSON value, or the default if it is missing or was edited by hand. */
  getJson<Value>(name: string, otherwise: Value): Value {
    try {
      return (JSON.parse(this.get(name) || 'null') as Value | null) ?? otherwise
    } catch {
      return otherwise
    }
  }
}

/** Kept until the browser's data is deleted. */
export const localTexts = new TextStorage(() => localStorage)
/** Kept until the tab is closed. */
export const tabTexts = new TextStorage(() => sessionStorage)

/**
 * Opens a channel between the tabs of the browser. Without storage some browsers have no channels, and the tab is on
 * its own.
 */
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
