/*
 * A conversation is a tree: each message has a parent, one that is asked or answered again becomes a sibling, and the chat
 * points to the leaf that is shown.
 */

export interface Chat {
  id: string
  title: string
  /** Message at the end of the branch that is shown. */
  leaf?: string
  pinned?: boolean
  /** Epoch milliseconds, as all times here. */
  createdAt: number
  /** When something was said last. */
  updatedAt: number
  /** When anything was changed last, and when each field was. */
  changedAt?: number
  stamps?: Record<string, number>
  /** When messages were deleted, by their ids. */
  gone?: Record<string, number>
  model?: string
  system?: string
  /** Options of its requests that differ from the server's. */
  options?: Record<string, unknown>
  /** JSON schema that answers follow, as it was written. */
  schema?: string
  /** Tools as they were written: a list in JSON. */
  tools?: string
}

/** A file that goes with a message. */
export interface Attachment {
  name: string
  kind: 'image' | 'audio' | 'text'
  /** Media type. */
  type: string
  /** A `data:` address; of texts the text itself. */
  data: string
}

export interface ToolCall {
  id: string
  name: string
  /** JSON, as the model wrote it. */
  arguments: string
}

/** What an answer took. */
export interface Timing {
  promptTokens: number
  /** Of those, tokens that the slot had read before. */
  cachedTokens: number
  answerTokens: number
  /** Milliseconds until the first text came, with all waiting. */
  firstText?: number
  /** Tokens a second. */
  speed?: number
  /** Tokens of the prompt a second, without those from a cache. */
  promptSpeed?: number
}

export interface Message {
  id: string
  chat: string
  parent?: string
  role: 'user' | 'assistant' | 'tool'
  content: string
  at: number
  /** When it was edited. */
  rev?: number
  attachments?: Attachment[]
  /** Of a tool's answer: the call that it answers. */
  callId?: string

  /** Of answers: the model that gave it. */
  model?: string
  thinking?: string
  toolCalls?: ToolCall[]
  /** Absent once it is complete. */
  state?: 'waiting' | 'answering' | 'stopped' | 'failed'
  /** What it is waiting for, as the server says it. */
  status?: string
  /** The stream that it comes by, and the last event that is in it. */
  stream?: { id: string; last: number }
  /** Why the model stopped: `stop`, `length`, `tool_calls`. */
  finish?: string
  timing?: Timing
  /** Messages that were left out because the context is full. */
  dropped?: number
  error?: { message: string; code: string }
}

/** Whether a message is an answer that has not ended. */
export const isUnderWay = ({ state }: Message) => state === 'waiting' || state === 'answering'

/** The messages from the first one to this one. If it was deleted, another browser has said what is newest. */
export function branchTo(messages: ReadonlyMap<string, Message>, leaf: string | undefined): Message[] {
  if (leaf === undefined) return []
  const branch = new Set<Message>()
  const newest = () => [...messages.values()].reduce((last, each) => (each.at > last.at ? each : last))
  let at = messages.get(leaf) ?? (messages.size > 0 ? newest() : undefined)
  for (; at && !branch.has(at); at = messages.get(at.parent ?? '')) branch.add(at)
  return [...branch].reverse()
}

/** The messages that have the same parent, this one included, the oldest first. */
export function siblingsOf(messages: ReadonlyMap<string, Message>, { parent, chat }: Message): Message[] {
  return [...messages.values()]
    .filter(message => message.parent === parent && message.chat === chat)
    .sort((a, b) => a.at - b.at)
}

/** The leaf that is reached from a message by its newest descendants. */
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

/** A message and everything that follows it on any branch. */
export function withDescendants(messages: ReadonlyMap<string, Message>, id: string): Message[] {
  const children = new Map<string, Message[]>()
  for (const message of messages.values()) {
    const siblings = children.get(message.parent ?? '')
    if (siblings) siblings.push(message)
    else children.set(message.parent ?? '', [message])
  }
  // It grows while it is gone through.
  const found = new Set([messages.get(id)!])
  for (const { id } of found) for (const child of children.get(id) ?? []) found.add(child)
  return [...found]
}

/** A title made of what was asked first. */
export function titleOf(text: string): string {
  const line = text.trim().split('\n', 1)[0]!.replace(/\s+/g, ' ')
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line
}

/** A message of a request, in the hosted-chat shape. */
type WireMessage = Record<string, unknown>

/** What the server is asked with: the branch that ends before the answer. Failed and empty answers are left out. */
export function requestMessages(branch: readonly Message[], system: string | undefined): WireMessage[] {
  const messages: WireMessage[] = system?.trim() ? [{ role: 'system', content: system }] : []
  for (const message of branch) {
    const { role, content, attachments = [], toolCalls, callId } = message
    if (role === 'user') messages.push({ role, content: contentOf(content, attachments) })
    else if (role === 'tool') messages.push({ role, tool_call_id: callId, content })
    else if (toolCalls?.length) {
      const calls = toolCalls.map(({ id, name, arguments: args }) => ({
        id,
        type: 'function',
        function: { name, arguments: args }
      }))
      messages.push({ role, content, tool_calls: calls })
    } else if (content !== '') messages.push({ role, content })
  }
  return messages
}

function contentOf(text: string, attachments: readonly Attachment[]): unknown {
  const texts = attachments.filter(({ kind }) => kind === 'text').map(({ name, data }) => `File "${name}":\n\n${data}`)
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
