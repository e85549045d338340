import type { FastifyReply } from 'fastify'
import type { EngineResponse } from '../contracts/engines.ts'
import type { Lease } from '../contracts/scheduler.ts'
import { CorralError } from '../errors.ts'
import type { OverflowPolicy } from '../models/options.ts'
import { requirePlainBeginning } from './begun-answer.ts'
import { isCacheFault } from './engine-error.ts'
import { askEngine } from './engine-reply.ts'
import { withEngineSchemas } from './engine-schemas.ts'

/** The policy of one request, and who is told when it was needed. */
export interface Overflow {
  policy: OverflowPolicy
  /** @param messages how many were left out */
  onDropped: (messages: number) => void
}

interface Message {
  role?: unknown
  [field: string]: unknown
}

/** At least this part of the context is kept for the answer once turns are left out. */
const ANSWER_SHARE = 1 / 4

/** A request's policy; the reply says in a header, and the log in a line, how many messages were left out. */
export function overflowOf(policy: OverflowPolicy, reply: FastifyReply): Overflow {
  return {
    policy,
    onDropped(messages) {
      reply.header('x-corral-dropped-messages', `${messages}`)
      reply.log.info(
        { messages },
        'The oldest messages of a conversation were left out: it was longer than the context.'
      )
    }
  }
}

/**
 * Asks the engine. Where the policy allows it, a conversation that does not fit is asked again without its oldest turns
 * until it does; the engine's own count decides, nothing is guessed to fit.
 * @throws CorralError `context_exceeded` when not even the last turn fits, and what `askEngine` throws
 */
export async function askWithinContext(
  lease: Lease,
  request: { path: string; body: Record<string, unknown> },
  overflow?: Overflow
): Promise<EngineResponse> {
  const { path } = request
  let body = withEngineSchemas(request.body)
  const given = body.messages
  let messages = Array.isArray(given) ? (given as Message[]) : []
  await requirePlainBeginning(lease, body)
  for (;;) {
    try {
      const asked = messages.length > 0 ? { ...body, messages } : body
      const response = await askEngine(lease, { path, body: JSON.stringify(asked) })
      if (Array.isArray(given) && messages.length < given.length) overflow?.onDropped(given.length - messages.length)
      return response
    } catch (error) {
      if (isCacheFault(error) && body.cache_prompt !== false) {
        body = { ...body, cache_prompt: false }
        continue
      }
      const fewer = overflow?.policy === 'drop_oldest' ? withoutOldest(messages, error, body.max_tokens) : undefined
      if (!fewer) throw error
      messages = fewer
    }
  }
}

function withoutOldest(messages: Message[], error: unknown, maxTokens: unknown): Message[] | undefined {
  if (!(error instanceof CorralError) || error.code !== 'context_exceeded') return undefined
  const { n_prompt_tokens: promptTokens, n_ctx: contextSize } = error.details ?? {}
  if (typeof promptTokens !== 'number' || typeof contextSize !== 'number') return undefined
  const most = contextSize * ANSWER_SHARE
  const wanted = typeof maxTokens === 'number' && maxTokens > 0 ? Math.min(maxTokens, most) : most
  return dropOldest(messages, promptTokens, contextSize - wanted)
}

/**
 * Leaves out the oldest turns of a conversation: at least one, and as many as it seems to take, by the length of their
 * text, until the rest has no more than `room` tokens. A turn is a user's message with all that follows it up to the
 * next one; of the last turn only rounds of tool calls with their results can go, but the last. The system's stay.
 * @param promptTokens of the whole conversation
 * @returns undefined when nothing is left that could go
 */
export function dropOldest<T extends Message>(
  messages: readonly T[],
  promptTokens: number,
  room: number
): T[] | undefined {
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

/** Indexes of messages that go together, oldest first. */
function removableUnits(messages: readonly Message[]): number[][] {
  const units: number[][] = []
  const starts = messages.flatMap(({ role }, index) => (role === 'user' ? [index] : []))
  const last = starts.at(-1) ?? 0
  let unit: number[] | undefined
  messages.forEach(({ role, tool_calls }, index) => {
    // What the system says in between holds for all that follows.
    if (role === 'system' || role === 'developer') return
    const begins = index < last ? role === 'user' : index > last && role === 'assistant' && isFilled(tool_calls)
    if (index === last) unit = undefined
    if (begins) {
      unit = []
      units.push(unit)
    }
    if (index !== last) unit?.push(index)
  })
  // The last round of tool calls is what the answer is about.
  if (units.at(-1)?.some(index => index > last)) units.pop()
  return units
}

const isFilled = (value: unknown) => Array.isArray(value) && value.length > 0
