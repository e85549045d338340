import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import {
  type AnswerDependencies,
  type AnswerWriter,
  type Question,
  streamedAnswer,
  wholeAnswer
} from '../../core/answers/pipeline.ts'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { type EngineSettings, settingsFor } from '../../core/config/model-settings.ts'
import type { Delta, TokenProbability, ToolCallPiece } from '../../core/contracts/engines.ts'
import type { Lease } from '../../core/contracts/leases.ts'
import type { Catalog, Model } from '../../core/contracts/models.ts'
import type { Framing, ModelNaming } from '../../core/contracts/native-api.ts'
import { type OverflowPolicy, parseKeepAlive, parseOptions } from '../../core/models/options.ts'
import { chatCall, generateCall, type NativeCall } from './engine-body.ts'
import type { MountedDependencies } from './native-dependencies.ts'
import { FRAMES, type NativeStreams } from './native-streams.ts'
import { answerOperations } from './operations/answers.ts'
import { failureOf, nameOf } from './records.ts'

/** A whole tool call, as Ollama's clients read it. */
interface ToolCall {
  id?: string
  function: { name: string; arguments: unknown; index: number }
}

/** A piece of an answer, or all of it. */
interface Fragment {
  content: string
  thinking: string
  /** Whole calls, all given with the event that ends the answer. */
  toolCalls: ToolCall[]
  logprobs?: TokenProbability[]
}

/** How chat and generate write their events. */
interface AnswerShape {
  /** The fields of one fragment beside `model`, `created_at` and `done`. */
  fragment(part: Fragment): Record<string, unknown>
  /** Those of the last event of a stream. */
  last(framing: Framing): Record<string, unknown>
}

interface AnswerRequest {
  model?: string | null
  name?: string | null
  stream?: boolean | null
  options?: object | null
  keep_alive?: number | string | null
  truncate?: boolean | null
}

interface NativeAnswerDependencies extends AnswerDependencies {
  catalog: Catalog
  config: CoreConfig
  streams: NativeStreams
  naming: ModelNaming
}

/** Ollama's field for the same; where it is not given, the server's own policy holds. */
function truncation({ truncate }: AnswerRequest): OverflowPolicy | undefined {
  if (truncate === undefined || truncate === null) return undefined
  return truncate ? 'drop_oldest' : 'error'
}

const now = () => new Date().toISOString()
const EMPTY: Fragment = { content: '', thinking: '', toolCalls: [] }
const MS_TO_NS = 1e6

/** One answer, in the words of Ollama's API. */
class NativeAnswer implements AnswerWriter {
  readonly #model: string
  readonly #shape: AnswerShape
  readonly #framing: Framing
  readonly #began: bigint
  readonly #lease: Lease
  readonly #calls: { id?: string; name: string; arguments: string }[] = []
  readonly #whole: Fragment | undefined
  #reason: string
  #last: Delta = {}

  /** @param whole whether it is kept to be given in one piece */
  constructor(
    about: { model: string; shape: AnswerShape; framing: Framing; began: bigint; lease: Lease; loadOnly: boolean },
    whole: boolean
  ) {
    this.#model = about.model
    this.#shape = about.shape
    this.#framing = about.framing
    this.#began = about.began
    this.#lease = about.lease
    this.#reason = about.loadOnly ? 'load' : 'stop'
    if (whole) this.#whole = { ...EMPTY, toolCalls: [] }
  }

  add(deltas: readonly Delta[]): string {
    let out = ''
    for (const delta of deltas) {
      // One choice is given, whatever "n" among the options says.
      if (delta.choice) continue
      const { content = '', thinking = '', logprobs, finish } = delta
      for (const piece of delta.toolCalls ?? []) this.#collect(piece)
      const toolCalls = finish ? this.#wholeCalls() : []
      if (finish) this.#reason = finish === 'length' ? 'length' : 'stop'
      if (delta.usage) this.#last = delta
      if (this.#whole) {
        this.#whole.content += content
        this.#whole.thinking += thinking
        this.#whole.toolCalls.push(...toolCalls)
        if (logprobs) this.#whole.logprobs = [...(this.#whole.logprobs ?? []), ...logprobs]
      } else if (content || thinking || toolCalls.length || logprobs?.length) {
        const part = { content, thinking, toolCalls, ...(logprobs && { logprobs }) }
        out += this.#frame({ ...this.#shape.fragment(part), done: false })
      }
    }
    return out
  }

  end(): string {
    return this.#frame({ ...this.#shape.last(this.#framing), ...this.#ending() })
  }

  whole(): Record<string, unknown> {
    return { model: this.#model, created_at: now(), ...this.#shape.fragment(this.#whole!), ...this.#ending() }
  }

  #frame(fields: Record<string, unknown>): string {
    return FRAMES[this.#framing].event({ model: this.#model, created_at: now(), ...fields })
  }

  #collect({ index, id, name = '', arguments: text }: ToolCallPiece): void {
    this.#calls[index] ??= { name: '', arguments: '' }
    const call = this.#calls[index]
    if (id) call.id = id
    call.name += name
    call.arguments += text
  }

