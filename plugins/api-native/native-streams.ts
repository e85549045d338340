import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Channel } from '../../core/answers/pipeline.ts'
import type { Framing } from '../../core/contracts/native-api.ts'
import type { WorkStep } from '../../core/contracts/native-records.ts'
import { type OnProgress, type Progress, progressText } from '../../core/contracts/progress.ts'
import type { CorralError } from '../../core/errors.ts'
import { clientSignal } from '../../core/http/client-signal.ts'
import { workFailureEvent } from '../../core/http/native-error.ts'
import { endWithFailure, openReplyStream, type ReplyStream } from '../../core/http/reply-stream.ts'
import { failureOf, nameOf } from './records.ts'

/** Opens streams in the framing that a request asks for, and ends them properly whatever happens. */
export interface NativeStreams {
  /** Types of streams that there are, the default one first. */
  types: readonly StreamType[]
  framingOf(request: FastifyRequest): Framing
  contentType(framing: Framing): string
  frame(framing: Framing, event: unknown): string
  /** How an answer is streamed, see `open`. */
  channel(
    request: FastifyRequest,
    reply: FastifyReply,
    idleEvent: (status: string) => unknown,
    failureEvent: (failure: CorralError) => Record<string, unknown>
  ): Channel
  /** @param idleEvent makes a valid event that says nothing new, for NDJSON's heartbeats */
  open(request: FastifyRequest, reply: FastifyReply, idleEvent: (status: string) => unknown): ReplyStream
  /** Runs `work`; its failure is a status code while nothing is sent, and an event in the stream after that. */
  run(
    stream: ReplyStream,
    told: { framing: Framing; failureEvent: (failure: CorralError) => Record<string, unknown> },
    request: FastifyRequest,
    work: () => Promise<void>
  ): Promise<void>
}

export function createNativeStreams(options: {
  defaultFraming: Framing
  negotiate: boolean
  /** Milliseconds. */
  heartbeat: number
}): NativeStreams {
  const framingOf = (request: FastifyRequest) => {
    const override = request.headers['x-stream-format']
    return chooseFraming({
      accept: request.headers.accept,
      override: Array.isArray(override) ? override[0] : override,
      fallback: options.defaultFraming,
      negotiate: options.negotiate
    })
  }
  const { sse, ndjson } = FRAMES
  const channel: NativeStreams['channel'] = (request, reply, idleEvent, failureEvent) => {
    const framing = framingOf(request)
    reply.vary('Accept')
    return {
      contentType: FRAMES[framing].contentType,
      heartbeatInterval: options.heartbeat,
      heartbeat: status => (framing === 'sse' ? `: ${status}\n\n` : FRAMES.ndjson.event(idleEvent(status))),
      failure: error => FRAMES[framing].event(failureEvent(error))
    }
  }
  return {
    types: (options.defaultFraming === 'sse' ? [sse, ndjson] : [ndjson, sse]).map(({ contentType }) => contentType),
    framingOf,
    contentType: framing => FRAMES[framing].contentType,
    frame: (framing, event) => FRAMES[framing].event(event),
    channel,
    open: (request, reply, idleEvent) =>
      openReplyStream(
        reply,
        channel(request, reply, idleEvent, () => ({}))
      ),
    run: (stream, { framing, failureEvent }, request, work) =>
      endWithFailure(stream, request.log, failure => FRAMES[framing].event(failureEvent(failure)), work)
  }
}

interface FramingRequest {
  accept: string | undefined
  /** The header `X-Stream-Format`. */
  override: string | undefined
  /** What the mount point gives to those who do not say. */
  fallback: Framing
  /** Whether `Accept` counts at all. */
  negotiate: boolean
}

function acceptedTypes(accept: string): Map<string, number> {
  const types = new Map<string, number>()
  for (const part of accept.toLowerCase().split(',')) {
    const [type = '', ...parameters] = part.split(';').map(piece => piece.trim())
    if (!type) continue
    const quality = parameters.find(parameter => parameter.startsWith('q='))
    const value = quality === undefined ? 1 : Number(quality.slice(2))
    types.set(type, Number.isNaN(value) ? 1 : value)
  }
  return types
}

