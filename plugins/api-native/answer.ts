import type { FastifyReply, FastifyRequest } from 'fastify'
import { overflowOf } from '../../core/answers/context-overflow.ts'
import type { Counters, Delta } from '../../core/answers/engine-answer.ts'
import { withLeaseInStream } from '../../core/answers/leased-stream.ts'
import { type EngineCall, readAnswer } from '../../core/answers/read-answer.ts'
import { tellUnheeded } from '../../core/answers/unheeded-schema.ts'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { type EngineSettings, settingsFor } from '../../core/config/model-settings.ts'
import type { Framing, ModelNaming } from '../../core/contracts/native-api.ts'
import { progressText } from '../../core/contracts/progress.ts'
import type { Lease, Scheduler } from '../../core/contracts/scheduler.ts'
import type { Storage, StoredVariant } from '../../core/contracts/storage.ts'
import type { CorralError } from '../../core/errors.ts'
import { clientSignal } from '../../core/http/client-signal.ts'
import type { ReplyStream } from '../../core/http/reply-stream.ts'
import { type OverflowPolicy, parseKeepAlive, parseOptions } from '../../core/models/options.ts'
import { FRAMES } from './framing.ts'
import type { NativeStreams } from './native-streams.ts'

/** What all answers of one request share. */
interface Answering {
  /** The name as it was asked for. */
  model: string
  framing: Framing
}

/** How chat and generate word their events. */
export interface AnswerShape {
  /** The fields of one fragment beside `model`, `created_at` and `done`. */
  fragment(part: Pick<Delta, 'content' | 'thinking' | 'toolCalls' | 'logprobs'>): Record<string, unknown>
  /** Those of the last event of a stream. */
  last(framing: Framing): Record<string, unknown>
}

export interface AnswerRequest {
  model?: string | null
  name?: string | null
  stream?: boolean | null
  options?: object | null
  keep_alive?: number | string | null
  truncate?: boolean | null
}

export interface AnswerDependencies {
  storage: Storage
  scheduler: Scheduler
  config: CoreConfig
  streams: NativeStreams
  naming: ModelNaming
}

/** The model's name as a request gives it. */
export function nameOf(request: { model?: string | null; name?: string | null }): string {
  // Ollama's Go client sends both, the one that it does not use empty.
  return request.model || request.name || ''
}

function durations(began: bigint, lease: Lease, counters: Counters | undefined): Record<string, number> {
  return {
    total_duration: Number(process.hrtime.bigint() - began),
    load_duration: Math.round(lease.loadDuration * 1e6),
    prompt_eval_count: 0,
    prompt_eval_duration: 0,
    eval_count: 0,
    eval_duration: 0,
    ...counters
  }
}

/** Ollama's field for the same; where it is not given, the server's own policy holds. */
function truncation({ truncate }: AnswerRequest): OverflowPolicy | undefined {
  if (truncate === undefined || truncate === null) return undefined
  return truncate ? 'drop_oldest' : 'error'
}

const now = () => new Date().toISOString()

/** Answers a chat or generate request: loads the model where needed, asks the engine, and words what comes back. */
export async function answer(
  deps: AnswerDependencies,
  request: FastifyRequest,
  reply: FastifyReply,
  body: AnswerRequest,
  shape: AnswerShape,
  /** Makes the engine's request; undefined only loads (or, with keep_alive 0, unloads) the model. */
  call: (variant: StoredVariant, sampling: Record<string, unknown>, engine: EngineSettings) => EngineCall | undefined
): Promise<unknown> {
  const began = process.hrtime.bigint()
  const asked = nameOf(body)
  const model = deps.naming.parse(asked)
  const keepAlive = parseKeepAlive(body.keep_alive)
  const given = parseOptions(body.options)
  const variant = deps.storage.get(model)
  const settings = settingsFor(deps.config, variant)
  const engineCall = call(variant, { ...settings.sampling, ...given.sampling }, settings.engine)
  if (engineCall) {
    engineCall.overflow = overflowOf(given.overflow ?? truncation(body) ?? settings.overflow, reply)
    tellUnheeded(reply, engineCall.body)
  }
  const framing = deps.streams.framingOf(request)
  const answering: Answering = { model: asked, framing }

  if (!engineCall && keepAlive === 0) {
    deps.scheduler.keepAlive(model, 0)
    return only(deps, reply, body, answering, shape, 'unload', { total_duration: 0, load_duration: 0 })
  }
  const signal = clientSignal(reply)
  const lease = { model, options: given.load, keepAlive, signal, loadOnly: !engineCall }
  if (body.stream === false) {
    return await deps.scheduler.withLease(lease, async held => {
      if (!engineCall) return whole(answering, shape, 'load', emptyDelta(), durations(began, held, undefined))
      const delta = await askWhole(held, engineCall)
      return whole(answering, shape, delta.finish ?? 'stop', delta, durations(began, held, delta.counters))
    })
  }
  const stream = deps.streams.open(request, reply, heartbeat(answering, shape))
  const failureEvent = (failure: CorralError) => failureOf(asked, failure)
  return await deps.streams.run(stream, { framing, failureEvent }, request, () =>
    withLeaseInStream(deps.scheduler, lease, stream, async held => {
      const outcome = engineCall
        ? await relay(held, engineCall, stream, answering, shape)
        : { reason: 'load', counters: undefined }
      stream.end(
        deps.streams.frame(framing, {
          model: asked,
          created_at: now(),
          ...shape.last(framing),
          done: true,
          done_reason: outcome.reason,
          ...durations(began, held, outcome.counters)
        })
      )
    })
  )
}

