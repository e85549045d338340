import { effect } from '@preact/signals'
import { texts } from '../texts/texts.ts'
import { promptFields } from './answering.ts'
import { ask, type RequestOptions } from './api.ts'
import type { Chat, Message } from './chat-format.ts'
import { changeChat, chats, copyChat, editMessage, messagesOf } from './chats.ts'
import { branchTo, summaryEnd, titleOf, withSummary } from './conversation-tree.ts'
import { modelTitles } from './preferences.ts'
import { contextOf, engineOf, engines } from './server-state.ts'

/* Texts that the model of a chat writes about it: its title, and a summary that requests contain instead of messages. */

const branchOf = (id: string) => branchTo(messagesOf(id), chats.peek().get(id)?.leaf)

interface Reply {
  choices: { message: { content?: string | null }; finish_reason: string }[]
}

/** Asks the model about a branch. The prompt begins like those of the chat, so that it is still in the cache. */
async function write(chat: Chat, branch: readonly Message[], content: string, options: object, init: RequestOptions) {
  const { schema: _, ...settings } = chat
  const asked: Message = { id: '', chat: chat.id, role: 'user', content, at: 0 }
  const fields = promptFields(settings, [...withSummary(branch), asked], chat.model ?? '')
  const thinking = { reasoning_effort: 'none', tool_choice: chat.tools?.trim() ? 'none' : undefined }
  const body = { ...fields, ...thinking, options: { ...chat.options, ...options } }
  const { choices } = await ask<Reply>('POST', 'v1/chat/completions', { ...init, body })
  return { text: choices[0]?.message.content?.trim() ?? '', isWhole: choices[0]?.finish_reason === 'stop' }
}

const TITLE_INSTRUCTION =
  'Write a title for this conversation, in its language and with at most six words. Write only the title.'
const TITLE_OPTIONS = { max_tokens: 24, context_overflow: 'error' }
/** Messages of a chat up to which it may get a title, if the first attempt failed. */
const MAX_TITLED = 4
/** Milliseconds between two looks whether the server is idle, and how often to look. */
const IDLE_INTERVAL = 1500
const MAX_LOOKS = 40

/** Whether the model is in memory, and at most `own` requests use any model. */
const isIdle = (model: string, own: number) =>
  // A remote server may have to load its model.
  engineOf(model)?.format !== 'remote' &&
  contextOf(model) !== undefined &&
  engines.value.every(engine => engine.state === 'loaded' && engine.queued === 0) &&
  engines.value.reduce((sum, engine) => sum + (engine.state === 'loaded' ? engine.running : 0), 0) <= own

/** Whether a chat still has the first line of its first message as its title. */
const isUntitled = ({ title, named }: Chat, branch: readonly Message[]) =>
  !named && branch.length > 1 && branch.length <= MAX_TITLED && title === titleOf(branch[0]!.content)

/** Chats that are waiting for a title. */
const waiting = new Set<string>()

/** Has the model write the title of a new chat when the server is idle. Gives up as soon as it is not. */
export async function writeTitle(id: string): Promise<void> {
  if (waiting.has(id)) return
  waiting.add(id)
  await tryTitle(id).finally(() => waiting.delete(id))
}

async function tryTitle(id: string): Promise<void> {
  const state = () => {
    const chat = chats.peek().get(id)
    const branch = branchOf(id)
    const { content = '', state } = branch.at(-1) ?? {}
    return chat && content !== '' && !state && isUntitled(chat, branch) ? { chat, branch } : undefined
  }
  for (let looks = 0; looks < MAX_LOOKS && modelTitles.peek() === '' && state(); looks++) {
    await new Promise(resolve => setTimeout(resolve, IDLE_INTERVAL))
    const { chat, branch = [] } = state() ?? {}
    if (!chat || !isIdle(chat.model ?? '', 0)) continue
    const controller = new AbortController()
    const unwatch = effect(() => {
      if (!isIdle(chat.model ?? '', 1)) controller.abort()
    })
    const init = { signal: controller.signal, headers: { 'x-corral-background': 'true' } }
    const { text, isWhole } = await write(chat, branch, TITLE_INSTRUCTION, TITLE_OPTIONS, init).finally(unwatch)
    const title = titleOf(text.replace(/^(title:|[\s"'“‘«„「*#_`])+|["'”’»“」*_`.。]+$/gi, ''))
    // The change counts as older than any of the user, in this browser or another.
    if (isWhole && title && state()) await changeChat(id, { title }, 0)
    return
  }
}

const SUMMARY_INSTRUCTION =
  'Summarize this conversation so that it can be continued from the summary alone. Keep what I want, what was decided and why, names, numbers, code and results that are still needed, and what remains to be done. Write only the summary, in the language of the conversation.'
/** Maximum tokens of a summary, and share of the context that it may have. */
const MAX_SUMMARY_TOKENS = 1500
const SUMMARY_SHARE = 1 / 8
/** Whether a chat has messages to summarize. */
export const canCompact = (id: string): boolean => summaryEnd(branchOf(id)) >= 0

/**
 * Has the model summarize the older messages of a chat. Requests then contain the summary instead of them.
 * @param isNew whether a new chat continues from the summary and the recent messages
 * @returns the id of the chat that continues
 * @throws ApiError
 */
export async function compact(id: string, isNew: boolean, signal: AbortSignal): Promise<string> {
  const chat = chats.peek().get(id)!
  const branch = branchOf(id)
  const end = summaryEnd(branch)
  const room = Math.floor((contextOf(chat.model ?? '') ?? Infinity) * SUMMARY_SHARE)
  const options = { max_tokens: Math.min(MAX_SUMMARY_TOKENS, room), context_overflow: 'drop_oldest' }
  const { text: summary } = await write(chat, branch.slice(0, end + 1), SUMMARY_INSTRUCTION, options, { signal })
  if (!summary) throw new Error(texts.peek().noSummary)
  if (!isNew) {
    await editMessage(branch[end]!, { summary })
    return id
  }
  const root: Message = { id: '', chat: id, role: 'assistant', content: '', summary, at: 0 }
  return (await copyChat(chat, [root, ...branch.slice(end + 1)])).id
}
