import type { FastifyReply, FastifyRequest } from 'fastify'
import { checkMedia } from '../../../core/answers/media-parts.ts'
import { type Question, streamedAnswer, wholeAnswer } from '../../../core/answers/pipeline.ts'
import { settingsFor } from '../../../core/config/model-settings.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { parseKeepAlive, parseOptions, topLevelOptions } from '../../../core/models/options.ts'
import { eventChannel, type OpenaiDependencies } from '../answer.ts'
import type { TranscriptionRequest } from './request-schemas.ts'
import { type Task, Transcript, transcriptionFields } from './transcript.ts'

const frame = (event: object) => `data: ${JSON.stringify(event)}\n\n`

/** Answers with what is said in a sound, loading the model first where needed. */
export async function transcribe(
  deps: OpenaiDependencies,
  request: FastifyRequest<{ Body: TranscriptionRequest }>,
  reply: FastifyReply,
  task: Task
): Promise<unknown> {
  const { body } = request
  const model = parseModelName(body.model ?? body.name)
  const variant = deps.catalog.get(model)
  const settings = settingsFor(deps.config, variant)
  const fields = transcriptionFields(body, task)
  const part = { type: 'input_audio', input_audio: { data: fields.audio } }
  checkMedia([{ content: [part] }], variant, settings.engine, () => 'file')
  const options = parseOptions(topLevelOptions(body))
  const question: Question = {
    operation: 'transcribe',
    body: { ...settings.sampling, ...options.sampling, ...fields },
    lease: { model, options: options.load, keepAlive: parseKeepAlive(body.keep_alive) },
    variant,
    overflow: 'error'
  }
  if (!body.stream) {
    const transcript = await wholeAnswer(deps, reply, question, () => new Transcript())
    if (body.response_format !== 'text') return transcript.whole()
    return reply.type('text/plain; charset=utf-8').send(`${transcript.text}\n`)
  }
  return await streamedAnswer(deps, request, reply, question, eventChannel(deps.heartbeat), () => {
    const transcript = new Transcript()
    return {
      add: deltas => transcript.add(deltas).map(frame).join(''),
      end: () => `${frame(transcript.done())}data: [DONE]\n\n`
    }
  })
}
