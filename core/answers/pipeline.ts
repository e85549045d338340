import type { FastifyReply } from 'fastify'
import type { AnswerStream, AnswerTaker, PassedQuestion } from '../contracts/answers.ts'
import type { AnswerSink, Delta, EngineFields, TokenUsage } from '../contracts/engines.ts'
import type { Lease } from '../contracts/leases.ts'
import { type Progress, progressText } from '../contracts/progress.ts'
import { invalidRequest } from '../errors.ts'
import { ClientDisconnected, clientSignal } from '../http/client-disconnect.ts'
import { logFailure, toCorralError } from '../http/native-error.ts'
import { endWithFailure, openReplyStream, type ReplyStream, runSendHooks } from '../http/reply-stream.ts'
import { catalogFor } from '../models/allowed-models.ts'
import { merged } from '../system/collections.ts'
import { isObject } from '../system/json-object.ts'
import { admit, hookedRequest, type Prepared, prepare, readFiles, withGrantedLease } from './admission.ts'
import { followHeaders, STOPPED } from './answer-headers.ts'
import { hasFiles } from './documents.ts'
import { ask, byteCall, countAborted, generate, reasonOf, requireCall, tokensIn } from './engine-call.ts'
import { passedFields, withModelDefaults } from './engine-fields.ts'
import { eventChannel } from './event-channel.ts'
import { type AnswerDependencies, readModelRequest } from './model-request.ts'
import { withHostTools } from './offered-tools.ts'
import type { Answers, Preparation, Question, ResultEncoder } from './question.ts'
import { withReadableMedia } from './readable-media.ts'
import { modelLimits } from './request-limits.ts'

/*
 * Runs requests to models: an API describes what it asks (Question) and how it writes deltas (AnswerWriter). `Answers`
 * says what these functions do.
 */

const wholeAnswer =
  (deps: AnswerDependencies): Answers['whole'] =>
  async (reply, asked, open) => {
    const signal = clientSignal(reply)
    const tooled = await withHostTools(deps, reply, merged(asked, { whole: true }), signal)
    const prepared = await prepare(deps, reply, await admit(deps, reply, tooled, asked.variant), signal)
    return await withGrantedLease(deps, reply, prepared, {}, async lease => {
      const taker = await opened(tooled, () => open(lease, preparation(deps, lease, prepared, reply)))
      const onLoop = () => void reply.header(STOPPED, 'repeats')
      await generate(deps, lease, withBody(prepared, taker), reply, deltas => void taker.add(deltas), onLoop)
      return taker
    })
  }

const streamedAnswer =
  (deps: AnswerDependencies): Answers['stream'] =>
  async (reply, asked, channel, open) => {
    const resumable = reply.server.resumable.begin(reply)
    const signal = resumable?.signal ?? clientSignal(reply)
    const tooled = await withHostTools(deps, reply, asked, signal)
    const admitted = await admit(deps, reply, tooled, asked.variant)
    // Reading files can take longer than the first event may. Without files, hooks can still refuse with a status code.
    const early = hasFiles(admitted.body) ? undefined : await prepare(deps, reply, admitted, signal)
    // A resumable stream sends its headers as soon as it starts.
    if (resumable) await runSendHooks(reply)
    const headers = followHeaders(reply)
    const heartbeat = (status: string) => {
      headers.noteSent()
      return channel.heartbeat(status)
    }
    const options = { ...channel, heartbeat }
    const stream = resumable?.open(options) ?? openReplyStream(reply, options)
    const lateComments = () => (channel.contentType.startsWith('text/event-stream') ? headers.lateComments() : '')
    const write = (piece: string | Buffer) => {
      const late = stream.written ? '' : lateComments()
      if (late) void stream.write(late)
      return stream.write(piece)
    }
    const waiting = {
      ...(resumable && { resumable: true }),
      onProgress: (progress: Progress) => {
        stream.status = progressText(progress)
      },
      mayRetry: () => !stream.written
    }
    const answer = async () => {
      if (!early) stream.status = 'reading files'
      const prepared = early ?? (await prepare(deps, reply, admitted, signal))
      const { question, hooked } = prepared
      const last = await withGrantedLease(deps, reply, prepared, waiting, async leased => {
        stream.status = 'generating'
        const onLoop = () => void reply.header(STOPPED, 'repeats')
        const isPlain = hooked && !question.session && !deps.hooks.hasEventFilters(hooked)
        const inBytes = isPlain ? byteCall(leased.engine, question) : undefined
        if (channel.bytes && inBytes) {
          const rewrite = channel.bytes(leased)
          const take = (bytes: Buffer) => write(rewrite(bytes))
          const end = (usage: TokenUsage) => {
            onLoop()
            return Buffer.from(`${lateComments()}${channel.endBytes?.(usage) ?? ''}`)
          }
          await ask(deps, leased, question, reply, inBytes, take, end)
          return undefined
        }
        const writer = await opened(tooled, () => open(leased, preparation(deps, leased, prepared, reply)))
        const begun = writer.body === undefined || question.session?.hasRun ? undefined : writer.add([])
        if (begun) await write(begun)
        const take = (deltas: readonly Delta[]) => {
          sayReading(stream, deltas[0])
          const text = writer.add(deltas)
          return text ? write(text) : undefined
        }
        await generate(deps, leased, withBody(prepared, writer), reply, take, onLoop)
        return writer
      })
      stream.end(last && `${lateComments()}${last.end()}`)
    }
    await endWithFailure(stream, reply.request, channel.failure, answer, channel.failsInStream)
  }

