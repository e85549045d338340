import type { FastifyReply, FastifyRequest } from 'fastify'
import type { CoreConfig } from '../config/core-schema.ts'
import { settingsFor } from '../config/model-settings.ts'
import type {
  AnswerControls,
  AnswerSink,
  Delta,
  Engine,
  EngineFields,
  Engines,
  TokenUsage
} from '../contracts/engines.ts'
import type { HookedRequest, Hooks, Operation } from '../contracts/hooks.ts'
import type { Lease, LeaseRequest, Scheduler } from '../contracts/leases.ts'
import type { Catalog, Model } from '../contracts/models.ts'
import { type Progress, progressText } from '../contracts/progress.ts'
import { CorralError } from '../errors.ts'
import { clientSignal } from '../http/client-disconnect.ts'
import { isSaidBackground } from '../http/forwarded-headers.ts'
import { toCorralError } from '../http/native-error.ts'
import {
  endWithFailure,
  openReplyStream,
  type ReplyStream,
  type ReplyStreamOptions,
  runSendHooks
} from '../http/reply-stream.ts'
import type { TokenTally } from '../http/request-record.ts'
import { hasRole } from '../http/roles.ts'
import { formatTraceParent } from '../http/trace-parent.ts'
import { catalogFor, requireAllowed } from '../models/allowed-models.ts'
import { formatModelName, type ModelName, publicModelName, type RequestedName } from '../models/model-name.ts'
import type { OverflowPolicy } from '../models/options.ts'
import { abortAfter } from '../system/abort-signals.ts'
import { merged } from '../system/collections.ts'
import { countAborted, promptTokens, tokensIn } from './aborted-answers.ts'
import { withUsableEnd } from './call-arguments.ts'
import { withReadFiles } from './documents.ts'
import { shorterConversation, withContextAdvice } from './full-context.ts'
import { countGenerated } from './generated-tokens.ts'
import { ContextGrowth } from './grow-context.ts'
import { growthLimit } from './model-limits.ts'
import { noteRepeatedCalls } from './repeated-calls.ts'
import { endingLoops, mayLoop } from './repeats.ts'
import { type Asked, enforceRequestLimits, getRequestLimits } from './request-limits.ts'
import { requireToolSupport } from './tool-choice.ts'
import { reportUnknownOptions } from './unknown-options.ts'

/* Runs requests to models: an API describes what it asks (Question) and how it writes deltas (AnswerWriter). */

export interface AnswerDependencies {
  catalog: Catalog
  config: CoreConfig
  scheduler: Scheduler
  engines: Pick<Engines, 'providerOf'>
  hooks: Hooks
  /** Name of the plugin, for hooks. */
  surface: string
  /** Whether options may also be at the top level of a request, not only in `options`. */
  optionsAtTop?: boolean
}

/** An API's request to a model, in OpenAI's format. */
export interface Question {
  operation: 'chat' | 'completion' | 'transcribe'
  /** Absent to only load the model. */
  body?: EngineFields
  lease: ModelLease
  variant: Model
  /** How to handle a conversation that is longer than the context. */
  overflow: OverflowPolicy
  whole?: boolean
  countEach?: boolean
  /** Whether the API reports which `stop` text ended the answer. */
  stopText?: boolean
  /** Whether the API returns the fields of llama-server's own API (`Delta.native`). */
  native?: boolean
  controlled?(controls: AnswerControls): void
  growth?: ContextGrowth | undefined
  used?(usage: TokenUsage, choice: number): void
  /** Called with the lease before the engine is asked. @throws CorralError if the engine cannot answer */
  check?(lease: Lease): void
}

/** The lease to request. The model is named as in the request. */
export type ModelLease = Omit<LeaseRequest, 'model' | 'signal' | 'onProgress' | keyof CallerLease> & {
  model: RequestedName
}

/** The fields of a lease that come from the caller. */
type CallerLease = Pick<
  LeaseRequest,
  'turn' | 'owner' | 'bounds' | 'idle' | 'session' | 'onClamped' | 'onGrown' | 'onUnenforcedSchema'
>

