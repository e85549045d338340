import type { FastifyReply, FastifyRequest } from 'fastify'
import { type ApiDependencies, readModelRequest } from '../../../core/answers/model-request.ts'
import {
  type Channel,
  type Question,
  requireCall,
  streamedAnswer,
  wholeAnswer
} from '../../../core/answers/pipeline.ts'
import type { RunningAnswers } from '../../../core/answers/running-answers.ts'
import type { Lease } from '../../../core/contracts/leases.ts'
import { CorralError } from '../../../core/errors.ts'
import { openaiErrorEvent } from '../../../core/http/openai-error.ts'
import { merged } from '../../../core/system/collections.ts'
import type { Fields, Generation, Planner } from './generation.ts'
import { OpenAiAnswer } from './openai-answer.ts'
import { answerId, renameBytes } from './rename-bytes.ts'

/** Returns the channel for streams of the OpenAI API. */
export function eventChannel(heartbeat: number, failure = openaiErrorEvent): Channel {
  return {
    contentType: 'text/event-stream',
    heartbeatInterval: heartbeat,
    heartbeat: status => `: ${status}\n\n`,
    failure
  }
}

/** Formats an unnamed event, which most routes of the OpenAI API use. */
export const frame = (event: object) => `data: ${JSON.stringify(event)}\n\n`
export const DONE = 'data: [DONE]\n\n'

/** Answers a request with generated text. Loads the model if necessary. */
export async function answer(
  deps: ApiDependencies & { answers: RunningAnswers },
  request: FastifyRequest<{ Body: Fields }>,
  reply: FastifyReply,
  plan: Planner
): Promise<unknown> {
  const modelRequest = readModelRequest(deps, request.body, request.caller)
  const generation = plan(request.body, modelRequest)
  const { body, head } = generation
  const { variant, lease, overflow } = modelRequest
  const id = answerId(head.operation === 'chat' ? 'chatcmpl' : 'cmpl')
  const { controlled, end } = deps.answers.begin(id, request.caller.owner, variant, body.reasoning_control === true)
  const question: Question = {
    operation: head.operation,
    body,
    // An engine generates the choices of a request in parallel, each in a slot.
    lease: merged(lease, { slots: head.choices }),
    variant,
    overflow,
    ...(controlled && { controlled }),
    check: lease => requireSlots(lease, generation)
  }
  try {
    if (!generation.stream) {
      const whole = await wholeAnswer(deps, reply, question, lease => openAnswer(lease, generation, id))
      return whole.whole()
    }
    const channel: Channel = eventChannel(deps.heartbeat())
    if (generation.passesBytes) channel.bytes = ({ engine }) => renameBytes(engine.spec.alias, head.model, id)
    return await streamedAnswer(deps, request, reply, question, channel, async lease => {
      const answer = await openAnswer(lease, generation, id)
      return {
        add: deltas => answer.chunks(deltas).map(frame).join(''),
        end() {
          const last = answer.lastChunk()
          return `${last ? frame(last) : ''}${DONE}`
        }
      }
    })
  } finally {
    end()
  }
}

async function openAnswer(lease: Lease, { head }: Generation, id: string): Promise<OpenAiAnswer> {
  const { echo, ...rest } = head
  if (!echo) return new OpenAiAnswer(merged(rest, { id }))
  const texts: string[] = []
  for (const prompt of echo) {
    texts.push(typeof prompt === 'string' ? prompt : await requireCall(lease, 'detokenize')(prompt, lease))
  }
  return new OpenAiAnswer({ ...rest, id, echo: texts })
}

function requireSlots({ engine: { slots }, variant }: Lease, { head: { choices, bestOf } }: Generation): void {
  if (choices <= slots) return
  const param = bestOf === undefined ? 'n' : 'best_of'
  throw new CorralError(
    'invalid_request',
    `"${param}" must be at most ${slots}: the engine of model "${variant.publicName}" has ${slots} slots, and each choice takes one. Request fewer choices, or more slots with num_parallel.`,
    { param }
  )
}