  #wholeCalls(): ToolCall[] {
    return this.#calls.splice(0).map((call, index) => ({
      ...(call.id && { id: call.id }),
      function: { name: call.name, arguments: parseArguments(call.arguments), index }
    }))
  }

  /** Why it ended and what it cost; durations are nanoseconds. */
  #ending(): Record<string, unknown> {
    const { usage, timing } = this.#last
    return {
      done: true,
      done_reason: this.#reason,
      total_duration: Number(process.hrtime.bigint() - this.#began),
      load_duration: Math.round(this.#lease.loadDuration * MS_TO_NS),
      prompt_eval_count: usage?.promptTokens ?? 0,
      prompt_eval_duration: Math.round((timing?.prompt ?? 0) * MS_TO_NS),
      eval_count: usage?.completionTokens ?? 0,
      eval_duration: Math.round((timing?.generation ?? 0) * MS_TO_NS)
    }
  }
}

function parseArguments(text: string): unknown {
  try {
    return JSON.parse(text === '' ? '{}' : text)
  } catch {
    // An answer cut off in the middle of a call: what there is of it is given as it is.
    return text
  }
}

/** Answers a chat or generate request: loads the model where needed, asks the engine, and writes what comes back. */
export async function answer(
  deps: NativeAnswerDependencies,
  request: FastifyRequest,
  reply: FastifyReply,
  body: AnswerRequest,
  shape: AnswerShape,
  /** Makes the engine's request; undefined only loads (or, with keep_alive 0, unloads) the model. */
  callFor: (variant: Model, sampling: Record<string, unknown>, engine: EngineSettings) => NativeCall | undefined
): Promise<unknown> {
  const { scheduler, streams } = deps
  const began = process.hrtime.bigint()
  const model = nameOf(body)
  const name = deps.naming.parse(model)
  const keepAlive = parseKeepAlive(body.keep_alive)
  const given = parseOptions(body.options)
  const variant = deps.catalog.get(name)
  const settings = settingsFor(deps.config, variant)
  const call = callFor(variant, { ...settings.sampling, ...given.sampling }, settings.engine)
  const framing = streams.framingOf(request)
  if (!call && keepAlive === 0) {
    scheduler.keepAlive(name, 0)
    return unloaded(streams, reply, body, { model, framing, shape })
  }
  const loadOnly = call === undefined
  const question: Question = {
    operation: 'chat',
    ...call,
    lease: { model: name, options: given.load, keepAlive, loadOnly },
    variant,
    overflow: given.overflow ?? truncation(body) ?? settings.overflow
  }
  const open = (whole: boolean) => (lease: Lease) =>
    new NativeAnswer({ model, shape, framing, began, lease, loadOnly }, whole)
  if (body.stream === false) return (await wholeAnswer(deps, reply, question, open(true))).whole()
  const idle = () => ({ model, created_at: now(), ...shape.fragment(EMPTY), done: false })
  const channel = streams.channel(request, reply, idle, failure => failureOf(model, failure))
  return await streamedAnswer(deps, request, reply, question, channel, open(false))
}

/** A reply of one event, in the framing that the client expects. */
function unloaded(
  streams: NativeStreams,
  reply: FastifyReply,
  { stream }: AnswerRequest,
  { model, framing, shape }: { model: string; framing: Framing; shape: AnswerShape }
): unknown {
  const ending = { done: true, done_reason: 'unload', total_duration: 0, load_duration: 0 }
  if (stream === false) return { model, created_at: now(), ...shape.fragment(EMPTY), ...ending }
  // Ollama gives one object of JSON then, whatever "stream" says, and some clients read no other type.
  return reply
    .type(framing === 'ndjson' ? 'application/json' : streams.contentType(framing))
    .header('cache-control', 'no-cache, no-transform')
    .send(streams.frame(framing, { model, created_at: now(), ...shape.last(framing), ...ending }))
}

/** Whether an answer was not cut off in the middle of it: nobody can call half a call, and clients want an object. */
function isWhole({ function: { arguments: given } }: ToolCall): boolean {
  return typeof given === 'object' && given !== null && !Array.isArray(given)
}

const CHAT: AnswerShape = {
  fragment: ({ content, thinking, toolCalls, logprobs }) => {
    const calls = toolCalls.filter(isWhole)
    return {
      message: {
        role: 'assistant',
        content,
        ...(thinking ? { thinking } : {}),
        ...(calls.length ? { tool_calls: calls } : {})
      },
      ...(logprobs ? { logprobs } : {})
    }
  },
  // Ollama's Python client needs a message in every NDJSON line; an SSE stream ends without one.
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

/** Chat and generate. */
export function answerRoutes(deps: MountedDependencies): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const operations = answerOperations(deps.streams.types)
    app.post('/chat', { schema: operations.chat }, async (request, reply) => {
      const { body } = request
      return await answer(deps, request, reply, body, CHAT, (variant, sampling, engine) =>
        body.messages?.length ? chatCall(body, variant, sampling, engine) : undefined
      )
    })
    app.post('/generate', { schema: operations.generate }, async (request, reply) => {
      const { body } = request
      return await answer(deps, request, reply, body, GENERATE, (variant, sampling, engine) =>
        body.prompt ? generateCall(body, variant, sampling, engine) : undefined
      )
    })
  }
}
