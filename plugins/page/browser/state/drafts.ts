import { localTexts } from './browser-storage.ts'
import type { Attachment } from './chat-format.ts'
import { chatsOwner } from './preferences.ts'

/* Unsent messages. Text survives a reload, attached files do not. */

const storedAs = (chat: string) => `corral-draft ${chatsOwner.peek()} ${chat}`
/** Texts about images that were scaled. */
export const scalings = new WeakMap<Attachment, string>()
const files = new Map<string, readonly Attachment[]>()

/** The draft of a chat. @param chat its id, or empty for a new one */
export function readDraft(chat: string): { text: string; attachments: readonly Attachment[] } {
  return { text: localTexts.get(storedAs(chat)) ?? '', attachments: files.get(storedAs(chat)) ?? [] }
}

export function keepDraft(chat: string, text: string, attachments: readonly Attachment[] = []): void {
  files.set(storedAs(chat), attachments)
  localTexts.set(storedAs(chat), text)
}