/** The taker of an answer: a new one for each attempt, until tools have run. */
async function opened<Taker>({ session }: Question, open: () => Taker | Promise<Taker>): Promise<Taker> {
  return session ? await session.open(open) : await open()
}

function preparation(deps: AnswerDependencies, lease: Lease, prepared: Prepared, reply: FastifyReply): Preparation {
  const { tokens } = reply.request.record
  return {
    body: prepared.question.body!,
    window: prepared.question.growth?.most ?? lease.engine.contextSize,
    async count(body) {
      try {
        return await withReadableMedia(lease, body, async each => await lease.engine.countTokens?.(each, lease))
      } catch (error) {
        throw reasonOf(deps, reply, lease, error)
      }
    },
    async ask(body, take) {
      const { question, ...rest } = withBody(prepared, { body })
      const plain = { ...rest, question: merged(question, { session: undefined }) }
      await generate(deps, lease, plain, reply, deltas => void take(deltas))
      tokens.another()
    }
  }
}

/** The request with the taker's body, if it has one. Without any body nothing is asked. */
function withBody({ question, hooked, signal }: Prepared, { body }: AnswerTaker): Prepared {
  return { question: body ? merged(question, { body }) : question, hooked: body === false ? undefined : hooked, signal }
}

/** Passes deltas to a plugin that writes its own reply. @throws CorralError if the answer fails or is incomplete */
async function passedAnswer(deps: AnswerDependencies, reply: FastifyReply, asked: Question, take: AnswerSink['take']) {
  const signal = clientSignal(reply)
  const tooled = await withHostTools(deps, reply, asked, signal)
  const prepared = await prepare(deps, reply, await admit(deps, reply, tooled, asked.variant), signal)
  let begun = false
  await withGrantedLease(deps, reply, prepared, { mayRetry: () => !begun }, lease =>
    generate(deps, lease, prepared, reply, deltas => {
      begun = true
      return take(deltas)
    })
  )
}

/** Binary replies have no heartbeats. */
const NO_HEARTBEAT = { heartbeatInterval: 2 ** 31 - 1, heartbeat: () => '' }

const operationAnswer =
  (deps: AnswerDependencies): Answers['result'] =>
  async (reply, asked, encode) => {
    const result: Record<string, unknown> = {}
    let stream: ReplyStream | undefined
    let encoder: ResultEncoder | undefined
    const write = async (piece: Uint8Array | string | undefined, contentType: string) => {
      if (!piece?.length) return
      stream ??= openReplyStream(reply, { ...NO_HEARTBEAT, contentType })
      await stream.write(piece)
    }
    try {
      await passedAnswer(deps, reply, asked, async deltas => {
        encoder ??= await encode?.()
        for (const delta of deltas) {
          const { json, bytes, type = bytes ? 'application/octet-stream' : 'text/plain; charset=utf-8' } = delta
          Object.assign(result, json)
          if (encoder) await write(encoder.add(delta), encoder.type)
          else await write(bytes ?? delta.content, type)
        }
      })
      if (encoder) await write(encoder.end(), encoder.type)
    } catch (error) {
      if (!stream?.committed) throw error
      const failure = toCorralError(error)
      if (!(error instanceof ClientDisconnected)) {
        reply.request.record.failure = failure
        logFailure(failure, reply.log)
      }
      reply.raw.destroy()
      return undefined
    }
    if (!stream) return result
    stream.end()
    return undefined
  }

