import type { Attachment } from './conversation-tree.ts'
import { chatsOwner } from './preferences.ts'

/*
 * What is written and not sent yet: texts outlive the page, files are kept until it is loaded again.
 */

const storedAs = (chat: string) => `corral-draft ${chatsOwner.peek()} ${chat}`
const files = new Map<string, readonly Attachment[]>()

/** What is in the field of a chat. @param chat its id; empty for a new one */
export function draftOf(chat: string): { text: string; attachments: readonly Attachment[] } {
  return { text: localStorage.getItem(storedAs(chat)) ?? '', attachments: files.get(storedAs(chat)) ?? [] }
}

export function keepDraft(chat: string, text: string, attachments: readonly Attachment[] = []): void {
  files.set(storedAs(chat), attachments)
  try {
    if (text === '') localStorage.removeItem(storedAs(chat))
    else localStorage.setItem(storedAs(chat), text)
  } catch {
    // The browser has no more room: it is in the field until the page is left.
  }
}