/** What an API may do with the leased engine before the answer. */
export interface Preparation {
  /** The engine's request, within its limits and after the hooks. */
  body: EngineFields
  /** Counts the tokens of a prompt. Undefined if the engine cannot count. */
  count(body: EngineFields): Promise<number | undefined>
  /** Asks the engine for something else first. Limits, usage and cancellation are those of the request. */
  ask(body: EngineFields, take: (deltas: readonly Delta[]) => void): Promise<void>
}

interface AnswerTaker {
  /** What to ask in place of the question. If it is set, text may be sent before, and `false` ends the answer then. */
  body?: EngineFields | false | undefined
}

/** Writes one answer in the format of an API. Each attempt gets a new writer. */
export interface AnswerWriter extends AnswerTaker {
  /** Converts the engine's deltas to text to send. Nothing is sent if it is empty or undefined. */
  add(deltas: readonly Delta[]): string | undefined
  end(): string
}

export interface Channel extends ReplyStreamOptions {
  /** The last frame of a stream that failed after it had begun. */
  failure(error: CorralError): string
  /** Rewrites the bytes of an OpenAI stream. If the engine provides bytes, no writer is created. */
  bytes?(lease: Lease): (bytes: Buffer) => Buffer
  /** The events that end such a stream if corral ends the answer. */
  endBytes?(usage: TokenUsage): string
}

/** Milliseconds after which a stream begins although nothing is generated yet. Until then a failure is a status code. */
const FIRST_EVENT_MS = 800

/**
 * Returns the channel of an API that streams Server-Sent Events.
 * @param activity returns events without content that clients count as activity, beginning with the first events of the
 * protocol. Many clients ignore comments and give up during a long prefill
 */
export function eventChannel(heartbeatInterval: number, failure: Channel['failure'], activity?: () => string): Channel {
  return {
    contentType: 'text/event-stream',
    heartbeatInterval,
    ...(activity && { firstHeartbeat: FIRST_EVENT_MS }),
    heartbeat: status => `: ${status}\n\n${activity?.() ?? ''}`,
    failure
  }
}

/** Asks for an answer in one piece. Resolves with the taker once the answer is complete. */
export async function wholeAnswer<Taker extends AnswerTaker & { add(deltas: readonly Delta[]): unknown }>(
  deps: AnswerDependencies,
  reply: FastifyReply,
  asked: Question,
  open: (lease: Lease, first: Preparation) => Taker | Promise<Taker>
): Promise<Taker> {
  const prepared = await prepare(deps, reply, merged(asked, { whole: true }), clientSignal(reply))
  return await withGrantedLease(deps, reply, prepared, {}, async lease => {
    const taker = await open(lease, preparation(deps, lease, prepared, reply))
    const onLoop = () => void reply.header(STOPPED, 'repeats')
    await generate(deps, lease, withBody(prepared, taker), reply, deltas => void taker.add(deltas), onLoop)
    return taker
  })
}

/**
 * Answers with a stream. Heartbeats report what the request waits for. If the engine dies before anything was sent, the
 * request is retried once on a fresh engine. Later failures are reported in the stream's last frame.
 */
export async function streamedAnswer(
  deps: AnswerDependencies,
  request: FastifyRequest,
  reply: FastifyReply,
  asked: Question,
  channel: Channel,
  open: (lease: Lease, first: Preparation) => AnswerWriter | Promise<AnswerWriter>
): Promise<void> {
  const resumable = reply.server.resumable.begin(reply)
  const prepared = await prepare(deps, reply, asked, resumable?.signal ?? clientSignal(reply))
  const { question, hooked } = prepared
  // A resumable stream sends its headers as soon as it starts.
  if (resumable) await runSendHooks(reply)
  const stream = resumable?.open(channel) ?? openReplyStream(reply, channel)
  const waiting = {
    ...(resumable && { resumable: true }),
    onProgress: (progress: Progress) => {
      stream.status = progressText(progress)
    },
    mayRetry: () => !stream.written
  }
  await endWithFailure(stream, request, channel.failure, () =>
    withGrantedLease(deps, reply, prepared, waiting, async leased => {
      stream.status = 'generating'
      const inBytes = hooked && !deps.hooks.hasEventFilters(hooked) ? byteCall(leased.engine, question) : undefined
      if (channel.bytes && inBytes) {
        const rewrite = channel.bytes(leased)
        const take = (bytes: Buffer) => stream.write(rewrite(bytes))
        const end = (usage: TokenUsage) => Buffer.from(`${STOPPED_COMMENT}${channel.endBytes?.(usage) ?? ''}`)
        await ask(deps, leased, question, reply, inBytes, take, end)
        return stream.end()
      }
      const writer = await open(leased, preparation(deps, leased, prepared, reply))
      const begun = writer.body === undefined ? undefined : writer.add([])
      if (begun) await stream.write(begun)
      let comment = ''
      const take = (deltas: readonly Delta[]) => {
        sayReading(stream, deltas[0])
        const text = writer.add(deltas)
        return text ? stream.write(text) : undefined
      }
      await generate(deps, leased, withBody(prepared, writer), reply, take, () => {
        if (channel.contentType === 'text/event-stream') comment = STOPPED_COMMENT
      })
      stream.end(`${comment}${writer.end()}`)
    })
  )
}