const askOnce =
  (deps: AnswerDependencies): Answers['once'] =>
  async (reply, asked, use) => {
    const signal = clientSignal(reply)
    const { record, caller } = reply.request
    const variant = catalogFor(deps.catalog, caller).get(asked.lease.model)
    const admitted = await admit(deps, reply, asked, variant)
    const question = await readFiles(deps, reply, admitted, variant, signal)
    const { operation, body, lease } = question
    const hooked = lease.loadOnly ? undefined : hookedRequest(deps, operation, body, lease, reply, signal)
    if (hooked) await deps.hooks.request(hooked)
    return await withGrantedLease(deps, reply, { question, hooked, signal }, {}, async leased => {
      record.hold()
      try {
        return await use(leased, body, record.tokens)
      } catch (error) {
        const { unread } = record.tokens
        if (unread) countAborted(reply, leased, signal => tokensIn(leased.engine, unread, signal))
        throw reasonOf(deps, reply, leased, error)
      } finally {
        record.answered = performance.now()
        record.release()
      }
    })
  }

const askPrompt =
  (deps: AnswerDependencies): Answers['prompt'] =>
  async (reply, name, { body, lease }) => {
    const variant = catalogFor(deps.catalog, reply.request.caller).get(lease.model)
    // The prompt of a conversation contains the tools that an answer to it would be offered.
    const chat: Question = { operation: 'chat', body, lease, variant, overflow: 'error' }
    const whole = body.messages ? (await withHostTools(deps, reply, chat, clientSignal(reply))).body! : body
    return await askOnce(deps)(reply, { operation: 'tokens', body: whole, lease }, async (leased, prompt) => {
      const call = requireCall<'tokenize' | 'countTokens' | 'applyTemplate'>(leased, name)
      return (await withReadableMedia(leased, prompt, async each => await call(each, leased))) as never
    })
  }

function sayReading(stream: ReplyStream, delta: Delta | undefined): void {
  if (!delta?.reading) return
  const { tokens, total } = delta.reading
  const fraction = tokens / Math.max(1, total)
  stream.status = progressText({ phase: 'generating', subject: '(processing the prompt)', fraction })
}

/** Fields that choose the model or the form of the reply, and that engines do not get. */
const NOT_FOR_ENGINES = ['model', 'name', 'stream', 'stream_options', 'keep_alive', 'options']

/** Milliseconds of silence after which a plugin's stream sends a heartbeat. */
const HEARTBEAT_MS = 10_000

/** @param render takes the deltas, or says how to stream them. If absent, the reply is the result of the operation */
export async function answerForPlugin(
  deps: AnswerDependencies,
  reply: FastifyReply,
  { operation, body }: PassedQuestion,
  render?: AnswerSink['take'] | AnswerStream
): Promise<Record<string, unknown> | undefined> {
  const { variant, overflow, lease, sampling, options } = readModelRequest(deps, body, reply.request.caller)
  const isText = operation === 'chat' || operation === 'completion'
  const fields: EngineFields = { ...(isText && sampling), ...passedFields(body, options, NOT_FOR_ENGINES) }
  if (operation === 'chat') {
    const { messages } = fields
    if (!Array.isArray(messages) || !messages.every(isObject)) {
      throw invalidRequest('messages', '"messages" must be a list of messages.')
    }
    fields.messages = withModelDefaults(messages, variant.defaults)
  }
  const question: Question = { operation, body: fields, lease, variant, overflow }
  if (!render) return await operationAnswer(deps)(reply, question)
  if (typeof render === 'function') await passedAnswer(deps, reply, question, render)
  else {
    const channel = { ...eventChannel(HEARTBEAT_MS, render.failure, render.activity), ...render }
    await streamedAnswer(deps)(reply, question, channel, () => render.open())
  }
  return undefined
}

/** Creates the service by which all APIs, built-in or not, let models answer. */
export function createAnswers(deps: AnswerDependencies): Answers {
  return {
    read: (body, caller) => readModelRequest(deps, body, caller),
    whole: wholeAnswer(deps),
    stream: streamedAnswer(deps),
    once: askOnce(deps),
    prompt: askPrompt(deps),
    result: operationAnswer(deps),
    tools: () => deps.tools?.(),
    limits: caller => modelLimits(deps.config, deps.scheduler.running(), caller)
  }
}
