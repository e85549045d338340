import type { FastifyInstance, FastifyReply } from 'fastify'
import { addCallPiece } from '../../../core/answers/call-arguments.ts'
import { hostedCalls, toolRequest } from '../../../core/answers/hosted-calls.ts'
import type { Question } from '../../../core/answers/question.ts'
import { type EngineSettings, settingsFor } from '../../../core/config/model-settings.ts'
import type { AnswerWriter } from '../../../core/contracts/answers.ts'
import type { Delta, TokenProbability, ToolCallPiece } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { Framing } from '../../../core/contracts/native-api.ts'
import type { RequestRecord } from '../../../core/http/request-record.ts'
import { ANSWER_ERRORS, nativeRouter } from '../../../core/http/response-schemas.ts'
import { requireRole } from '../../../core/http/roles.ts'
import { catalogFor } from '../../../core/models/allowed-models.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { type OverflowPolicy, parseKeepAlive, parseOptions } from '../../../core/models/options.ts'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { chatCall, earlierTurns, encodeContext, generateCall, type NativeCall, type Turn } from './engine-request.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import { answerFailure, requestedName } from './records.ts'
import * as schemas from './schemas.ts'
import { FRAMES } from './sse-and-ndjson.ts'

interface Fragment {
  content: string
  thinking: string
  /** Complete calls. They are all sent with the event that ends the answer. */
  toolCalls: object[]
  /** What happened to tools that corral runs. */
  hosted?: object[] | undefined
  /** Tokens with the requested number of alternatives, or without the field if none were requested. */
  logprobs?: object[]
}

interface AnswerShape {
  /** Returns the fields of a part, in addition to `model`, `created_at` and `done`. */
  fragment(part: Fragment): Record<string, unknown>
  last(framing: Framing): Record<string, unknown>
}

/** Reads Ollama's `truncate`. Returns undefined if the server's setting applies. */
function truncation({ truncate }: schemas.ChatRequest | schemas.GenerateRequest): OverflowPolicy | undefined {
  if (truncate === undefined || truncate === null) return undefined
  return truncate ? 'drop_oldest' : 'error'
}

let lastTime = 0
let lastTimeText = ''
/** The current time in ISO 8601, cached for a millisecond: formatting costs as much as the rest of an event. */
function now(): string {
  const time = Date.now()
  if (time !== lastTime) {
    lastTime = time
    lastTimeText = new Date(time).toISOString()
  }
  return lastTimeText
}

const NOT_DONE = { done: false }
const EMPTY: Fragment = { content: '', thinking: '', toolCalls: [] }
const MS_TO_NS = 1e6

/** Nanoseconds until the model was loaded or found. Never 0, which Ollama's clients take for a missing field. */
export function timeToModel({ loadDuration, waitBegan = performance.now() }: RequestRecord, began: number): number {
  return Math.ceil((loadDuration > 0 ? loadDuration : waitBegan - began) * MS_TO_NS)
}

interface AnswerContext {
  model: string
  shape: AnswerShape
  framing: Framing
  began: number
  record: RequestRecord
  loadOnly: boolean
  topLogprobs: number
  turns: readonly Turn[] | undefined
}

class NativeAnswer implements AnswerWriter {
  readonly #context: AnswerContext
  readonly #calls: ToolCallPiece[] = []
  readonly #whole: Fragment | undefined
  #text = ''
  #reason: string
  #last: Delta = {}

  /** @param whole whether the deltas are collected for a single reply */
  constructor(context: AnswerContext, whole: boolean) {
    this.#context = context
    this.#reason = context.loadOnly ? 'load' : 'stop'
    this.#whole = whole ? { ...EMPTY, toolCalls: [] } : undefined
  }