function preparation(deps: AnswerDependencies, lease: Lease, prepared: Prepared, reply: FastifyReply): Preparation {
  const { tokens } = reply.request.record
  return {
    body: prepared.question.body!,
    async count(body) {
      try {
        return await lease.engine.countTokens?.(body, lease)
      } catch (error) {
        throw reasonOf(deps, reply, lease, error)
      }
    },
    async ask(body, take) {
      await generate(deps, lease, withBody(prepared, { body }), reply, deltas => void take(deltas))
      tokens.another()
    }
  }
}

/** The request with the taker's body, if it has one. Without any body nothing is asked. */
function withBody({ question, hooked, signal }: Prepared, { body }: AnswerTaker): Prepared {
  return { question: body ? merged(question, { body }) : question, hooked: body === false ? undefined : hooked, signal }
}

/** Passes deltas to a plugin that writes its own reply. @throws CorralError if the answer fails or is incomplete */
export async function passedAnswer(
  deps: AnswerDependencies,
  reply: FastifyReply,
  asked: Question,
  take: AnswerSink['take']
): Promise<void> {
  const prepared = await prepare(deps, reply, asked, clientSignal(reply))
  let begun = false
  await withGrantedLease(deps, reply, prepared, { mayRetry: () => !begun }, lease =>
    generate(deps, lease, prepared, reply, deltas => {
      begun = true
      return take(deltas)
    })
  )
}

/** Asks a leased engine for a result in one piece: vectors, scores, counts. */
export async function askOnce<Reply, Body extends EngineFields>(
  deps: AnswerDependencies,
  reply: FastifyReply,
  asked: { operation: Operation; body: Body; lease: ModelLease },
  use: (lease: Lease, body: Body, tally: TokenTally) => Promise<Reply>
): Promise<Reply> {
  const signal = clientSignal(reply)
  const { record, caller } = reply.request
  const variant = catalogFor(deps.catalog, caller).get(asked.lease.model)
  const question = await bounded(deps, reply, asked, variant, signal)
  const { operation, body, lease } = question
  const hooked = lease.loadOnly ? undefined : hookedRequest(deps, operation, body, lease, reply, signal)
  if (hooked) await deps.hooks.request(hooked)
  return await withGrantedLease(deps, reply, { question, hooked, signal }, {}, async leased => {
    record.hold()
    try {
      return await use(leased, body, record.tokens)
    } catch (error) {
      const { unread } = record.tokens
      if (unread) countAborted(reply, leased, signal => tokensIn(leased.engine, unread, signal))
      throw reasonOf(deps, reply, leased, error)
    } finally {
      record.answered = performance.now()
      record.release()
    }
  })
}

/** Asks a leased engine about a prompt: its tokens, or their number. */
export async function askPrompt<Name extends 'tokenize' | 'countTokens' | 'applyTemplate'>(
  deps: AnswerDependencies,
  reply: FastifyReply,
  name: Name,
  { body, lease }: { body: EngineFields; lease: ModelLease }
): Promise<Awaited<ReturnType<NonNullable<Engine[Name]>>>> {
  return await askOnce(deps, reply, { operation: 'tokens', body, lease }, async (leased, prompt) => {
    const result = await requireCall<'tokenize' | 'countTokens' | 'applyTemplate'>(leased, name)(prompt, leased)
    return result as Awaited<ReturnType<NonNullable<Engine[Name]>>>
  })
}

