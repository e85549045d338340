import type { FastifyReply } from 'fastify'
import type { AnswerSink, Delta, Engine, EngineFields, OperationCall, TokenUsage } from '../contracts/engines.ts'
import type { Operation } from '../contracts/hooks.ts'
import type { Lease } from '../contracts/leases.ts'
import { CorralError, errorMessage } from '../errors.ts'
import { isSaidBackground } from '../http/forwarded-headers.ts'
import { toCorralError } from '../http/native-error.ts'
import type { TokenTally } from '../http/request-record.ts'
import { formatTraceParent } from '../http/trace-parent.ts'
import { unsupportedOperation } from '../models/model-operations.ts'
import { abortAfter } from '../system/abort-signals.ts'
import { merged } from '../system/collections.ts'
import type { Prepared } from './admission.ts'
import { DROPPED_MESSAGES } from './answer-headers.ts'
import { shorterConversation, withContextAdvice } from './full-context.ts'
import { countGenerated } from './generated-tokens.ts'
import type { AnswerDependencies } from './model-request.ts'
import type { Question } from './question.ts'
import { withReadableMedia } from './readable-media.ts'
import { endingLoops, mayLoop } from './repeats.ts'
import { getRequestLimits } from './request-limits.ts'

type Call = 'embed' | 'rerank' | 'tokenize' | 'detokenize' | 'countTokens' | 'applyTemplate'

/** A call that the leased engine supports. @throws CorralError `unsupported_capability` */
export function requireCall<Name extends Call>({ engine, variant }: Lease, name: Name): NonNullable<Engine[Name]> {
  const call = engine[name]
  if (call) return (call as unknown as { bind(engine: Engine): NonNullable<Engine[Name]> }).bind(engine)
  throw unsupportedOperation(`The engine of model "${variant.publicName}" (${engine.provider})`, name)
}

/** The call of the leased engine for an operation whose answer comes in pieces. @throws as `requireCall` */
function operationCall({ engine, variant }: Lease, operation: Operation): OperationCall {
  const ofText = operation === 'chat' ? engine.chat : operation === 'completion' ? engine.completion : undefined
  const call = ofText ?? engine.operations?.[operation]
  if (call) return call.bind(engine)
  throw unsupportedOperation(`The engine of model "${variant.publicName}" (${engine.provider})`, operation)
}

/** The engine's call that returns bytes, if it has one. Engines offer it for a single answer. */
export function byteCall(engine: Engine, { operation, body }: Question): Engine['chatBytes'] {
  if (!body || Number(body.n ?? 1) > 1 || Array.isArray(body.prompt)) return undefined
  if (operation === 'chat') return engine.chatBytes?.bind(engine)
  return operation === 'completion' ? engine.completionBytes?.bind(engine) : undefined
}

/** Asks for an answer, or for the next turn of one. @param onLoop called if it was ended because it repeats itself */
export async function generate(
  deps: AnswerDependencies,
  lease: Lease,
  { question, hooked }: Prepared,
  reply: FastifyReply,
  take: (deltas: readonly Delta[]) => Promise<void> | undefined,
  onLoop?: () => void
): Promise<void> {
  if (!hooked) return
  const { hooks } = deps
  const { session } = question
  const filtering = (next: typeof take) => async (deltas: readonly Delta[]) => {
    const kept: Delta[] = []
    for (const delta of deltas) {
      const left = await hooks.event(delta, hooked)
      if (left) kept.push(left)
    }
    if (kept.length > 0) await next(kept)
  }
  const { tokens } = reply.request.record
  const through = hooks.hasEventFilters(hooked) ? filtering : (next: typeof take) => next
  const askOnce = (asked: Question, next: typeof take) => {
    const pass = through(next)
    const counted = (deltas: readonly Delta[]) => {
      for (const delta of deltas) countDelta(tokens, delta)
      return pass(session ? session.shift(deltas) : deltas)
    }
    return ask(deps, lease, asked, reply, operationCall(lease, question.operation), counted, usage => {
      onLoop?.()
      return [{ finish: 'length', usage }]
    })
  }
  if (!session) return await askOnce(question, take)
  await session.turn(question.body!, (body, next) => askOnce(merged(question, { body }), next), through(take))
}

