import type { EngineFields } from '../contracts/engines.ts'
import { CorralError } from '../errors.ts'

interface Message {
  role?: unknown
  [field: string]: unknown
}

/** Share of the context that is free for the answer after messages were dropped. */
const ANSWER_SHARE = 1 / 4

/** Removes the oldest turns if they caused this error. @returns undefined if nothing can be dropped */
export function shorterConversation(body: EngineFields, error: unknown) {
  if (!(error instanceof CorralError) || error.code !== 'context_exceeded') return undefined
  const { n_prompt_tokens: promptTokens, n_ctx: contextSize } = error.details ?? {}
  if (typeof promptTokens !== 'number' || typeof contextSize !== 'number' || !Array.isArray(body.messages)) {
    return undefined
  }
  const { max_tokens: maxTokens, messages } = body
  const most = contextSize * ANSWER_SHARE
  const wanted = typeof maxTokens === 'number' && maxTokens > 0 ? Math.min(maxTokens, most) : most
  const fewer = dropOldest(messages as Message[], promptTokens, contextSize - wanted)
  return fewer && { body: { ...body, messages: fewer }, dropped: messages.length - fewer.length }
}

/**
 * Drops the oldest turns of a conversation until the rest has at most `room` tokens, as estimated from the length of
 * their text. It drops at least one turn. A turn is a user's message and everything up to the next one. In the last
 * turn, only rounds of tool calls with their results can be dropped, except the last round. System messages stay.
 * @param promptTokens tokens of the whole conversation
 * @returns undefined if nothing can be dropped
 */
export function dropOldest<T extends Message>(messages: readonly T[], promptTokens: number, room: number) {
  const lengths = messages.map(message => JSON.stringify(message).length)
  const total = lengths.reduce((sum, length) => sum + length, 0)
  const dropped = new Set<number>()
  let tokens = promptTokens
  for (const unit of removableUnits(messages)) {
    for (const index of unit) {
      dropped.add(index)
      tokens -= (promptTokens * lengths[index]!) / total
    }
    if (tokens <= room) break
  }
  return dropped.size === 0 ? undefined : messages.filter((_, index) => !dropped.has(index))
}

function removableUnits(messages: readonly Message[]): number[][] {
  const units: number[][] = []
  const starts = messages.flatMap(({ role }, index) => (role === 'user' ? [index] : []))
  const last = starts.at(-1) ?? 0
  let unit: number[] | undefined
  messages.forEach(({ role, tool_calls }, index) => {
    // System messages in the middle apply to everything that follows.
    if (role === 'system' || role === 'developer') return
    const begins = index < last ? role === 'user' : index > last && role === 'assistant' && isFilled(tool_calls)
    if (index === last) unit = undefined
    if (begins) {
      unit = []
      units.push(unit)
    }
    if (index !== last) unit?.push(index)
  })
  // The answer is about the last round of tool calls.
  if (units.at(-1)?.some(index => index > last)) units.pop()
  return units
}

const isFilled = (value: unknown) => Array.isArray(value) && value.length > 0

/** The context that was too small, in tokens. `allowed` is `limits.num_ctx`, and 0 is unlimited. */
interface FullContext {
  model: string
  size: number
  trained?: number | undefined
  allowed: number
}

/** Advice for a full context. It suggests a larger context only if the model and the limits allow one. */
export function contextAdvice({ model, size, trained, allowed }: FullContext): string {
  if (trained !== undefined && size >= trained) {
    return `"${model}" was trained for ${trained} tokens, so its context cannot be larger. Shorten the text, or use a model with a longer context.`
  }
  if (allowed > 0 && size >= allowed) {
    return 'limits.num_ctx does not allow a larger context. Shorten the text, or have the admin raise that limit in config.yaml.'
  }
  return `Shorten the text, or ask for a larger context: "num_ctx" in "options", or models."${model}".options.num_ctx in config.yaml.`
}

/** An engine's error, with advice if the context is full. Errors of other servers stay unchanged. */
export function withContextAdvice(error: CorralError, context: FullContext): CorralError {
  const { code, message, details } = error
  if (code !== 'context_exceeded' || /shorten|num_ctx/i.test(message)) return error
  return error.reworded(`${message} ${contextAdvice({ ...context, size: Number(details?.n_ctx ?? context.size) })}`)
}
