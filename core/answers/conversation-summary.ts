import type { EngineFields, TokenUsage } from '../contracts/engines.ts'
import type { Preparation } from './question.ts'

/* Compaction: the model writes a summary, which then replaces the conversation. */

const INSTRUCTIONS = `Write a summary of this conversation. The summary will replace the conversation, so whoever continues must be able to work from it alone. Include:
- what the user wants, with the latest request word for word
- what was decided and why
- files, names, commands and results that are still needed
- errors, and how they were solved
- what remains to be done, and the next step
Do not continue the work and do not call tools. Write only the summary, between <summary> and </summary>.`

const MAX_SUMMARY_TOKENS = 4096
/** Share of the context that a conversation may fill. The rest is for the summary and its instructions. */
const COMPACTION_SHARE = 0.8

/** Tokens above which a conversation is shortened. @param window tokens that the context can have */
export const compactionLimit = (wanted: number | null | undefined, window: number) =>
  Math.min(wanted ?? window, Math.floor(window * COMPACTION_SHARE))

/** Fields of a request that concern its answer, but not a summary. */
const OF_ANSWER = ['stop', 'response_format', 'continue_final_message', 'add_generation_prompt', 'logprobs', 'n']

type Message = Record<string, unknown>

export interface Summary {
  text: string | undefined
  usage: TokenUsage
}

/** Asks the model of a request for a summary of its conversation. @param instructions replace the usual ones */
export async function summarize(
  first: Pick<Preparation, 'ask'>,
  body: EngineFields,
  maxTokens: number,
  instructions?: string | null
): Promise<Summary> {
  const request: EngineFields = {
    ...body,
    messages: withInstructions(body.messages as Message[], instructions?.trim() ? instructions : INSTRUCTIONS),
    // The tools stay, so that the prompt is still in the engine's cache.
    ...(body.tools ? { tool_choice: 'none' } : {}),
    max_tokens: Math.min(MAX_SUMMARY_TOKENS, maxTokens)
  }
  for (const field of OF_ANSWER) delete request[field]
  let text = ''
  let usage: TokenUsage = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 }
  await first.ask(request, deltas => {
    for (const delta of deltas) {
      text += delta.content ?? ''
      usage = delta.usage ?? usage
    }
  })
  const [, marked = text] = /<summary>(.*?)(?:<\/summary>|$)/s.exec(text) ?? []
  return { text: marked.trim() || undefined, usage }
}

/** Most templates refuse two consecutive messages of the user. */
function withInstructions(messages: readonly Message[], instructions: string): Message[] {
  const last = messages.at(-1)
  if (last?.role !== 'user') return [...messages, { role: 'user', content: instructions }]
  const { content } = last
  const more = { type: 'text', text: instructions }
  return [
    ...messages.slice(0, -1),
    { ...last, content: Array.isArray(content) ? [...content, more] : `${content}\n\n${instructions}` }
  ]
}

/** Replaces a conversation by a message, except the system message at its start. */
export function compacted(body: EngineFields, message: string): EngineFields {
  const messages = body.messages as Message[]
  const system = messages.slice(
    0,
    Math.max(
      0,
      messages.findIndex(({ role }) => role !== 'system')
    )
  )
  const { continue_final_message: _, add_generation_prompt: __, ...rest } = body
  return { ...rest, messages: [...system, { role: 'user', content: message }] }
}