/** A request within its limits, before it has an engine. */
interface Prepared<Request = Question> {
  question: Request
  /** The request as hooks see it; absent if the model is only loaded. */
  hooked: HookedRequest | undefined
  signal: AbortSignal
}

/** Leases an engine, and runs `use` unless a hook refuses the request. @throws as `Scheduler.withLease` */
async function withGrantedLease<Result>(
  { scheduler, hooks }: AnswerDependencies,
  reply: FastifyReply,
  {
    question,
    hooked,
    signal
  }: Prepared<{ lease: ModelLease & { model: ModelName }; growth: ContextGrowth | undefined }>,
  more: Partial<LeaseRequest> & { mayRetry?: () => boolean },
  use: (lease: Lease) => Promise<Result>
): Promise<Result> {
  const { record } = reply.request
  record.waitBegan = performance.now()
  const request = merged(merged(merged(question.lease, callerLease(reply)), more), { signal })
  const { growth } = question
  for (;;) {
    const grown = growth?.options.num_ctx
    const options = grown === undefined ? request.options : { ...request.options, ...growth!.options }
    try {
      return await scheduler.withLease(
        merged(request, { options, fewerSlots: growth?.options.num_parallel !== undefined }),
        async lease => {
          record.leased = performance.now()
          record.loadDuration = lease.loadDuration
          record.tokens.reset()
          if (grown !== undefined) reply.header(GROWN_CONTEXT, `${lease.engine.contextSize}`)
          if (hooked) await hooks.leased(hooked)
          return await use(lease)
        }
      )
    } catch (error) {
      if (!growth || signal.aborted) throw error
      growth.next(error)
    }
  }
}

/** Returns how the context of a request grows. Undefined if somebody has set its size, or another server decides it. */
function contextGrowth(
  { config, engines }: AnswerDependencies,
  { caller }: FastifyRequest,
  { lease: { mode = 'chat', options }, body }: Asked & { lease: ModelLease },
  variant: Model
): ContextGrowth | undefined {
  const most = growthLimit(config, variant, caller)
  const isLocal = engines.providerOf(variant, mode)?.estimate !== undefined
  if (most === undefined || options.num_ctx !== undefined || !isLocal) return undefined
  const { load } = settingsFor(config, variant)
  const usual = { ...load, ...options, num_ctx: Math.min(load.num_ctx, most) }
  const { max_tokens: answer } = body ?? {}
  const limits = { usual, given: options, most, answer: typeof answer === 'number' && answer > 0 ? answer : undefined }
  return new ContextGrowth(limits, body)
}

/** Applies limits, and lists unknown options in a header. @throws CorralError `over_limit`, `invalid_option`, … */
async function bounded<Request extends Asked & { lease: ModelLease }>(
  deps: AnswerDependencies,
  reply: FastifyReply,
  asked: Request,
  variant: Model,
  signal: AbortSignal
): Promise<Request & { lease: { model: ModelName }; growth: ContextGrowth | undefined }> {
  const { config, engines, surface } = deps
  const { caller, body: sent, record } = reply.request
  record.use = { surface, operation: asked.operation, model: variant.publicName, variant }
  reply.server.drain.admit(reply)
  requireAllowed(caller.models, asked.lease.model, variant)
  reportUnknownOptions(deps, reply, variant, asked.lease.mode)
  const bounds = getRequestLimits(config, variant, caller)
  const within = withUsableEnd(enforceRequestLimits(asked, bounds, sent))
  let body = within && bounds.repeats > 0 ? noteRepeatedCalls(within) : within
  if (body) {
    if (Number(asked.body?.max_tokens) > Number(body.max_tokens)) reply.header(CLAMPED_TOKENS, `${body.max_tokens}`)
    requireToolSupport(body, variant, settingsFor(config, variant).engine)
    await engines.providerOf(variant, asked.lease.mode ?? 'chat')?.check?.(body)
    body = await withReadFiles(body, config, reply, signal)
  }
  // The name is resolved once, so that a change in between cannot switch the request's model.
  const lease = merged(asked.lease, { model: publicModelName(variant) })
  // How long a model stays loaded affects all clients. Many clients send the field by default, so it is ignored instead
  // of refused.
  if (lease.keepAlive !== undefined && !hasRole(caller.role, 'operator')) delete lease.keepAlive
  return merged(asked, { body, lease, growth: contextGrowth(deps, reply.request, merged(asked, { body }), variant) })
}

