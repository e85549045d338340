import { localTexts } from './browser-storage.ts'
import type { Attachment } from './conversation-tree.ts'
import { chatsOwner } from './preferences.ts'

/*
 * What is written and not sent yet: texts outlive the page, files are kept until it is loaded again.
 */

const storedAs = (chat: string) => `corral-draft ${chatsOwner.peek()} ${chat}`
const files = new Map<string, readonly Attachment[]>()

/** What is in the field of a chat. @param chat its id; empty for a new one */
export function draftOf(chat: string): { text: string; attachments: readonly Attachment[] } {
  return { text: localTexts.get(storedAs(chat)) ?? '', attachments: files.get(storedAs(chat)) ?? [] }
}

export function keepDraft(chat: string, text: string, attachments: readonly Attachment[] = []): void {
  files.set(storedAs(chat), attachments)
  localTexts.set(storedAs(chat), text)
}