/** Milliseconds for counting the prompt of an answer that corral has ended. */
const COUNT_MS = 2000

/**
 * Asks the engine. If the policy allows it and the conversation does not fit, the oldest turns are dropped and the
 * engine is asked again until it fits. Only the engine's own count decides. A header and the log report how many
 * messages were dropped.
 * @param ending returns the last piece of an answer that is ended because it repeats itself
 */
export async function ask<Piece extends readonly Delta[] | Buffer>(
  deps: AnswerDependencies,
  lease: Lease,
  question: Question,
  reply: FastifyReply,
  call: (request: EngineFields, sink: AnswerSink<Piece>) => Promise<void>,
  take: (piece: Piece) => Promise<void> | undefined,
  ending: (usage: TokenUsage) => Piece
): Promise<void> {
  const { whole = false, countEach = false, stopText = false, native = false } = question
  const { overflow, check, controlled, used } = question
  check?.(lease)
  let body = question.body!
  let dropped = 0
  let begun = false
  const { record } = reply.request
  const { tokens } = record
  tokens.choicesPerPrompt = typeof body.n === 'number' ? body.n : 1
  const sink: AnswerSink<Piece> = {
    signal: lease.signal,
    whole,
    countEach,
    stopText,
    native,
    owner: reply.request.caller.owner,
    background: isSaidBackground(reply.request.headers),
    requestId: reply.request.id,
    ...(controlled && { controlled }),
    ...(record.trace && { traceParent: formatTraceParent(record.trace) }),
    used(usage, choice) {
      tokens.usage(usage, choice)
      used?.(usage, choice)
    },
    take(piece: Piece) {
      if (!begun) {
        begun = true
        record.firstPiece = performance.now() - sinceFirstToken(piece)
        if (dropped > 0) {
          const text = 'The oldest messages of a conversation were dropped: it was longer than the context.'
          reply.log.info({ messages: dropped }, text)
        }
      }
      countGenerated(lease.engine, piece)
      return take(piece)
    }
  }
  const { repeats } = getRequestLimits(deps.config, question.variant, reply.request.caller)
  const endLoop = async () => {
    reply.log.info({ repeats }, 'An answer was ended because it repeats the same passage. See limits.repeats.')
    const { prompt, cached: cachedTokens, completion: completionTokens } = tokens
    const count = () => promptTokens(lease.engine, question.operation, body, 0, abortAfter(COUNT_MS)).catch(() => 0)
    const usage = { promptTokens: prompt || (await count()), cachedTokens, completionTokens }
    tokens.usage(usage, 0)
    return ending(usage)
  }
  // Other choices and prompts of a request continue, so these are not watched.
  const isSingle = tokens.choicesPerPrompt === 1 && !Array.isArray(body.prompt)
  const answer = repeats > 0 && isSingle && mayLoop(body) ? endingLoops(call, repeats, endLoop) : call
  record.hold()
  try {
    for (;;) {
      try {
        return await withReadableMedia(lease, body, readable => {
          body = readable
          return answer(readable, sink)
        })
      } catch (error) {
        const mayDrop = !begun && overflow === 'drop_oldest' && !question.growth?.canGrow(error)
        const shorter = mayDrop ? shorterConversation(body, error) : undefined
        if (!shorter) throw reasonOf(deps, reply, lease, error)
        dropped += shorter.dropped
        body = shorter.body
        // Set at once, because headers may be sent before the first piece.
        reply.header(DROPPED_MESSAGES, `${dropped}`)
      }
    }
  } catch (error) {
    reply.removeHeader(DROPPED_MESSAGES)
    const prompt = tokens.uncounted
    if (prompt !== undefined) {
      countAborted(reply, lease, signal => promptTokens(lease.engine, question.operation, body, prompt, signal))
    }
    throw error
  } finally {
    record.answered = performance.now()
    record.release()
  }
}

