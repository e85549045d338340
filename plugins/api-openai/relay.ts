import type { FastifyReply, FastifyRequest } from 'fastify'
import { askWithinContext, type Overflow, overflowOf } from '../../core/answers/context-overflow.ts'
import { engineError } from '../../core/answers/engine-error.ts'
import { askEngine, cutInTheMiddle, forEachChunk, readAll, reasonOf } from '../../core/answers/engine-reply.ts'
import { EventLines } from '../../core/answers/event-lines.ts'
import { tellUnheeded } from '../../core/answers/unheeded-schema.ts'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { type EffectiveSettings, settingsFor } from '../../core/config/model-settings.ts'
import type { EngineMode } from '../../core/contracts/engines.ts'
import type { Lease } from '../../core/contracts/scheduler.ts'
import type { Storage, StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import { clientSignal } from '../../core/http/client-signal.ts'
import type { ReplyStream } from '../../core/http/reply-stream.ts'
import { type Chunk, ChunkWording, type Wording } from './chunk-wording.ts'
import { bestChoices, type Prompt } from './completion-fields.ts'
import type { EngineCall, Fields } from './engine-call.ts'
import { answerId, EventBlocks, renamed } from './event-blocks.ts'
import { answerInEvents, type EventStreamDependencies } from './event-stream.ts'
import type { Generation } from './generation.ts'
import { inParts, joinParts, type PartedList } from './in-parts.ts'
import { InfillChunks } from './infill-chunks.ts'
import { type Choice, WholeAnswer } from './whole-answer.ts'

export interface RelayDependencies extends EventStreamDependencies {
  storage: Storage
  config: CoreConfig
}

/** What is known of a request before its model is loaded. */
interface Asked {
  generation: Generation
  overflow: Overflow
}

function leaseRequest({ model, load, keepAlive }: EngineCall, mode: EngineMode, reply: FastifyReply) {
  return { model, mode, options: load, keepAlive, signal: clientSignal(reply) }
}

/** Answers a request with text that the engine generates, loading the model first where needed. */
export async function answer(
  deps: RelayDependencies,
  request: FastifyRequest,
  reply: FastifyReply,
  call: EngineCall,
  plan: (call: EngineCall, variant: StoredVariant, settings: EffectiveSettings) => Generation
): Promise<unknown> {
  const variant = deps.storage.get(call.model)
  const settings = settingsFor(deps.config, variant)
  const generation = plan(call, variant, settings)
  tellUnheeded(reply, generation.body)
  // llama-server makes the choices of a request at the same time, each in a slot.
  const lease = { ...leaseRequest(call, 'chat', reply), slots: generation.wording.choices }
  const asked = { generation, overflow: overflowOf(call.overflow ?? settings.overflow, reply) }
  if (!generation.stream) return await deps.scheduler.withLease(lease, held => answerWhole(held, asked))

  return await answerInEvents(deps, request, reply, lease, async (held, stream) => {
    if (generation.passedOn) await passOn(held, asked, stream)
    else await streamWorded(held, asked, stream)
    stream.end()
  })
}

/** What the engine is asked for that it gives in one piece. */
export interface Question {
  mode: EngineMode
  /** The engine's own path. */
  path: string
  body: Fields
  /** Where many things are asked for at once. */
  list?: PartedList
}

/** The engine's reply to a question, loading the model first where needed. */
export async function askOnce(
  deps: RelayDependencies,
  reply: FastifyReply,
  call: EngineCall,
  plan: (variant: StoredVariant) => Question
): Promise<Buffer> {
  const { mode, path, body, list } = plan(deps.storage.get(call.model))
  return await deps.scheduler.withLease(leaseRequest(call, mode, reply), async lease => {
    try {
      const replies: Buffer[] = []
      for (const part of list ? inParts(body, list) : [body]) {
        const asked = JSON.stringify({ ...part, model: call.asked })
        const response = await askEngine(lease, { path, body: asked })
        replies.push(renamed(await readAll(response.body), { model: [lease.engine.spec.alias, call.asked] }))
      }
      return list ? joinParts(replies, list) : replies[0]!
    } catch (error) {
      throw reasonOf(lease, error)
    }
  })
}

/** The engine's answer, put together to one. */
async function answerWhole(lease: Lease, { generation, overflow }: Asked): Promise<Fields> {
  const { bestOf, wording } = generation
  const worded = new ChunkWording(await wordingOf(lease, generation))
  const whole = new WholeAnswer()
  const add = (chunk: Chunk | undefined) => chunk && whole.add(chunk)
  await readChunks(lease, { generation, overflow }, chunks => {
    for (const chunk of chunks) add(worded.word(chunk))
    return undefined
  })
  add(worded.end())
  const choices = whole.choices()
  if (bestOf === undefined) return whole.body(choices)
  const chosen = bestChoices(choices.map(meanLogprob), wording.choices, bestOf)
  return whole.body(
    chosen.map((at, index) => ({
      ...choices[at]!,
      index,
      ...(wording.logprobs === undefined && { logprobs: null })
    }))
  )
}

function meanLogprob({ logprobs }: Choice): number {
  const values = logprobs && 'token_logprobs' in logprobs ? logprobs.token_logprobs : []
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length)
}

