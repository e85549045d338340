import { useEffect, useState } from 'preact/hooks'
import { promptFields, toolHeaders } from './answering.ts'
import { countTokens } from './api.ts'
import type { Attachment, Message, Settings } from './chat-format.ts'
import { chats, messagesOf, projectOf } from './chats.ts'
import { branchTo, isDocument, isUnderWay, textsIn, withSummary } from './conversation-tree.ts'
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
  hasDocuments: boolean
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
      const project = messagesOf(projectOf(chats.peek().get(chat) ?? {})).values()
      const files = [...attachments, ...[...project].flatMap(({ attachments = [] }) => attachments)]
      const draft: Message = { id: '', chat, role: 'user', content: text, at: 0, attachments: files }
      const branch = [...withSummary(branchTo(messagesOf(chat), leaf)), draft]
      if (branch.some(isUnderWay)) return
      setTimeout(() => stopped.abort(), COUNT_TIMEOUT_MS)
      let tokens = estimate(branch)
      const isEstimate = tokens !== undefined
      if (tokens === undefined) {
        const began = performance.now()
        // With the context that is loaded, counting never loads the model again.
        const body = { ...promptFields(settings, branch, model), options: { num_ctx: context } }
        tokens = await countTokens(body, { headers: toolHeaders(settings), signal: stopped.signal })
        took = performance.now() - began
      }
      const hasDocuments = branch.some(({ attachments }) => attachments?.some(isDocument))
      if (!stopped.signal.aborted) setCount({ tokens, isEstimate, hasDocuments })
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

/** Estimates the tokens of a chat that is too long to be counted, or if the user may make only so many requests. */
function estimate(branch: readonly Message[]): number | undefined {
  const texts = branch.flatMap(textsIn)
  const isLong = texts.reduce((sum, { length }) => sum + length, 0) > MAX_COUNTED
  if (!isLong && !me.peek()?.budgets.some(({ name }) => name.startsWith('requests'))) return undefined
  const tokensIn = (text: string) => (text.startsWith('data:') ? TOKENS_PER_MEDIUM : estimateTokens(text))
  return texts.reduce((sum, text) => sum + tokensIn(text), 0)
}
