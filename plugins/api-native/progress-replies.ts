import type { FastifyReply, FastifyRequest } from 'fastify'
import type { WorkStep } from '../../core/contracts/native-records.ts'
import { type OnProgress, type Progress, progressText } from '../../core/contracts/progress.ts'
import type { CorralError } from '../../core/errors.ts'
import { clientSignal } from '../../core/http/client-signal.ts'
import { workFailureEvent } from '../../core/http/native-error.ts'
import { failureOf, nameOf } from './answer.ts'
import type { NativeStreams } from './native-streams.ts'

/** At most ten progress events a second reach a client. */
const EVENT_INTERVAL = 100

type Work = (signal: AbortSignal, onProgress: OnProgress) => Promise<Record<string, unknown>>

/**
 * How long work that reports progress is answered: streamed, each step is an event and what the work gives is the last
 * one; else that is the reply's only object. A failure in the stream is told in the words of pulls and, where a model is
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