/** On NDJSON a heartbeat must be a valid chunk, because clients parse every line. */
function heartbeat({ model }: Answering, shape: AnswerShape): () => Record<string, unknown> {
  return () => ({ model, created_at: now(), ...shape.fragment(emptyDelta()), done: false })
}

/** The last event of what a model was asked for, when it failed after its stream had begun. */
export function failureOf(model: string, failure: CorralError): Record<string, unknown> {
  return {
    model,
    created_at: now(),
    done: true,
    done_reason: 'error',
    ...failure.details,
    error: failure.message,
    errorCode: failure.status,
    code: failure.code
  }
}

function emptyDelta(): Delta {
  return { content: '', thinking: '', toolCalls: [] }
}

function whole(
  { model }: Answering,
  shape: AnswerShape,
  reason: string,
  delta: Delta,
  counters: Record<string, number>
): Record<string, unknown> {
  return { model, created_at: now(), ...shape.fragment(delta), done: true, done_reason: reason, ...counters }
}

/** A reply of one event, in the framing that the client expects. */
function only(
  deps: AnswerDependencies,
  reply: FastifyReply,
  body: AnswerRequest,
  answering: Answering,
  shape: AnswerShape,
  reason: string,
  counters: Record<string, number>
): unknown {
  if (body.stream === false) return whole(answering, shape, reason, emptyDelta(), counters)
  const event = {
    model: answering.model,
    created_at: now(),
    ...shape.last(answering.framing),
    done: true,
    done_reason: reason,
    ...counters
  }
  // Ollama gives one object of JSON then, whatever "stream" says, and some clients read no other type.
  return reply
    .type(answering.framing === 'ndjson' ? 'application/json' : deps.streams.contentType(answering.framing))
    .header('cache-control', 'no-cache, no-transform')
    .send(deps.streams.frame(answering.framing, event))
}

/** The whole answer. */
async function askWhole(lease: Lease, call: EngineCall): Promise<Delta> {
  const answer = emptyDelta()
  await readAnswer(lease, call, deltas => {
    for (const delta of deltas) {
      answer.content += delta.content
      answer.thinking += delta.thinking
      answer.toolCalls.push(...delta.toolCalls)
      if (delta.logprobs) answer.logprobs = [...(answer.logprobs ?? []), ...delta.logprobs]
      answer.finish ??= delta.finish
      answer.counters = delta.counters ?? answer.counters
    }
    return undefined
  })
  return answer
}

/** Passes the engine's stream on, event by event. @returns why it ended and what it cost */
async function relay(
  lease: Lease,
  call: EngineCall,
  stream: ReplyStream,
  { model, framing }: Answering,
  shape: AnswerShape
): Promise<{ reason: string; counters: Counters | undefined }> {
  const { event: frame } = FRAMES[framing]
  let reason = 'stop'
  let counters: Counters | undefined
  await readAnswer(lease, call, deltas => {
    let out = ''
    for (const delta of deltas) {
      if (delta.promptRead !== undefined) {
        stream.status = progressText({
          phase: 'generating',
          subject: '(reading the prompt)',
          fraction: delta.promptRead
        })
      }
      if (delta.content || delta.thinking || delta.toolCalls.length || delta.logprobs?.length) {
        out += frame({ model, created_at: now(), ...shape.fragment(delta), done: false })
      }
      reason = delta.finish ?? reason
      counters = delta.counters ?? counters
    }
    return out ? stream.write(out) : undefined
  })
  return { reason, counters }
}
