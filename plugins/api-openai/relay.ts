import type { FastifyReply, FastifyRequest } from 'fastify'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { clientSignal } from '../../core/http/client-signal.ts'
import { askWithinContext, type Overflow, overflowOf } from '../../core/http/context-overflow.ts'
import { engineError } from '../../core/http/engine-error.ts'
import { askEngine, cutInTheMiddle, forEachChunk, readAll, reasonOf } from '../../core/http/engine-reply.ts'
import { EventLines } from '../../core/http/event-lines.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import { endWithFailure, withLeaseInStream } from '../../core/http/leased-stream.ts'
import { openReplyStream, type ReplyStream } from '../../core/http/reply-stream.ts'
import { settingsFor } from '../../core/model-settings.ts'
import type { Lease, Scheduler, Storage } from '../../core/services.ts'
import { type EngineCall, type EngineFunction, engineBody, type Fields, readCall } from './engine-call.ts'
import { EventBlocks, modelMember, renameModel } from './event-blocks.ts'
import { openaiErrorEvent } from './openai-error.ts'
import { WholeAnswer } from './whole-answer.ts'

const JSON_TYPE = 'application/json; charset=utf-8'

export interface RelayDependencies {
  storage: Storage
  scheduler: Scheduler
  config: CoreConfig
  /** Milliseconds of silence after which a waiting stream says what is going on. */
  heartbeat: number
}

/** A request as it goes to the engine. */
interface Asked {
  call: EngineCall
  target: EngineFunction
  body: Fields
  overflow: Overflow
}

/** Answers a request with the engine's own reply, loading the model first where needed. */
export async function relay(
  deps: RelayDependencies,
  request: FastifyRequest,
  reply: FastifyReply,
  target: EngineFunction
): Promise<unknown> {
  const call = readCall(bodyObject(request.body), target)
  const variant = deps.storage.get(call.model)
  const lease = {
    model: call.model,
    mode: target.mode(variant),
    options: call.load,
    keepAlive: call.keepAlive,
    signal: clientSignal(reply)
  }
  const settings = settingsFor(deps.config, variant)
  const asked: Asked = {
    call,
    target,
    body: engineBody(call, target, settings.sampling),
    overflow: overflowOf(call.overflow ?? settings.overflow, reply)
  }
  if (!call.stream) {
    const whole = await deps.scheduler.withLease(lease, held => askWhole(held, asked))
    return reply.type(whole.type).send(whole.bytes)
  }

  const stream = openReplyStream(reply, {
    contentType: 'text/event-stream',
    heartbeatInterval: deps.heartbeat,
    heartbeat: status => `: ${status}\n\n`
  })
  await endWithFailure(stream, request.log, openaiErrorEvent, () =>
    withLeaseInStream(deps.scheduler, lease, stream, async held => {
      await passOn(held, asked, stream)
      stream.end()
    })
  )
  return undefined
}

/** The engine's answer in one piece, under the name that was asked for. */
async function askWhole(lease: Lease, asked: Asked) {
  const { target, call, body } = asked
  try {
    if (target.generates) return await assemble(lease, asked)
    const response = await askEngine(lease, { path: target.path, body: JSON.stringify(body) })
    const bytes = renameModel(await readAll(response.body), modelMember(lease.engine.spec.alias, call.asked))
    return { bytes, type: String(response.headers['content-type'] ?? JSON_TYPE) }
  } catch (error) {
    throw reasonOf(lease, error)
  }
}

async function assemble(lease: Lease, { target, call, body, overflow }: Asked) {
  const streamed = { ...body, stream: true, stream_options: { include_usage: true } }
  const response = await askWithinContext(lease, { path: target.path, body: streamed }, overflow)
  const lines = new EventLines()
  const answer = new WholeAnswer()
  let done = false
  await forEachChunk(response.body, chunk => {
    for (const payload of lines.push(chunk)) {
      if (payload === '[DONE]') {
        done = true
        continue
      }
      const event = JSON.parse(payload)
      if (event?.error !== undefined) throw engineError(500, payload)
      answer.add(event)
    }
    return undefined
  })
  if (!done) throw cutInTheMiddle(lease)
  return { bytes: JSON.stringify({ ...answer.body(), model: call.asked }), type: JSON_TYPE }
}

/** Passes the engine's events on as they come. Its own failure, or an end without `[DONE]`, is thrown. */
async function passOn(lease: Lease, { target, call, body, overflow }: Asked, stream: ReplyStream): Promise<void> {
  const { alias } = lease.engine.spec
  const blocks = new EventBlocks(modelMember(alias, call.asked))
  let done = false
  try {
    const response = await askWithinContext(lease, { path: target.path, body }, overflow)
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