/** Passes the engine's events on as they come. Its own failure, or an end without `[DONE]`, is thrown. */
async function passOn(lease: Lease, { generation, overflow }: Asked, stream: ReplyStream): Promise<void> {
  requireSlots(lease, generation)
  const { path, body, wording } = generation
  const blocks = new EventBlocks({
    model: [lease.engine.spec.alias, wording.model],
    id: idFor(path)
  })
  let done = false
  try {
    const response = await askWithinContext(lease, { path, body }, overflow)
    await forEachChunk(response.body, chunk => {
      const block = blocks.push(chunk)
      if (!block) return undefined
      done ||= block.done
      const written = block.bytes.length ? stream.write(block.bytes) : undefined
      if (block.error !== undefined) throw engineError(500, block.error)
      return written
    })
    if (!done) throw cutInTheMiddle(lease)
  } catch (error) {
    throw reasonOf(lease, error)
  }
}

/** Streams the engine's answer in the words of hosted services. */
async function streamWorded(lease: Lease, asked: Asked, stream: ReplyStream): Promise<void> {
  const worded = new ChunkWording(await wordingOf(lease, asked.generation))
  const frame = (chunk: Chunk | undefined) => (chunk ? `data: ${JSON.stringify(chunk)}\n\n` : '')
  await readChunks(lease, asked, chunks => {
    const text = chunks.map(chunk => frame(worded.word(chunk))).join('')
    return text === '' ? undefined : stream.write(text)
  })
  await stream.write(`${frame(worded.end())}data: [DONE]\n\n`)
}

/** Asks the engine and gives the chunks of its answer as they come. */
async function readChunks(
  lease: Lease,
  { generation, overflow }: Asked,
  take: (chunks: Chunk[]) => Promise<void> | undefined
): Promise<void> {
  requireSlots(lease, generation)
  const { path, body, answers } = generation
  const infill = path === '/infill' ? new InfillChunks(answers) : undefined
  const lines = new EventLines()
  let done = false
  try {
    const response = await askWithinContext(lease, { path, body }, overflow)
    await forEachChunk(response.body, part => {
      const chunks: Chunk[] = []
      for (const payload of lines.push(part)) {
        if (payload === '[DONE]') {
          done = true
          continue
        }
        // llama-server begins each further choice with `null`.
        const event = JSON.parse(payload)
        if (event?.error !== undefined) throw engineError(500, payload)
        if (event) chunks.push(infill ? infill.chunk(event) : event)
      }
      return take(chunks)
    })
    if (!done && !infill?.done) throw cutInTheMiddle(lease)
  } catch (error) {
    throw reasonOf(lease, error)
  }
}

function idFor(path: string): string {
  return answerId(path === '/v1/chat/completions' ? 'chatcmpl' : 'cmpl')
}

async function wordingOf(lease: Lease, { path, wording, echo, bestOf }: Generation): Promise<Wording> {
  // Probabilities are what the best answers are chosen by.
  const logprobs = bestOf === undefined ? wording.logprobs : (wording.logprobs ?? 0)
  const worded = { ...wording, id: idFor(path), ...(logprobs !== undefined && { logprobs }) }
  if (!echo) return worded
  const texts: string[] = []
  for (const prompt of echo) texts.push(await textOf(lease, prompt))
  return { ...worded, echo: texts }
}

async function textOf(lease: Lease, prompt: Prompt): Promise<string> {
  if (typeof prompt === 'string') return prompt
  const response = await askEngine(lease, { path: '/detokenize', body: JSON.stringify({ tokens: prompt }) })
  return JSON.parse((await readAll(response.body)).toString('utf8')).content
}

function requireSlots(lease: Lease, { wording, bestOf }: Generation): void {
  const { slots } = lease.engine
  if (wording.choices <= slots) return
  const param = bestOf === undefined ? 'n' : 'best_of'
  throw new CorralError(
    'invalid_request',
    `"${param}" must be ${slots} at most: the engine of model "${lease.variant.publicName}" has so many slots to make choices in. Ask for fewer, or for more slots with num_parallel.`,
    { param }
  )
}