/** The lease fields of the caller of a request. The reply lists clamped options in a header. */
export function callerLease(reply: FastifyReply): CallerLease {
  const { caller, headers } = reply.request
  const { turn, owner, bounds, idle = false } = caller
  const session = [headers['x-session-id']].flat()[0]
  return {
    turn,
    owner,
    bounds,
    idle,
    onClamped(options) {
      const clamped = Object.entries(options).map(([name, value]) => `${name}=${value}`)
      reply.header('x-corral-clamped', clamped.join(', '))
    },
    onGrown: context => void reply.header(GROWN_CONTEXT, context),
    onUnenforcedSchema: pointers => void reply.headers(unenforcedHeaders(pointers)),
    ...(session && { session })
  }
}

type Call =
  | Question['operation']
  | ByteCall
  | 'embed'
  | 'rerank'
  | 'tokenize'
  | 'detokenize'
  | 'countTokens'
  | 'applyTemplate'
type ByteCall = 'chatBytes' | 'completionBytes'

const PURPOSES: Record<Exclude<Call, ByteCall>, string> = {
  chat: 'answer conversations',
  completion: 'continue texts',
  transcribe: 'transcribe audio',
  embed: 'make embeddings',
  rerank: 'rank documents',
  tokenize: 'split texts into tokens',
  detokenize: 'turn tokens into text',
  countTokens: 'count tokens',
  applyTemplate: 'show the prompts of conversations'
}

/** A call that the leased engine supports. @throws CorralError `unsupported_capability` */
export function requireCall<Name extends Exclude<Call, ByteCall>>(
  { engine, variant }: Lease,
  name: Name
): NonNullable<Engine[Name]> {
  const call = engine[name]
  if (call) return (call as unknown as { bind(engine: Engine): NonNullable<Engine[Name]> }).bind(engine)
  const message = `The engine of model "${variant.publicName}" (${engine.provider}) cannot ${PURPOSES[name]}. Use a model that can.`
  throw new CorralError('unsupported_capability', message, { param: 'model' })
}

/** The engine's call that returns bytes, if it has one. Engines offer it for a single answer. */
function byteCall(engine: Engine, { operation, body }: Question): Engine['chatBytes'] {
  if (!body || operation === 'transcribe' || Number(body.n ?? 1) > 1 || Array.isArray(body.prompt)) return undefined
  return engine[`${operation}Bytes`]?.bind(engine)
}

function hookedRequest(
  { surface }: AnswerDependencies,
  operation: Operation,
  body: EngineFields,
  { model }: ModelLease,
  reply: FastifyReply,
  signal: AbortSignal
): HookedRequest {
  const { caller } = reply.request
  return { surface, operation, model: formatModelName(model), body, caller, reply, signal }
}

/** Completes all steps that may still change the status code or headers. @throws as `bounded`, and errors of hooks */
async function prepare(
  deps: AnswerDependencies,
  reply: FastifyReply,
  asked: Question,
  signal: AbortSignal
): Promise<Prepared<Question & { lease: { model: ModelName }; growth: ContextGrowth | undefined }>> {
  const question = await bounded(deps, reply, asked, asked.variant, signal)
  const { operation, body, lease, variant } = question
  if (!body) return { question, hooked: undefined, signal }
  const hooked = hookedRequest(deps, operation, body, lease, reply, signal)
  if (deps.hooks.hasRequestFilters()) await deps.hooks.request(hooked)
  const unenforced = deps.engines.providerOf(variant, 'chat')?.unenforced?.(body) ?? []
  if (unenforced.length > 0) reply.headers(unenforcedHeaders(pointerList(unenforced)))
  return { question, hooked, signal }
}