/** The reason why an answer failed. A lost engine or client explains more than the broken connection. */
export function reasonOf(
  { config }: AnswerDependencies,
  { request }: FastifyReply,
  { signal, engine, variant }: Lease,
  error: unknown
): unknown {
  if (signal.aborted && !knowsMore(error)) return signal.reason
  const known = toCorralError(error)
  if (error instanceof CorralError || known.code !== 'internal') {
    return withContextAdvice(known, {
      model: variant.publicName,
      size: engine.contextSize,
      trained: variant.metadata.contextLength,
      allowed: getRequestLimits(config, variant, request.caller).num_ctx
    })
  }
  const message =
    `Something went wrong while the engine "${engine.provider}" answered for the model "${variant.publicName}". ` +
    "The server's log has the details under this request id."
  return new CorralError('internal', message, { cause: error })
}

/** Whether an engine that ended explains the failure better than the broken connection does. */
function knowsMore(error: unknown): boolean {
  return (
    error instanceof CorralError &&
    error.code === 'engine_crashed' &&
    (!error.retryable || error.details?.sent === false)
  )
}

function countDelta(tally: TokenTally, { choice = 0, content, thinking, toolCalls, usage, reading, finish }: Delta) {
  if (finish) tally.finish()
  if (usage) tally.usage(usage, choice)
  else if (reading) tally.read(reading.total, reading.cached, tally.promptOf(choice))
  else if (content || thinking || toolCalls) tally.piece(choice)
}

/** Milliseconds since the first token. For a whole answer the engine reports the duration. */
function sinceFirstToken(piece: readonly Delta[] | Buffer): number {
  if (Buffer.isBuffer(piece)) return 0
  const [first] = piece
  return first?.tokens === undefined ? 0 : (first.timing?.generation ?? 0)
}

/* Counts prompts that were processed for clients that then disconnected. Otherwise these prompts would be free. */

const MAX_WAIT_MS = 10_000

/** Counts the usage of an aborted answer after the reply has ended. Does nothing if the answer was not aborted. */
export function countAborted(
  { request: { record, log } }: FastifyReply,
  { signal }: Lease,
  count: (signal: AbortSignal) => Promise<number>
): void {
  if (!signal.aborted) return
  record.hold()
  count(abortAfter(MAX_WAIT_MS))
    .then(tokens => record.tokens.read(tokens, 0, record.tokens.prompts))
    .catch(error => log.debug(`Tokens of the prompt of an aborted answer could not be counted: ${errorMessage(error)}`))
    .finally(() => record.release())
}

/** Counts the tokens of one of the request's prompts, including a `suffix`. Returns 0 if there is no such prompt. */
export async function promptTokens(
  engine: Pick<Engine, 'countTokens' | 'tokenize'>,
  operation: Operation,
  body: EngineFields,
  at: number,
  signal: AbortSignal
): Promise<number> {
  if (operation === 'chat') return at === 0 ? ((await engine.countTokens?.(body, { signal })) ?? 0) : 0
  if (operation !== 'completion') return 0
  const { prompt, suffix } = body
  const isOne = typeof prompt === 'string' || (Array.isArray(prompt) && typeof prompt[0] === 'number')
  const own = (isOne ? [prompt] : (prompt as unknown[]))[at]
  if (own === undefined) return 0
  return await tokensIn(engine, (suffix === undefined ? [own] : [own, suffix]) as (string | number[])[], signal)
}

/** Tokens of texts, or of lists of tokens, without the special tokens that the vocabulary adds around each. */
export async function tokensIn(
  engine: Pick<Engine, 'tokenize'>,
  texts: readonly (string | readonly number[])[],
  signal: AbortSignal
): Promise<number> {
  let sum = 0
  for (const text of texts) {
    const reply =
      typeof text === 'string' && (await engine.tokenize?.({ content: text, add_special: true }, { signal }))
    const tokens = typeof text === 'string' ? reply && (reply.tokens as unknown[] | undefined) : text
    if (tokens) sum += tokens.length
  }
  return sum
}