  add(deltas: readonly Delta[]): string {
    let out = ''
    for (const delta of deltas) {
      // This API has a single choice, even if the options set "n".
      if (delta.choice) continue
      const { content = '', thinking = '', finish } = delta
      const hosted = delta.hosted && hostedCalls(delta.hosted)
      const logprobs = delta.logprobs?.map(token => this.#wantedProbabilities(token))
      if (this.#context.turns) this.#text += content
      for (const piece of delta.toolCalls ?? []) addCallPiece(this.#calls, piece)
      const toolCalls = finish ? this.#wholeCalls() : []
      if (finish) this.#reason = finish === 'length' ? 'length' : 'stop'
      if (delta.usage) this.#last = delta
      const whole = this.#whole
      if (whole) {
        whole.content += content
        whole.thinking += thinking
        whole.toolCalls.push(...toolCalls)
        if (hosted) whole.hosted = [...(whole.hosted ?? []), ...hosted]
        if (logprobs) whole.logprobs = [...(whole.logprobs ?? []), ...logprobs]
      } else if (content || thinking || toolCalls.length || logprobs?.length || hosted?.length) {
        const part = { content, thinking, toolCalls, hosted, ...(logprobs && { logprobs }) }
        out += this.#frame(this.#context.shape.fragment(part), NOT_DONE)
      }
    }
    return out
  }

  end(): string {
    const { shape, framing } = this.#context
    return this.#frame(shape.last(framing), this.#ending())
  }

  whole(): Record<string, unknown> {
    const { model, shape } = this.#context
    return { model, created_at: now(), ...shape.fragment(this.#whole!), ...this.#ending() }
  }

  #frame(fragment: Record<string, unknown>, state: Record<string, unknown>): string {
    const { framing, model } = this.#context
    // No spreads here: V8 would create new hidden classes for every event (`core/system/merged.ts`).
    return FRAMES[framing].event(Object.assign({ model, created_at: now() }, fragment, state))
  }

  /** Engines list the chosen token itself if no alternatives are requested. */
  #wantedProbabilities({ top_logprobs, ...token }: TokenProbability): object {
    const { topLogprobs } = this.#context
    return topLogprobs === 0 ? token : { ...token, top_logprobs: top_logprobs.slice(0, topLogprobs) }
  }

  /** Returns the complete calls. Truncated calls are dropped, because clients expect an object as the arguments. */
  #wholeCalls(): object[] {
    return this.#calls.splice(0).flatMap(({ id, name, arguments: text }, index) => {
      const value = parseAnyJson(text || '{}')
      return isObject(value) ? [{ ...(id && { id }), function: { name, arguments: value, index } }] : []
    })
  }

