import type { FastifyReply, FastifyRequest } from 'fastify'
import {
  type AnswerDependencies,
  type AnswerWriter,
  askOnce,
  type Channel,
  callOf,
  type ModelLease,
  type Question,
  streamedAnswer,
  wholeAnswer
} from '../../core/answers/pipeline.ts'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { type EffectiveSettings, settingsFor } from '../../core/config/model-settings.ts'
import type { Delta, EngineFields, EngineMode } from '../../core/contracts/engines.ts'
import type { Operation } from '../../core/contracts/hooks.ts'
import type { Lease } from '../../core/contracts/leases.ts'
import type { Catalog, Model } from '../../core/contracts/models.ts'
import { CorralError } from '../../core/errors.ts'
import { answerId, renameBytes } from './byte-names.ts'
import { type Choice, type Chunk, ChunkWriter, WholeAnswer } from './chunks.ts'
import type { EngineCall } from './engine-call.ts'
import { bestChoices, type Generation } from './generation.ts'
import { openaiErrorEvent } from './openai-error.ts'

export interface OpenaiDependencies extends AnswerDependencies {
  catalog: Catalog
  config: CoreConfig
  /** Milliseconds of silence after which a waiting stream says what is going on. */
  heartbeat: number
}

/** How streams of this surface are sent. */
export function eventChannel(heartbeat: number, failure = openaiErrorEvent): Channel {
  return {
    contentType: 'text/event-stream',
    heartbeatInterval: heartbeat,
    heartbeat: status => `: ${status}\n\n`,
    failure
  }
}

/** Answers a request with text that the engine generates, loading the model first where needed. */
export async function answer(
  deps: OpenaiDependencies,
  request: FastifyRequest,
  reply: FastifyReply,
  call: EngineCall,
  plan: (call: EngineCall, variant: Model, settings: EffectiveSettings) => Generation
): Promise<unknown> {
  const variant = deps.catalog.get(call.model)
  const settings = settingsFor(deps.config, variant)
  const generation = plan(call, variant, settings)
  const { operation, body, head } = generation
  const id = answerId(operation === 'chat' ? 'chatcmpl' : 'cmpl')
  const question: Question = {
    operation,
    body,
    // An engine makes the choices of a request at the same time, each in a slot.
    lease: { model: call.model, options: call.load, keepAlive: call.keepAlive, slots: head.choices },
    variant,
    overflow: call.overflow ?? settings.overflow,
    check: lease => requireSlots(lease, generation)
  }
  if (!generation.stream) {
    const whole = await wholeAnswer(deps, reply, question, lease => openWhole(lease, generation, id))
    return whole.body()
  }
  const channel: Channel = {
    ...eventChannel(deps.heartbeat),
    ...(generation.passesBytes && {
      bytes: ({ engine }: Lease) => renameBytes(engine.spec.alias, head.model, id)
    })
  }
  return await streamedAnswer(deps, request, reply, question, channel, lease => openStream(lease, generation, id))
}

const frame = (chunk: Chunk) => `data: ${JSON.stringify(chunk)}\n\n`

async function openStream(lease: Lease, generation: Generation, id: string): Promise<AnswerWriter> {
  const chunks = await chunkWriter(lease, generation, id)
  return {
    add: deltas => chunks.add(deltas).map(frame).join(''),
    end() {
      const last = chunks.end()
      return `${last ? frame(last) : ''}data: [DONE]\n\n`
    }
  }
}

/** The engine's answer, put together to one. */
async function openWhole(lease: Lease, generation: Generation, id: string) {
  const chunks = await chunkWriter(lease, generation, id)
  const whole = new WholeAnswer()
  return {
    add(deltas: readonly Delta[]) {
      for (const chunk of chunks.add(deltas)) whole.add(chunk)
    },
    body() {
      const last = chunks.end()
      if (last) whole.add(last)
      const { bestOf, head } = generation
      const choices = whole.choices()
      if (bestOf === undefined) return whole.body(choices)
      const chosen = bestChoices(choices.map(meanLogprob), head.choices, bestOf)
      return whole.body(
        chosen.map((at, index) => ({
          ...choices[at]!,
          index,
          ...(head.logprobs === undefined && { logprobs: null })
        }))
      )
    }
  }
}

function meanLogprob({ logprobs }: Choice): number {
  const values = logprobs && 'token_logprobs' in logprobs ? logprobs.token_logprobs : []
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length)
}

async function chunkWriter(lease: Lease, { operation, head, echo, bestOf }: Generation, id: string) {
  const object = operation === 'chat' ? 'chat.completion.chunk' : 'text_completion'
  // Probabilities are what the best answers are chosen by.
  const logprobs = bestOf === undefined ? head.logprobs : (head.logprobs ?? 0)
  const texts: string[] = []
  for (const prompt of echo ?? []) {
    texts.push(typeof prompt === 'string' ? prompt : await callOf(lease, 'detokenize')(prompt, lease))
  }
  return new ChunkWriter({
    ...head,
    object,
    id,
    ...(logprobs !== undefined && { logprobs }),
    ...(echo && { echo: texts })
  })
}

function requireSlots(lease: Lease, { head, bestOf }: Generation): void {
  const { slots } = lease.engine
  if (head.choices <= slots) return
  const param = bestOf === undefined ? 'n' : 'best_of'
  throw new CorralError(
    'invalid_request',
    `"${param}" must be ${slots} at most: the engine of model "${lease.variant.publicName}" has so many slots to make choices in. Ask for fewer, or for more slots with num_parallel.`,
    { param }
  )
}

/** Asks for something that comes in one piece, loading the model first where needed. */
export async function askModel<Reply, Body extends EngineFields>(
  deps: OpenaiDependencies,
  reply: FastifyReply,
  call: EngineCall,
  { operation, body, mode }: { operation: Operation; body: Body; mode: EngineMode },
  use: (lease: Lease, body: Body) => Promise<Reply>
): Promise<Reply> {
  const lease: ModelLease = { model: call.model, mode, options: call.load, keepAlive: call.keepAlive }
  return await askOnce(deps, reply, { operation, body, lease }, use)
}
