import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Delta } from '../../../core/answers/engine-answer.ts'
import { checkMedia } from '../../../core/answers/media-parts.ts'
import { readAnswer } from '../../../core/answers/read-answer.ts'
import { settingsFor } from '../../../core/config/model-settings.ts'
import { clientSignal } from '../../../core/http/client-signal.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { parseKeepAlive, parseOptions, topLevelOptions } from '../../../core/models/options.ts'
import { answerInEvents } from '../event-stream.ts'
import type { RelayDependencies } from '../relay.ts'
import type { TranscriptionRequest } from './request-schemas.ts'
import { type Task, Transcript, transcriptionChat } from './transcript.ts'

const frame = (event: object) => `data: ${JSON.stringify(event)}\n\n`

/** Answers with what is said in a sound, loading the model first where needed. */
export async function transcribe(
  deps: RelayDependencies,
  request: FastifyRequest<{ Body: TranscriptionRequest }>,
  reply: FastifyReply,
  task: Task
): Promise<unknown> {
  const { body } = request
  const model = parseModelName(body.model ?? body.name)
  const variant = deps.storage.get(model)
  const settings = settingsFor(deps.config, variant)
  const { messages, ...fields } = transcriptionChat(body, variant, task)
  checkMedia(messages, variant, settings.engine, () => 'file')
  const options = parseOptions(topLevelOptions(body))
  const chat = { ...settings.sampling, ...options.sampling, ...fields, messages }
  const call = { path: '/v1/chat/completions', body: chat }
  const keepAlive = parseKeepAlive(body.keep_alive)
  const lease = { model, options: options.load, keepAlive, signal: clientSignal(reply) }

  if (!body.stream) {
    const transcript = await deps.scheduler.withLease(lease, async held => {
      const made = new Transcript()
      await readAnswer(held, call, deltas => void eventsOf(made, deltas))
      return made
    })
    if (body.response_format !== 'text') return transcript.whole()
    return reply.type('text/plain; charset=utf-8').send(`${transcript.text}\n`)
  }
  return await answerInEvents(deps, request, reply, lease, async (held, stream) => {
    const transcript = new Transcript()
    await readAnswer(held, call, deltas => {
      const events = eventsOf(transcript, deltas)
      return events.length > 0 ? stream.write(events.map(frame).join('')) : undefined
    })
    stream.end(`${frame(transcript.done())}data: [DONE]\n\n`)
  })
}

function eventsOf(transcript: Transcript, deltas: Delta[]): object[] {
  return deltas.map(delta => transcript.add(delta)).filter(event => event !== undefined)
}