/**
 * The framing of a stream, by ordinary `Accept` negotiation (never 406). On `/api` it is SSE unless the client rules
 * that out or names NDJSON; where NDJSON is the default it is NDJSON unless the client names `text/event-stream`.
 */
export function chooseFraming({ accept, override, fallback, negotiate }: FramingRequest): Framing {
  const asked = override?.trim().toLowerCase()
  if (asked === 'sse' || asked === 'ndjson') return asked
  if (!negotiate || accept === undefined || accept.trim() === '') return fallback
  const types = acceptedTypes(accept)
  const sse = types.get('text/event-stream')
  const ndjson = types.get('application/x-ndjson')
  if (sse !== undefined || ndjson !== undefined) {
    if ((sse ?? 0) > 0 || (ndjson ?? 0) > 0) return (ndjson ?? 0) > (sse ?? 0) ? 'ndjson' : 'sse'
  }
  if (fallback === 'ndjson') return 'ndjson'
  const wildcard = types.get('text/*') ?? types.get('*/*') ?? 0
  return sse === undefined && wildcard > 0 ? 'sse' : 'ndjson'
}

export type StreamType = 'text/event-stream' | 'application/x-ndjson'

/** How each framing looks on the wire. */
export const FRAMES: Record<Framing, { contentType: StreamType; event: (value: unknown) => string }> = {
  sse: { contentType: 'text/event-stream', event: value => `data: ${JSON.stringify(value)}\n\n` },
  ndjson: { contentType: 'application/x-ndjson', event: value => `${JSON.stringify(value)}\n` }
}

/** At most ten progress events a second reach a client. */
const EVENT_INTERVAL = 100

type Work = (signal: AbortSignal, onProgress: OnProgress) => Promise<Record<string, unknown>>

/**
 * How long work that reports progress is answered: streamed, each step is an event and what the work gives is the last
 * one; else that is the reply's only object. A failure in the stream has the shape of a failed pull's and, where a model is
 * worked on, of answers too.
 */
export function progressReplies(streams: NativeStreams) {
  return async (
    request: FastifyRequest,
    reply: FastifyReply,
    body: { model?: string | null; name?: string | null; stream?: boolean | null },
    work: Work
  ): Promise<unknown> => {
    const signal = clientSignal(reply)
    if (!body.stream) return await work(signal, () => undefined)
    const framing = streams.framingOf(request)
    const stream = streams.open(request, reply, status => ({ status }))
    let sent = 0
    let doing = ''
    const onProgress = (progress: Progress) => {
      stream.status = progressText(progress)
      const done = progress.completed !== undefined && progress.completed === progress.total
      const does = `${progress.phase} ${progress.subject} ${progress.step?.number}`
      if (Date.now() - sent < EVENT_INTERVAL && !done && does === doing) return
      doing = does
      sent = Date.now()
      void stream.write(streams.frame(framing, progressEvent(progress)))
    }
    const model = nameOf(body)
    const failureEvent = (failure: CorralError) => ({
      ...(model && failureOf(model, failure)),
      ...workFailureEvent(failure)
    })
    await streams.run(stream, { framing, failureEvent }, request, async () => {
      const last = await work(signal, onProgress)
      stream.end(streams.frame(framing, last))
    })
  }
}

function progressEvent(progress: Progress): WorkStep {
  const { phase, subject, completed, total, fraction, step } = progress
  // A load has no bytes to count; a hundred steps tell clients the same.
  const steps = fraction === undefined ? {} : { completed: Math.round(fraction * 100), total: 100 }
  return {
    status: subject ? `${phase} ${subject}` : phase,
    ...(step && { step: step.number, steps: step.of }),
    ...(completed === undefined || total === undefined ? steps : { completed, total })
  }
}
