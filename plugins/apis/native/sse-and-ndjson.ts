import type { FastifyReply, FastifyRequest } from 'fastify'
import { type TSchema, Type } from 'typebox'
import type { Channel } from '../../../core/answers/question.ts'
import type { EventStream, EventStreams, Framing } from '../../../core/contracts/native-api.ts'
import { type WorkStep, WorkStepSchema } from '../../../core/contracts/native-records.ts'
import { type Progress, progressText, type Waiting } from '../../../core/contracts/progress.ts'
import type { CorralError } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { workFailureEvent } from '../../../core/http/native-error.ts'
import { endWithFailure, openReplyStream } from '../../../core/http/reply-stream.ts'
import { jsonOrStream, type ResponseSchema, WorkFailureSchema } from '../../../core/http/response-schemas.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { answerFailure, requestedName } from './records.ts'

export const FRAMES = {
  sse: { contentType: 'text/event-stream', event: (value: unknown) => `data: ${JSON.stringify(value)}\n\n` },
  ndjson: { contentType: 'application/x-ndjson', event: (value: unknown) => `${JSON.stringify(value)}\n` }
} as const

const EVENT_INTERVAL_MS = 100

interface Named {
  model?: string | null
  name?: string | null
}

interface StreamSettings {
  negotiate: boolean
  heartbeat: string | number
}

type FailureEvent = (failure: CorralError) => Record<string, unknown>

export class NativeStreams implements EventStreams {
  readonly types: EventStreams['types']
  readonly #defaultFraming: Framing
  readonly #settings: () => StreamSettings

  constructor(defaultFraming: Framing, settings: () => StreamSettings) {
    const { sse, ndjson } = FRAMES
    this.#defaultFraming = defaultFraming
    this.#settings = settings
    this.types = (defaultFraming === 'sse' ? [sse, ndjson] : [ndjson, sse]).map(framing => framing.contentType)
  }

  get heartbeatInterval(): number {
    return parseDuration(this.#settings().heartbeat)!
  }

  framingFor({ headers }: FastifyRequest): Framing {
    const { negotiate } = this.#settings()
    const override = [headers['x-stream-format']].flat()[0]
    return chooseFraming({ accept: headers.accept, override, fallback: this.#defaultFraming, negotiate })
  }

  /** @param idleEvent creates an event without news, as the heartbeat in NDJSON */
  channel(reply: FastifyReply, idleEvent: (status: string) => unknown, failureEvent: FailureEvent): Channel {
    const framing = this.framingFor(reply.request)
    const { contentType, event } = FRAMES[framing]
    reply.vary('Accept')
    return {
      contentType,
      heartbeatInterval: this.heartbeatInterval,
      heartbeat: status => (framing === 'sse' ? `: ${status}\n\n` : event(idleEvent(status))),
      failure: error => event(failureEvent(error))
    }
  }

  async reply(reply: FastifyReply, work: (stream: EventStream) => Promise<unknown>, failureEvent = workFailureEvent) {
    const channel = this.channel(reply, status => ({ status }), failureEvent)
    const { event } = FRAMES[this.framingFor(reply.request)]
    const stream = openReplyStream(reply, channel)
    await endWithFailure(stream, reply.request, channel.failure, async () => {
      const send = (...events: unknown[]) => stream.write(events.map(event).join(''))
      const last = await work(Object.assign(stream, { send }))
      stream.end(last === undefined ? undefined : event(last))
    })
  }

  /**
   * Runs work and replies with its result. In a stream each step is an event and the result is the last one. A failure
   * looks like that of a pull. If the request names a model, it also looks like that of an answer.
   * @param streams whether the reply is a stream if the request does not say it
   */
  async replyToWork(
    reply: FastifyReply,
    body: Named & { stream?: boolean | null },
    work: (waiting: Required<Waiting>) => Promise<Record<string, unknown>>,
    { streams = false, named = body }: { streams?: boolean; named?: Named } = {}
  ): Promise<unknown> {
    const signal = clientSignal(reply)
    if (!(body.stream ?? streams)) return await work({ signal, onProgress: () => undefined })
    const model = requestedName(named)
    const failureEvent = (failure: CorralError) => ({
      ...(model && answerFailure(model, failure)),
      ...workFailureEvent(failure)
    })
    const follow = async (stream: EventStream) => {
      let sent = 0
      let doing = ''
      const onProgress = (progress: Progress) => {
        stream.status = progressText(progress)
        const done = progress.completed !== undefined && progress.completed === progress.total
        const does = `${progress.phase} ${progress.subject} ${progress.step?.number}`
        if (performance.now() - sent < EVENT_INTERVAL_MS && !done && does === doing) return
        doing = does
        sent = performance.now()
        void stream.send(progressEvent(progress))
      }
      return await work({ signal, onProgress })
    }
    await this.reply(reply, follow, failureEvent)
  }

  eventsReply(description: string, whole: TSchema, event: string, item: TSchema): ResponseSchema {
    return jsonOrStream(description, whole, { event, item, types: this.types })
  }

  workReply(description: string, result: TSchema): ResponseSchema {
    const step = Type.Union([result, WorkFailureSchema, WorkStepSchema])
    return this.eventsReply(description, result, 'Steps of the work; the last event is the result', step)
  }
}

function progressEvent({ phase, subject, completed, total, fraction, step }: Progress): WorkStep {
  // A load has no byte counts, so its progress is in hundredths.
  const steps = fraction === undefined ? {} : { completed: Math.round(fraction * 100), total: 100 }
  return {
    status: subject ? `${phase} ${subject}` : phase,
    ...(step && { step: step.number, steps: step.of }),
    ...(completed === undefined || total === undefined ? steps : { completed, total })
  }
}

/**
 * Negotiates the framing of a stream by the `Accept` header (never 406). The default under `/api` is SSE unless the
 * client excludes it or names NDJSON. If NDJSON is the default, as in the Ollama API, `Accept` is ignored, because
 * Ollama ignores it and its clients read NDJSON even if they send `text/event-stream`.
 */
export function chooseFraming({
  accept,
  override,
  fallback,
  negotiate
}: Record<'accept' | 'override', string | undefined> & { fallback: Framing; negotiate: boolean }): Framing {
  const named = override?.trim().toLowerCase()
  if (named === 'sse' || named === 'ndjson') return named
  if (!negotiate || fallback === 'ndjson' || accept === undefined || accept.trim() === '') return fallback
  const types = acceptedTypes(accept)
  const sse = types.get('text/event-stream')
  const ndjson = types.get('application/x-ndjson') ?? 0
  if ((sse ?? 0) > 0 || ndjson > 0) return ndjson > (sse ?? 0) ? 'ndjson' : 'sse'
  const wildcard = types.get('text/*') ?? types.get('*/*') ?? 0
  return sse === undefined && wildcard > 0 ? 'sse' : 'ndjson'
}

function acceptedTypes(accept: string): Map<string, number> {
  const types = new Map<string, number>()
  for (const part of accept.toLowerCase().split(',')) {
    const [type = '', ...parameters] = part.split(';').map(piece => piece.trim())
    const quality = Number(parameters.find(parameter => parameter.startsWith('q='))?.slice(2) ?? 1)
    if (type) types.set(type, Number.isNaN(quality) ? 1 : quality)
  }
  return types
}
