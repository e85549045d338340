import { randomUUID } from 'node:crypto'
import type { FastifyReply } from 'fastify'
import { reportIgnoredTools } from '../../../core/answers/answer-headers.ts'
import { requireCall } from '../../../core/answers/engine-call.ts'
import { eventChannel } from '../../../core/answers/event-channel.ts'
import { type ConfiguredApi, readModelRequest } from '../../../core/answers/model-request.ts'
import type { Question } from '../../../core/answers/question.ts'
import type { RunningAnswers } from '../../../core/answers/running-answers.ts'
import type { Lease } from '../../../core/contracts/leases.ts'
import { invalidRequest } from '../../../core/errors.ts'
import { openaiErrorEvent } from '../../../core/http/openai-error.ts'
import { merged } from '../../../core/system/collections.ts'
import type { Fields, Generation, Planner } from './generation.ts'
import { OpenAiAnswer } from './openai-answer.ts'

export const frame = (event: object) => `data: ${JSON.stringify(event)}\n\n`
export const DONE = 'data: [DONE]\n\n'

export type TextDependencies = ConfiguredApi & { running: RunningAnswers }

export async function answer(deps: TextDependencies, sent: Fields, reply: FastifyReply, plan: Planner) {
  const { caller } = reply.request
  const modelRequest = readModelRequest(deps, sent, caller)
  const generation = plan(sent, modelRequest)
  reportIgnoredTools(reply, generation.ignoredTools ?? [])
  const { body, head } = generation
  const { variant, lease, overflow } = modelRequest
  const id = answerId(head.operation === 'chat' ? 'chatcmpl' : 'cmpl')
  const { controlled, end } = deps.running.begin(id, caller.owner, variant, body.reasoning_control === true)
  const question: Question = {
    operation: head.operation,
    body,
    tools: generation.tools,
    // An engine generates the choices of a request in parallel, each in a slot.
    lease: merged(lease, { slots: head.choices }),
    variant,
    overflow,
    ...(controlled && { controlled }),
    check: lease => requireSlots(lease, generation)
  }
  try {
    if (!generation.stream) {
      const whole = await deps.answers.whole(reply, question, lease => openAnswer(lease, generation, id))
      return whole.whole()
    }
    const { echo: _, ...rest } = head
    let writer = new OpenAiAnswer(merged(rest, { id }))
    const channel = eventChannel(deps.heartbeat(), openaiErrorEvent, () => frame(writer.beat()))
    if (generation.passesBytes) {
      channel.bytes = ({ engine }) => {
        const rename = renameBytes(engine.spec.alias, head.model, id)
        let isFirst = true
        return bytes => {
          const renamed = rename(bytes)
          if (!isFirst) return renamed
          isFirst = false
          return writer.begins() ? renamed : withoutRole(renamed)
        }
      }
    }
    channel.endBytes = usage => {
      // The role was sent with the first bytes.
      writer.begins()
      const last = writer.chunks([{ finish: 'length', usage }])
      return `${last.map(frame).join('')}${lastFrames(writer)}`
    }
    return await deps.answers.stream(reply, question, channel, async lease => {
      const answer = await openAnswer(lease, generation, id, writer)
      writer = answer
      return {
        add: deltas => answer.chunks(deltas).map(frame).join(''),
        end: () => lastFrames(answer)
      }
    })
  } finally {
    end()
  }
}

function lastFrames(answer: OpenAiAnswer): string {
  const last = answer.lastChunk()
  return `${last ? frame(last) : ''}${DONE}`
}

async function openAnswer(lease: Lease, { head }: Generation, id: string, earlier?: OpenAiAnswer) {
  const { echo, ...rest } = head
  if (!echo) return new OpenAiAnswer(merged(rest, { id }), earlier)
  const texts: string[] = []
  for (const prompt of echo) {
    texts.push(typeof prompt === 'string' ? prompt : await requireCall(lease, 'detokenize')(prompt, lease))
  }
  return new OpenAiAnswer({ ...rest, id, echo: texts }, earlier)
}

function requireSlots({ engine: { slots }, variant }: Lease, { head: { choices, bestOf } }: Generation): void {
  if (choices <= slots) return
  const param = bestOf === undefined ? 'n' : 'best_of'
  const message = `"${param}" must be at most ${slots}: the engine of model "${variant.publicName}" has ${slots} slots, and each choice takes one. Request fewer choices, or more slots with num_parallel.`
  throw invalidRequest(param, message)
}

const ID = Buffer.from('"id":"chatcmpl-')
const ID_LENGTH = 32
const QUOTE = 34

/** Generates the id of an answer. The ids of engines have too few random bits to be unique. */
export function answerId(kind: 'chatcmpl' | 'cmpl'): string {
  return `${kind}-${randomUUID().replaceAll('-', '')}`
}

/**
 * Returns a function that replaces the model name and the id in the bytes of a chat stream without parsing it. This is
 * safe because quotes within JSON strings are escaped.
 * @param alias the model name that the engine reports
 * @param model the model name in the request
 * @param id the id of the answer, from `answerId`
 */
export function renameBytes(alias: string, model: string, id: string): (bytes: Buffer) => Buffer {
  const digits = Buffer.from(id.slice(-ID_LENGTH), 'latin1')
  const from = `"model":${JSON.stringify(alias)}`
  const to = `"model":${JSON.stringify(model)}`
  return given => {
    // The engine's ids have the same length, so the new id overwrites them in place.
    for (let at = given.indexOf(ID); at !== -1; at = given.indexOf(ID, at + 1)) {
      const start = at + ID.length
      if (given[start + ID_LENGTH] === QUOTE) given.set(digits, start)
    }
    const renamed = from === to ? given : replaceAll(given, from, to)
    return id.startsWith('cmpl-') ? replaceAll(renamed, ID.toString('latin1'), '"id":"cmpl-') : renamed
  }
}

/** Removes the role from the first events of a stream, because some clients join the roles of all events. */
function withoutRole(bytes: Buffer): Buffer {
  return Buffer.from(bytes.toString('latin1').replace(/("delta":\{)"role":"assistant",?/g, '$1'), 'latin1')
}

/** Both texts are ASCII. Latin-1 maps each byte to one character, so all other bytes stay the same. */
function replaceAll(bytes: Buffer, from: string, to: string): Buffer {
  if (!bytes.includes(from, 0, 'latin1')) return bytes
  return Buffer.from(
    bytes.toString('latin1').replaceAll(from, () => to),
    'latin1'
  )
}