/** The header with the tokens of a context that grew for the request. */
export const GROWN_CONTEXT = 'x-corral-context'
/** The header with the maximum tokens of an answer whose request asked for more than its limit. */
const CLAMPED_TOKENS = 'x-corral-max-tokens'
/** The header with the number of messages that were dropped from a conversation. */
const DROPPED_MESSAGES = 'x-corral-dropped-messages'
/** The header that lists the constraints of a schema that are not enforced. */
export const UNENFORCED_SCHEMA = 'x-corral-unenforced-schema'
/** The old header name is also sent until 0.3.0. */
const unenforcedHeaders = (pointers: string) => ({
  [UNENFORCED_SCHEMA]: pointers,
  'x-corral-unheeded-schema': pointers
})
/** Limits of the pointers in the header, since clients accept headers of about 8 KiB. */
const MAX_POINTERS = 10
const MAX_POINTER_LENGTH = 200

/** Formats JSON pointers for a header. Pointers that do not fit are only counted. */
export function pointerList(pointers: readonly string[]): string {
  const named = pointers.filter(({ length }) => length <= MAX_POINTER_LENGTH).slice(0, MAX_POINTERS)
  const more = pointers.length > named.length ? [`+${pointers.length - named.length}`] : []
  return [...named, ...more].join(', ')
}

/** Milliseconds for counting the prompt of an answer that corral has ended. */
const COUNT_MS = 2000
/** The header of a reply, or the comment in a stream, if corral ended the answer as if it had reached its limit. */
const STOPPED = 'x-corral-stopped'
const STOPPED_COMMENT = `: ${STOPPED}: repeats\n\n`

/** @param onLoop called if the answer was ended because it repeats itself */
async function generate(
  deps: AnswerDependencies,
  lease: Lease,
  { question, hooked }: Prepared,
  reply: FastifyReply,
  take: (deltas: readonly Delta[]) => Promise<void> | undefined,
  onLoop?: () => void
): Promise<void> {
  if (!hooked) return
  const { hooks } = deps
  const filtered = async (deltas: readonly Delta[]) => {
    const kept: Delta[] = []
    for (const delta of deltas) {
      const left = await hooks.event(delta, hooked)
      if (left) kept.push(left)
    }
    if (kept.length > 0) await take(kept)
  }
  const { tokens } = reply.request.record
  const pass = hooks.hasEventFilters(hooked) ? filtered : take
  const counted = (deltas: readonly Delta[]) => {
    for (const delta of deltas) countDelta(tokens, delta)
    return pass(deltas)
  }
  await ask(deps, lease, question, reply, requireCall(lease, question.operation), counted, usage => {
    onLoop?.()
    return [{ finish: 'length', usage }]
  })
}

/**
 * Asks the engine. If the policy allows it and the conversation does not fit, the oldest turns are dropped and the
 * engine is asked again until it fits. Only the engine's own count decides. A header and the log report how many
 * messages were dropped.
 * @param ending returns the last piece of an answer that is ended because it repeats itself
 */
async function ask<Piece extends readonly Delta[] | Buffer>(
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
        return await answer(body, sink)
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

/** Milliseconds since the first token. For a whole answer the engine reports the duration. */
function sinceFirstToken(piece: readonly Delta[] | Buffer): number {
  if (Buffer.isBuffer(piece)) return 0
  const [first] = piece
  return first?.tokens === undefined ? 0 : (first.timing?.generation ?? 0)
}

function countDelta(
  tally: TokenTally,
  { choice = 0, content, thinking, toolCalls, usage, reading, finish }: Delta
): void {
  if (finish) tally.finish()
  if (usage) tally.usage(usage, choice)
  else if (reading) tally.read(reading.total, reading.cached, tally.promptOf(choice))
  else if (content || thinking || toolCalls) tally.piece(choice)
}

function sayReading(stream: ReplyStream, delta: Delta | undefined): void {
  if (!delta?.reading) return
  const { tokens, total } = delta.reading
  const fraction = tokens / Math.max(1, total)
  stream.status = progressText({ phase: 'generating', subject: '(processing the prompt)', fraction })
}

/** Whether an engine that ended explains the failure better than the broken connection does. */
function knowsMore(error: unknown): boolean {
  return (
    error instanceof CorralError &&
    error.code === 'engine_crashed' &&
    (!error.retryable || error.details?.sent === false)
  )
}

/** The reason why an answer failed. A lost engine or client explains more than the broken connection. */
function reasonOf(
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