  #ending(): Record<string, unknown> {
    const { usage, timing } = this.#last
    const { began, record, turns } = this.#context
    return {
      done: true,
      done_reason: this.#reason,
      ...(turns && { context: encodeContext([...turns, { role: 'assistant', content: this.#text }]) }),
      total_duration: Math.round((performance.now() - began) * MS_TO_NS),
      load_duration: timeToModel(record, began),
      prompt_eval_count: usage?.promptTokens ?? 0,
      prompt_eval_duration: Math.round((timing?.prompt ?? 0) * MS_TO_NS),
      eval_count: usage?.completionTokens ?? 0,
      eval_duration: Math.round((timing?.generation ?? 0) * MS_TO_NS)
    }
  }
}

async function answer(
  deps: NativeDependencies,
  reply: FastifyReply,
  body: schemas.ChatRequest | schemas.GenerateRequest,
  shape: AnswerShape,
  /** Builds the engine's request. Undefined means: only load the model, or unload it if keep_alive is 0. */
  callFor: (variant: Model, sampling: Record<string, unknown>, engine: EngineSettings) => NativeCall | undefined,
  turns?: readonly Turn[]
): Promise<unknown> {
  const { scheduler, streams } = deps
  const { caller, record } = reply.request
  const began = performance.now()
  const model = requestedName(body)
  const name = parseRequestedName(model)
  const keepAlive = parseKeepAlive(body.keep_alive)
  const options = parseOptions(body.options)
  const variant = catalogFor(deps.catalog, caller).get(name)
  const settings = settingsFor(deps.config, variant)
  const call = callFor(variant, { ...settings.sampling, ...options.sampling }, settings.engine)
  const framing = streams.framingFor(reply.request)
  const empty = () => ({ model, created_at: now(), ...shape.fragment(EMPTY) })
  if (!call && keepAlive === 0) {
    requireRole(caller, 'operator')
    scheduler.keepAlive(variant.model, 0)
    const ending = { done: true, done_reason: 'unload', total_duration: 0, load_duration: 0 }
    if (body.stream === false) return { ...empty(), ...ending }
    // Ollama sends a single JSON object in this case, whatever "stream" says, and some clients accept nothing else.
    return reply
      .type(framing === 'ndjson' ? 'application/json' : FRAMES.sse.contentType)
      .header('cache-control', 'no-cache, no-transform')
      .send(FRAMES[framing].event({ model, created_at: now(), ...shape.last(framing), ...ending }))
  }
  const loadOnly = call === undefined
  const question: Question = {
    operation: 'chat',
    ...call,
    tools: 'messages' in body ? toolRequest(body) : undefined,
    lease: { model: name, options: options.load, keepAlive, loadOnly },
    variant,
    overflow: options.overflow ?? truncation(body) ?? (deps.truncates ? 'drop_oldest' : settings.overflow)
  }
  const context: AnswerContext = {
    model,
    shape,
    framing,
    began,
    record,
    loadOnly,
    topLogprobs: body.top_logprobs ?? 0,
    turns: loadOnly ? undefined : turns
  }
  const open = (whole: boolean) => () => new NativeAnswer(context, whole)
  if (body.stream === false) return (await deps.answers.whole(reply, question, open(true))).whole()
  const idle = () => ({ ...empty(), done: false })
  const channel = streams.channel(reply, idle, failure => answerFailure(model, failure))
  return await deps.answers.stream(reply, question, channel, open(false))
}

const CHAT: AnswerShape = {
  fragment: ({ content, thinking, toolCalls, hosted, logprobs }) => ({
    message: {
      role: 'assistant',
      content,
      ...(thinking ? { thinking } : {}),
      ...(toolCalls.length ? { tool_calls: toolCalls } : {})
    },
    ...(hosted?.length ? { mcp: hosted } : {}),
    ...(logprobs ? { logprobs } : {})
  }),
  // Ollama's Python client needs a message in every NDJSON line. An SSE stream ends without one.
  last: framing => (framing === 'ndjson' ? { message: { role: 'assistant', content: '' } } : {})
}

const GENERATE: AnswerShape = {
  fragment: ({ content, thinking, logprobs }) => ({
    response: content,
    ...(thinking ? { thinking } : {}),
    ...(logprobs ? { logprobs } : {})
  }),
  last: () => ({ response: '' })
}

export function answerRoutes(app: FastifyInstance, deps: NativeDependencies): void {
  const route = nativeRouter(app, 'Answers')
  const { streams } = deps
  route('POST /chat', 'chat', 'Answer a conversation', {
    body: schemas.ChatRequestSchema,
    response: streams.eventsReply(
      'The answer; complete if `stream` is false',
      schemas.ChatReplySchema,
      'Parts of the answer; the last event has `done: true`, and in Server-Sent Events no `message`',
      schemas.ChatEventSchema
    ),
    errors: ANSWER_ERRORS,
    handler: ({ body }, reply) =>
      answer(deps, reply, body, CHAT, (variant, sampling, engine) =>
        body.messages?.length ? chatCall(body, variant, sampling, engine) : undefined
      )
  })

  route('POST /generate', 'generate', 'Continue a prompt', {
    body: schemas.GenerateRequestSchema,
    response: streams.eventsReply(
      'The generated text; complete if `stream` is false',
      schemas.GenerateReplySchema,
      'Parts of the text; the last event has `done: true`',
      schemas.GenerateEventSchema
    ),
    errors: ANSWER_ERRORS,
    handler: ({ body }, reply) => {
      const call = (variant: Model, sampling: Record<string, unknown>, engine: EngineSettings) =>
        body.prompt ? generateCall(body, variant, sampling, engine) : undefined
      // Raw and fill-in requests are not conversations.
      const continues = deps.givesContext && !body.raw && !body.suffix
      const turns: Turn[] | undefined = continues
        ? [...earlierTurns(body), { role: 'user', content: body.prompt ?? '' }]
        : undefined
      return answer(deps, reply, body, GENERATE, call, turns)
    }
  })
}
