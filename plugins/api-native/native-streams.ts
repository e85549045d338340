import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Channel } from '../../core/answers/pipeline.ts'
import type { Framing } from '../../core/contracts/native-api.ts'
import type { CorralError } from '../../core/errors.ts'
import { endWithFailure, openReplyStream, type ReplyStream } from '../../core/http/reply-stream.ts'
import { chooseFraming, FRAMES, type StreamType } from './framing.ts'

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
