import type { FastifyReply, FastifyRequest } from 'fastify'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { clientSignal } from '../../core/http/client-signal.ts'
import { engineError } from '../../core/http/engine-error.ts'
import { askEngine, cutInTheMiddle, forEachChunk, readAll, reasonOf } from '../../core/http/engine-reply.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import { endWithFailure, withLeaseInStream } from '../../core/http/leased-stream.ts'
import { openReplyStream, type ReplyStream } from '../../core/http/reply-stream.ts'
import { settingsFor } from '../../core/model-settings.ts'
import type { Lease, Scheduler, Storage } from '../../core/services.ts'
import { type EngineCall, type EngineFunction, engineBody, readCall } from './engine-call.ts'
import { EventBlocks, modelMember, renameModel } from './event-blocks.ts'
import { openaiErrorEvent } from './openai-error.ts'

export interface RelayDependencies {
  storage: Storage
  scheduler: Scheduler
  config: CoreConfig
  /** Milliseconds of silence after which a waiting stream says what is going on. */
  heartbeat: number
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
  const body = JSON.stringify(engineBody(call, target, settingsFor(deps.config, variant).sampling))
  if (!call.stream) {
    const whole = await deps.scheduler.withLease(lease, held => askWhole(held, target, call, body))
    return reply.type(whole.type).send(whole.bytes)
  }

  const stream = openReplyStream(reply, {
    contentType: 'text/event-stream',
    heartbeatInterval: deps.heartbeat,
    heartbeat: status => `: ${status}\n\n`
  })
  await endWithFailure(stream, request.log, openaiErrorEvent, () =>
    withLeaseInStream(deps.scheduler, lease, stream, async held => {
      await passOn(held, target, call, body, stream)
      stream.end()
    })
  )
  return undefined
}

async function askWhole(lease: Lease, target: EngineFunction, call: EngineCall, body: string) {
  try {
    const response = await askEngine(lease, { path: target.path, body })
    const bytes = renameModel(await readAll(response.body), modelMember(lease.engine.spec.alias, call.asked))
    return { bytes, type: String(response.headers['content-type'] ?? 'application/json; charset=utf-8') }
  } catch (error) {
    throw reasonOf(lease, error)
  }
}

/** Passes the engine's events on as they come. Its own failure, or an end without `[DONE]`, is thrown. */
async function passOn(
  lease: Lease,
  target: EngineFunction,
  call: EngineCall,
  body: string,
  stream: ReplyStream
): Promise<void> {
  const { alias } = lease.engine.spec
  const blocks = new EventBlocks(modelMember(alias, call.asked))
  let done = false
  try {
    const response = await askEngine(lease, { path: target.path, body })
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
