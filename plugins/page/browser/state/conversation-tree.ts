import { answerMessages } from './answer-calls.ts'
import type { Attachment, Message } from './chat-format.ts'

export const isUnderWay = ({ state }: Pick<Message, 'state'>) => state === 'waiting' || state === 'answering'

/** Whether an attachment is a document that was not removed. */
export const isDocument = ({ kind, data }: Attachment) => kind === 'text' && data !== ''

/** The texts of a message that become part of requests, with the data of its files. */
export const textsIn = ({ content, attachments = [], calls = [] }: Message): string[] => [
  content,
  ...attachments.map(({ data }) => data),
  ...calls.map(({ output = '' }) => output)
]

/** The messages from the root to a leaf. If the leaf was deleted elsewhere, the newest message is used instead. */
export function branchTo(messages: ReadonlyMap<string, Message>, leaf: string | undefined): Message[] {
  if (leaf === undefined) return []
  const branch = new Set<Message>()
  const newest = () => [...messages.values()].reduce((last, each) => (each.at > last.at ? each : last))
  let at = messages.get(leaf) ?? (messages.size > 0 ? newest() : undefined)
  for (; at && !branch.has(at); at = messages.get(at.parent ?? '')) branch.add(at)
  return [...branch].reverse()
}

/** Messages with the same parent, including this one, oldest first. */
export function getSiblings(messages: ReadonlyMap<string, Message>, { parent, chat }: Message): Message[] {
  return [...messages.values()]
    .filter(message => message.parent === parent && message.chat === chat)
    .sort((a, b) => a.at - b.at)
}

/** Follows the newest descendants of a message down to a leaf. */
export function newestLeafBelow(messages: ReadonlyMap<string, Message>, id: string): string {
  const newestChild = new Map<string, Message>()
  for (const message of messages.values()) {
    if (message.parent === undefined) continue
    const known = newestChild.get(message.parent)
    if (!known || known.at <= message.at) newestChild.set(message.parent, message)
  }
  let leaf = id
  for (let child = newestChild.get(leaf); child; child = newestChild.get(leaf)) {
    newestChild.delete(leaf)
    leaf = child.id
  }
  return leaf
}

export function withDescendants(messages: ReadonlyMap<string, Message>, id: string): Message[] {
  const children = new Map<string, Message[]>()
  for (const message of messages.values()) {
    const siblings = children.get(message.parent ?? '')
    if (siblings) siblings.push(message)
    else children.set(message.parent ?? '', [message])
  }
  // The set grows during the iteration.
  const found = new Set([messages.get(id)!])
  for (const { id } of found) for (const child of children.get(id) ?? []) found.add(child)
  return [...found]
}

export function titleOf(text: string): string {
  const line = text.trim().split('\n', 1)[0]!.replace(/\s+/g, ' ')
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line
}

/** Whether an answer failed since the context is full. Old chats have the code of another API. */
export const isContextFull = ({ error }: Message): boolean => /^context_(length_)?exceeded$/.test(error?.code ?? '')

/** Index of the last message with a summary, which replaces the messages up to it in requests. -1 if there is none. */
export const summaryIndex = (branch: readonly Message[]): number =>
  branch.findLastIndex(({ summary }) => summary !== undefined)

/** Share of the text that stays beside the summary, if the last question and answer are no longer. */
const KEPT_SHARE = 1 / 4

/** Returns the index of the last message to summarize, or -1 if there is nothing to summarize. */
export function summaryEnd(branch: readonly Message[]): number {
  const start = summaryIndex(branch) + 1
  const isAnswer = (at: number) =>
    at >= start && branch[at]!.role === 'assistant' && branch[at]!.content !== '' && !branch[at]!.state
  const sizes = branch.map(({ content }, at) => (at < start ? 0 : content.length))
  const whole = sizes.reduce((sum, size) => sum + size, 0)
  let end = isAnswer(branch.length - 1) ? branch.length - 1 : -1
  let kept = 0
  for (let at = branch.length - 1; at > start; at--) {
    kept += sizes[at]!
    if (branch[at]!.role !== 'user' || !isAnswer(at - 1)) continue
    if (end >= 0 && end < branch.length - 1 && kept > whole * KEPT_SHARE) break
    end = at - 1
  }
  return end
}

/** Replaces summarized messages by their summary. */
export function withSummary(branch: readonly Message[]): readonly Message[] {
  const at = summaryIndex(branch)
  const last = branch[at]
  if (!last) return branch
  const { id, chat, summary } = last
  return [
    { id, chat, role: 'user', content: `Summary of our conversation so far:\n\n${summary}`, at: 0 },
    { id, chat, role: 'assistant', content: 'I will continue from this summary.', at: 0 },
    ...branch.slice(at + 1)
  ]
}

/**
 * Builds the messages of a request in the OpenAI format from a branch. Failed and empty answers are left out.
 * @param seesImages whether the model gets the images in results of tools
 */
export function requestMessages(branch: readonly Message[], system: string | undefined, seesImages: boolean): object[] {
  const messages: object[] = system?.trim() ? [{ role: 'system', content: system }] : []
  for (const message of branch) {
    const { role, content, attachments = [], toolCalls, callId } = message
    if (role === 'user') messages.push({ role, content: contentOf(content, attachments) })
    else if (role === 'tool') messages.push({ role, tool_call_id: callId, content })
    else if (toolCalls?.length) {
      const tool_calls = toolCalls.map(({ id, ...called }) => ({ id, type: 'function', function: called }))
      messages.push({ role, content, tool_calls })
    } else messages.push(...answerMessages(message, seesImages))
  }
  return messages
}

function contentOf(text: string, attachments: readonly Attachment[]): unknown {
  const texts = attachments
    .filter(isDocument)
    .map(({ name, data }) => `File "${name}":\n\n${data.replaceAll('\f', '\n\n')}`)
  const whole = [...texts, text].filter(part => part !== '').join('\n\n')
  const media = attachments.filter(({ kind }) => kind !== 'text')
  if (media.length === 0) return whole
  return [
    ...media.map(({ kind, type, data }) => {
      if (kind === 'image') return { type: 'image_url', image_url: { url: data } }
      const format = type.includes('wav') ? 'wav' : 'mp3'
      return { type: 'input_audio', input_audio: { data: data.slice(data.indexOf(',') + 1), format } }
    }),
    { type: 'text', text: whole }
  ]
}
