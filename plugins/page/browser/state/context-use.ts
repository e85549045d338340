import { useEffect, useState } from 'preact/hooks'
import { promptFields, toolHeaders } from './answering.ts'
import { ask } from './api.ts'
import type { Attachment, Message, Settings } from './chat-format.ts'
import { chats, messagesOf } from './chats.ts'
import { branchTo, isDocument, isUnderWay, withSummary } from './conversation-tree.ts'
import { me } from './me.ts'
import { estimateTokens } from './passage-search.ts'

/** A message that is not sent yet. */
export interface Draft {
  chat: string | undefined
  model: string
  settings: Settings
  text: string
  attachments: readonly Attachment[]
}

interface TokenCount {
  tokens: number
  isEstimate: boolean
  /** Whether documents that do not fit are searched instead. */
  hasDocuments?: boolean
}

/** Milliseconds without a key press before the tokens are counted. After slow counts it is a multiple of their time. */
const COUNT_DELAY = 500
const MAX_SLOWDOWN = 4
const COUNT_TIMEOUT_MS = 10_000
/** Characters of a chat above which its tokens are estimated. */
const MAX_COUNTED = 2_000_000
const TOKENS_PER_MEDIUM = 1000

/** Milliseconds that the last count took. */
let took = 0

/** Counts the tokens of a chat with a new message. @param context of the loaded model @returns undefined if unknown */
export function useTokenCount(
  { chat = '', model, settings, text, attachments }: Draft,
  context: number
): TokenCount | undefined {
  const [count, setCount] = useState<TokenCount | undefined>(undefined)
  const leaf = chats.value.get(chat)?.leaf
  useEffect(() => {
    const stopped = new AbortController()
    const run = async () => {
      const draft: Message = { id: '', chat, role: 'user', content: text, at: 0, attachments: [...attachments] }
      const branch = [...withSummary(branchTo(messagesOf(chat), leaf)), draft]
      if (branch.some(isUnderWay)) return
      setTimeout(() => stopped.abort(), COUNT_TIMEOUT_MS)
      const counted = estimate(branch) ?? (await countTokens(branch, model, settings, context, stopped.signal))
      const hasDocuments = branch.some(({ attachments }) => attachments?.some(isDocument))
      if (!stopped.signal.aborted) setCount({ ...counted, hasDocuments })
    }
    // A count that fails is not worth a message.
    const timer = setTimeout(() => run().catch(() => setCount(undefined)), Math.max(COUNT_DELAY, MAX_SLOWDOWN * took))
    return () => {
      clearTimeout(timer)
      stopped.abort()
    }
  }, [text, attachments, leaf, model, context, JSON.stringify(settings)])
  return count
}

async function countTokens(
  branch: readonly Message[],
  model: string,
  settings: Settings,
  context: number,
  stopped: AbortSignal
) {
  const began = performance.now()
  const { input_tokens: tokens } = await ask<{ input_tokens: number }>('POST', 'v1/chat/completions/input_tokens', {
    // With the context that is loaded, counting never loads the model again.
    body: { ...promptFields(settings, branch, model), options: { num_ctx: context } },
    headers: toolHeaders(settings),
    signal: stopped
  })
  took = performance.now() - began
  return { tokens, isEstimate: false }
}

/** Estimates the tokens of a chat that is too long to be counted, or if the user may make only so many requests. */
function estimate(branch: readonly Message[]) {
  const texts = branch.flatMap(({ content, attachments = [], calls = [] }) => [
    content,
    ...attachments.map(({ data }) => data),
    ...calls.map(({ output = '' }) => output)
  ])
  const isLong = texts.reduce((sum, { length }) => sum + length, 0) > MAX_COUNTED
  if (!isLong && !me.peek()?.budgets.some(({ name }) => name.startsWith('requests'))) return undefined
  const tokensIn = (text: string) => (text.startsWith('data:') ? TOKENS_PER_MEDIUM : estimateTokens(text))
  return { tokens: texts.reduce((sum, text) => sum + tokensIn(text), 0), isEstimate: true }
}
