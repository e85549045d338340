import { ask } from './api.ts'
import { checkedChats } from './chat-check.ts'
import { readBranch } from './chat-files.ts'
import type { Chat, Message } from './chat-format.ts'
import { copyChat } from './chats.ts'
import { branchTo, isUnderWay } from './conversation-tree.ts'
import { keepNow } from './kept-chats.ts'
import type { ChatDocument } from './merge-chats.ts'
import { chatModels, defaultModel } from './server-state.ts'

/* Copies of chats that other users of the server can read. */

/** Shares the current branch of a chat without its settings. @throws ApiError */
export async function shareChat(chat: Chat): Promise<void> {
  const { id, title, createdAt, updatedAt, model } = chat
  const messages = (await readBranch(chat)).filter(message => !isUnderWay(message))
  await keepNow(id)
  const document = { chat: { id, title, createdAt, updatedAt, model, leaf: messages.at(-1)?.id }, messages }
  await ask('POST', `api/conversations/${id}/share`, { body: { title, document } })
}

/** Validates a copy, and leaves out what a reader could decide or continue. @throws ChatFault */
export function sharedMessages(document: ChatDocument): Message[] {
  const { chats, messages } = checkedChats([document.chat], document.messages, false)
  const byId = new Map(messages.map(message => [message.id, message]))
  return branchTo(byId, chats[0]!.leaf).map(({ state: _, error: __, finish: ___, toolCalls: ____, ...message }) => {
    const calls = message.calls?.map(({ approval: _, state: __, ...call }) => call)
    // Without its chat, which the reader may have, too.
    return { ...message, chat: '', ...(calls && { calls }), content: message.content || (message.summary ?? '') }
  })
}

/** Continues a shared chat in one of the user's own. @returns its id */
export async function copyShared({ title, model = '' }: Chat, messages: readonly Message[]): Promise<string> {
  const isHere = chatModels.peek().some(({ name }) => name === model)
  return (await copyChat({ title, model: isHere ? model : defaultModel.peek() }, messages)).id
}
