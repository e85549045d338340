import { signal } from '@preact/signals'

/*
 * What the browser keeps for the page. It may refuse to, for all pages or once its room is used up: then the page works with
 * memory alone, and says so.
 */

/** Why nothing more is kept in this browser. Empty as long as it is. */
export const storageFault = signal('')

/** Notes that the browser refused to keep something. The first reason counts. */
export function noteStorageFault(error: unknown): void {
  storageFault.value ||= String((error as Error).message || error)
}

/** One of the browser's two stores of texts, with memory for what it does not take. */
class TextStorage {
  readonly #of: () => Storage
  readonly #refused = new Map<string, string>()

  constructor(of: () => Storage) {
    this.#of = of
  }

  /** Null if there is none. */
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

  /** Keeps a text; an empty one is forgotten. */
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

  /** A value that was kept as JSON, or another one if there is none or somebody has changed it by hand. */
  getJson<Value>(name: string, otherwise: Value): Value {
    try {
      return (JSON.parse(this.get(name) || 'null') as Value | null) ?? otherwise
    } catch {
      return otherwise
    }
  }
}

/** Kept until the browser's data are deleted. */
export const localTexts = new TextStorage(() => localStorage)
/** Kept until the tab is closed. */
export const tabTexts = new TextStorage(() => sessionStorage)

/** A channel between the tabs of the browser. Without storage some browsers have none: then this tab is alone. */
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
