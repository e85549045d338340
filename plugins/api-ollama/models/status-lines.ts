import type { FastifyReply, FastifyRequest } from 'fastify'
import { clientSignal } from '../../../core/http/client-signal.ts'
import { endWithFailure } from '../../../core/http/leased-stream.ts'
import { openReplyStream } from '../../../core/http/reply-stream.ts'
import type { Tell } from './make-model.ts'

/** Milliseconds. */
const HEARTBEAT = 10_000
const DONE = { status: 'success' }
const lineOf = (value: unknown) => `${JSON.stringify(value)}\n`

/** Answers work as Ollama does: a line of JSON for each thing that is done, `success` last; or that one alone. */
export async function replyWithStatus(
  request: FastifyRequest,
  reply: FastifyReply,
  streamed: boolean,
  work: (signal: AbortSignal, tell: Tell) => Promise<void>
): Promise<unknown> {
  const signal = clientSignal(reply)
  if (!streamed) {
    await work(signal, () => {})
    return DONE
  }
  const stream = openReplyStream(reply, {
    contentType: 'application/x-ndjson',
    heartbeatInterval: HEARTBEAT,
    heartbeat: status => lineOf({ status })
  })
  return await endWithFailure(
    stream,
    request.log,
    failure => lineOf({ ...failure.details, error: failure.message, errorCode: failure.status, code: failure.code }),
    async () => {
      await work(signal, (status, progress) => {
        stream.status = status
        void stream.write(lineOf({ status, ...progress }))
      })
      stream.end(lineOf(DONE))
    }
  )
}
