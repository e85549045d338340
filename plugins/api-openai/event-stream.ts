import type { FastifyReply, FastifyRequest } from 'fastify'
import { endWithFailure, withLeaseInStream } from '../../core/answers/leased-stream.ts'
import type { Lease, LeaseRequest, Scheduler } from '../../core/contracts/scheduler.ts'
import type { CorralError } from '../../core/errors.ts'
import { openReplyStream, type ReplyStream } from '../../core/http/reply-stream.ts'
import { openaiErrorEvent } from './openai-error.ts'

export interface EventStreamDependencies {
  scheduler: Scheduler
  /** Milliseconds of silence after which a waiting stream says what is going on. */
  heartbeat: number
}

/**
 * Answers with events, loading the model first where needed.
 * @param use writes the events and ends the stream
 * @param lastEvent what tells of a failure once the stream has begun
 */
export async function answerInEvents(
  { scheduler, heartbeat }: EventStreamDependencies,
  request: FastifyRequest,
  reply: FastifyReply,
  lease: LeaseRequest,
  use: (lease: Lease, stream: ReplyStream) => Promise<void>,
  lastEvent: (failure: CorralError) => string = openaiErrorEvent
): Promise<void> {
  const stream = openReplyStream(reply, {
    contentType: 'text/event-stream',
    heartbeatInterval: heartbeat,
    heartbeat: status => `: ${status}\n\n`
  })
  await endWithFailure(stream, request.log, lastEvent, () =>
    withLeaseInStream(scheduler, lease, stream, held => use(held, stream))
  )
}
