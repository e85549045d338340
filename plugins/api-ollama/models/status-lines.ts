import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Framing } from '../../../core/contracts/native-api.ts'
import { clientSignal } from '../../../core/http/client-signal.ts'
import { workFailureEvent } from '../../../core/http/native-error.ts'
import { endWithFailure, openReplyStream } from '../../../core/http/reply-stream.ts'
import type { Tell } from './make-model.ts'

/** Milliseconds. */
const HEARTBEAT = 10_000
const DONE = { status: 'success' }

const FRAMES: Record<
  Framing,
  { contentType: string; event(value: object): string; heartbeat(status: string): string }
> = {
  ndjson: {
    contentType: 'application/x-ndjson',
    event: value => `${JSON.stringify(value)}\n`,
    heartbeat: status => `${JSON.stringify({ status })}\n`
  },
  sse: {
    contentType: 'text/event-stream',
    event: value => `data: ${JSON.stringify(value)}\n\n`,
    heartbeat: status => `: ${status}\n\n`
  }
}

/**
 * Answers work as Ollama does: an event for each thing that is done, `success` as the last one; or that one alone.
 * @param framing undefined where the reply is one object
 */
export async function replyWithStatus(
  request: FastifyRequest,
  reply: FastifyReply,
  framing: Framing | undefined,
  work: (signal: AbortSignal, tell: Tell) => Promise<void>
): Promise<unknown> {
  const signal = clientSignal(reply)
  if (!framing) {
    await work(signal, () => {})
    return DONE
  }
  const { contentType, event, heartbeat } = FRAMES[framing]
  reply.vary('Accept')
  const stream = openReplyStream(reply, { contentType, heartbeatInterval: HEARTBEAT, heartbeat })
  return await endWithFailure(
    stream,
    request.log,
    failure => event(workFailureEvent(failure)),
    async () => {
      await work(signal, (status, progress) => {
        stream.status = status
        void stream.write(event({ status, ...progress }))
      })
      stream.end(event(DONE))
    }
  )
}
