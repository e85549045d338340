import type { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { logFailure } from '../../core/application.ts'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { CorralError } from '../../core/errors.ts'
import { ClientGone, clientSignal } from '../../core/http/client-signal.ts'
import { engineError } from '../../core/http/engine-error.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import { toCorralError } from '../../core/http/native-error.ts'
import { openReplyStream, type ReplyStream } from '../../core/http/reply-stream.ts'
import { settingsFor } from '../../core/model-settings.ts'
import { progressText } from '../../core/progress.ts'
import type { EngineResponse, Lease, Scheduler, Storage } from '../../core/services.ts'
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
  try {
    await deps.scheduler.withLease(
      {
        ...lease,
        onProgress: progress => {
          stream.status = progressText(progress)
        },
        mayRetry: () => !stream.written
      },
      async held => {
        stream.status = 'generating'
        await passOn(held, target, call, body, stream)
      }
    )
    stream.end()
  } catch (error) {
    if (!stream.committed) throw error
    if (error instanceof ClientGone) return undefined
    const failure = toCorralError(error)
    logFailure(failure, request.log)
    stream.end(openaiErrorEvent(failure))
  }
  return undefined
}

async function ask(lease: Lease, target: EngineFunction, body: string): Promise<EngineResponse> {
  const response = await lease.engine.request({ method: 'POST', path: target.path, body, signal: lease.signal })
  if (response.status < 400) return response
  throw engineError(response.status, (await readAll(response)).toString('utf8'))
}

async function readAll({ body }: EngineResponse): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of body) chunks.push(chunk)
  return Buffer.concat(chunks)
}

async function askWhole(lease: Lease, target: EngineFunction, call: EngineCall, body: string) {
  try {
    const response = await ask(lease, target, body)
    const bytes = renameModel(await readAll(response), modelMember(lease.engine.spec.alias, call.asked))
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
    const response = await ask(lease, target, body)
    await forEachChunk(response.body, chunk => {
      const block = blocks.push(chunk)
      if (!block) return undefined
      done ||= block.done
      const written = block.bytes.length ? stream.write(block.bytes) : undefined
      if (block.error !== undefined) throw engineError(500, block.error)
      return written
    })
    if (!done) {
      throw new CorralError(
        'engine_crashed',
        `The engine of model "${alias}" ended its answer in the middle. Send the request again.`
      )
    }
  } catch (error) {
    throw reasonOf(lease, error)
  }
}

/**
 * Calls `take` with each chunk as it comes, and waits for what it returns before the next one; a failure of it ends the
 * stream. An answer has hundreds of chunks, and iterating over them would cost a good part of all there is to do.
 */
function forEachChunk(body: Readable, take: (chunk: Buffer) => Promise<void> | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    body.on('data', chunk => {
      try {
        const wait = take(chunk)
        if (!wait) return
        body.pause()
        void wait.then(() => body.resume())
      } catch (error) {
        reject(error)
        body.destroy()
      }
    })
    body.once('end', resolve)
    body.once('error', reject)
    body.once('close', () => reject(new Error('The answer was cut off.')))
  })
}

/** Why an answer was cut: what took the engine or the client away explains more than the broken connection. */
function reasonOf(lease: Lease, error: unknown): unknown {
  return lease.signal.aborted ? lease.signal.reason : error
}
