import { randomBytes } from 'node:crypto'
import type { FastifyReply } from 'fastify'
import { type Static, Type } from 'typebox'
import {
  type ApiDependencies,
  type Caller,
  CorralError,
  type Delta,
  each,
  eventChannel,
  Given,
  isObject,
  keep_alive,
  type LoadState,
  Loose,
  loadStates,
  namedEvents,
  type Question,
  readThinking,
  reportIgnoredTools,
  requestOptions,
  type Services,
  Titled,
  type TokenUsage,
  thinkingFields,
  withModelDefaults,
  withUsableMedia
} from '../../../core/plugins/public-api.ts'

/* POST /api/v1/chat: one message of a conversation that the server stores. */

const Part = Type.Union([
  Loose({ type: Type.Enum(['message', 'text']), content: Type.String() }),
  Loose({ type: Type.Literal('image'), data_url: Type.String() })
])
const { temperature, top_p, top_k } = requestOptions

export const ChatRequest = Titled('LMStudioChatRequest', {
  model: Type.String(),
  input: Type.Union([Type.String(), Type.Array(Part, { minItems: 1 })]),
  system_prompt: Given(Type.String()),
  integrations: Given(Type.Array(Type.Union([Type.String(), Loose({})]))),
  stream: Given(Type.Boolean({ default: false })),
  temperature,
  top_p,
  top_k,
  min_p: Given(Type.Number()),
  repeat_penalty: Given(Type.Number()),
  max_output_tokens: requestOptions.max_tokens,
  reasoning: Given(Type.Enum(['off', 'low', 'medium', 'high', 'on'])),
  context_length: requestOptions.num_ctx,
  store: Given(Type.Boolean({ default: true })),
  previous_response_id: Given(Type.String()),
  ttl: keep_alive
})
type ChatRequest = Static<typeof ChatRequest>

const Output = Loose({ type: Type.Enum(['reasoning', 'message']), content: Type.String() })

export const ChatResult = Titled('LMStudioChat', {
  model_instance_id: Type.String(),
  output: Type.Array(Output),
  stats: Loose({
    ...each(Type.Integer(), 'input_tokens', 'total_output_tokens', 'reasoning_output_tokens'),
    tokens_per_second: Type.Number(),
    time_to_first_token_seconds: Type.Number(),
    model_load_time_seconds: Type.Optional(Type.Number())
  }),
  response_id: Type.Optional(Type.String())
})
type ChatResult = Static<typeof ChatResult>

export const CHAT_EVENTS =
  'Named events: chat.start; model_load.start, .progress and .end if the model was loaded; prompt_processing.start, .progress and .end; reasoning.start, .delta and .end; message.start, .delta and .end; error if it fails; and chat.end with the whole answer'

type StoredResponses = Services['responses']

export interface ChatDependencies extends ApiDependencies {
  responses: StoredResponses
  error(failure: CorralError): { error: Record<string, unknown> }
}

type Event = { type: string; [field: string]: unknown }

export async function answerChat(deps: ChatDependencies, body: ChatRequest, reply: FastifyReply) {
  const { caller } = reply.request
  reportIgnoredTools(reply, integrationNames(body.integrations ?? []))
  const { question, input } = toQuestion(deps, body, caller)
  const keep = (result: ChatResult) => {
    if (body.store === false) return result
    const id = `resp_${randomBytes(24).toString('hex')}`
    const response = { ...storedResponse(deps, result), id, previous_response_id: body.previous_response_id ?? null }
    deps.responses.add(caller.owner, { response, input })
    return { ...result, response_id: id }
  }
  const writer = new ChatWriter(question.variant.publicName)
  if (!body.stream) return keep((await deps.answers.whole(reply, question, lease => writer.begin(lease))).result())
  const fail = (failure: CorralError) => [
    { type: 'error', ...deps.error(failure) },
    { type: 'chat.end', result: writer.result() }
  ]
  const activity = () => namedEvents(writer.wait(loadStates(deps.scheduler)(question.variant)))
  const channel = eventChannel(deps.heartbeat(), failure => namedEvents(fail(failure)), activity)
  await deps.answers.stream(reply, question, channel, lease => {
    writer.begin(lease)
    return {
      add: deltas => namedEvents(writer.add(deltas)),
      end: () => namedEvents([...writer.end(), { type: 'chat.end', result: keep(writer.result()) }])
    }
  })
  return undefined
}

/** @throws CorralError naming the wrong field, before a model is loaded */
function toQuestion(deps: ChatDependencies, body: ChatRequest, caller: Caller) {
  const { max_output_tokens, context_length, ttl, min_p, repeat_penalty, previous_response_id: previous } = body
  const { variant, settings, sampling, lease, overflow } = deps.answers.read(
    { ...pick(body), max_tokens: max_output_tokens, num_ctx: context_length, keep_alive: ttl },
    caller
  )
  const before = previous ? deps.responses.get(caller.owner, previous, 'previous_response_id') : undefined
  const history = before ? [...before.input, ...before.response.output] : []
  const system = body.system_prompt ?? undefined
  const kept = history.filter(({ role }) => system === undefined || role !== 'system')
  const input = [
    ...deps.responses.toItems(system === undefined ? [] : [{ role: 'system', content: system }]),
    ...kept,
    ...deps.responses.toItems([{ role: 'user', content: toContent(body.input) }])
  ]
  const thinks = variant.metadata.capabilities.includes('thinking')
  const { reasoning } = body
  if (reasoning && reasoning !== 'off' && !thinks) {
    const message = 'The model cannot think. Remove "reasoning".'
    throw new CorralError('unsupported_capability', message, { param: 'reasoning' })
  }
  const chat = deps.responses.toMessages(input)
  const messages = withUsableMedia(chat, variant, settings.engine, (_, part) => `input[${part}]`)
  const question: Question = {
    operation: 'chat',
    body: {
      ...sampling,
      ...(min_p != null && { min_p }),
      ...(repeat_penalty != null && { repeat_penalty }),
      ...(thinks && thinkingFields(readThinking({ reasoning }))),
      messages: withModelDefaults(messages, variant.defaults)
    },
    lease,
    variant,
    overflow,
    // Reasoning tokens are determined from the counts of each piece.
    countEach: thinks
  }
  return { question, input }
}

const pick = ({ model, temperature, top_p, top_k }: ChatRequest) => ({ model, temperature, top_p, top_k })

const integrationNames = (integrations: readonly unknown[]) =>
  integrations.map(each => String(isObject(each) ? (each.id ?? each.server_label ?? 'integration') : each))

function toContent(input: ChatRequest['input']): string | object[] {
  if (typeof input === 'string') return input
  return input.map(part =>
    part.type === 'image'
      ? { type: 'input_image', image_url: part.data_url }
      : { type: 'input_text', text: part.content }
  )
}

function storedResponse({ responses }: ChatDependencies, { model_instance_id: model, output, stats }: ChatResult) {
  return {
    object: 'response',
    created_at: Math.floor(Date.now() / 1000),
    status: 'completed',
    model,
    output: responses.toItems(
      output.map(({ type, content }) =>
        type === 'message' ? { role: 'assistant', content } : { type, content: [{ text: content }] }
      )
    ),
    usage: {
      input_tokens: stats.input_tokens,
      output_tokens: stats.total_output_tokens,
      total_tokens: stats.input_tokens + stats.total_output_tokens
    }
  }
}

class ChatWriter {
  readonly #instance: string
  readonly #sent = new Set<string>()
  #loadDuration: number | undefined
  #began = 0
  #output: Static<typeof Output>[] = []
  #progress = 0
  #first: number | undefined
  #timing: Delta['timing']
  #usage: TokenUsage = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 }
  #reasoningTokens = 0

  constructor(instance: string) {
    this.#instance = instance
  }

  /** Begins an attempt. No content of an earlier one was sent. @param lease.loadDuration milliseconds */
  begin({ loadDuration }: { loadDuration: number }): this {
    this.#loadDuration = loadDuration
    this.#began = performance.now()
    this.#output = []
    this.#reasoningTokens = 0
    return this
  }

  wait({ value, progress }: LoadState): Event[] {
    if (this.#loadDuration !== undefined) {
      return [...this.#start(), { type: 'prompt_processing.progress', progress: this.#progress }]
    }
    const model_instance_id = this.#instance
    const events = this.#once('chat.start', { model_instance_id })
    if (value !== 'loading') return events
    events.push(...this.#once('model_load.start', { model_instance_id }))
    return [...events, { type: 'model_load.progress', model_instance_id, progress: progress?.fraction ?? 0 }]
  }

  add(deltas: readonly Delta[]): Event[] {
    const events = this.#start()
    for (const { choice, reading, thinking, content, usage, timing } of deltas) {
      if (choice) continue
      if (usage) {
        if (thinking) this.#reasoningTokens += usage.completionTokens - this.#usage.completionTokens
        this.#usage = usage
      }
      if (timing) this.#timing = timing
      if (reading) {
        this.#progress = reading.tokens / Math.max(1, reading.total)
        events.push({ type: 'prompt_processing.progress', progress: this.#progress })
      }
      if (thinking) events.push(...this.#piece('reasoning', thinking))
      if (content) events.push(...this.#piece('message', content))
    }
    return events
  }

  end(): Event[] {
    const open = this.#output.at(-1)
    return [...this.#start(), ...this.#once('prompt_processing.end'), ...(open ? [{ type: `${open.type}.end` }] : [])]
  }

  result(): ChatResult {
    const { promptTokens, completionTokens } = this.#usage
    const now = performance.now()
    const first = this.#first ?? now
    const { prompt = first - this.#began, generation = now - first } = this.#timing ?? {}
    const seconds = generation / 1000
    return {
      model_instance_id: this.#instance,
      output: this.#output,
      stats: {
        input_tokens: promptTokens,
        total_output_tokens: completionTokens,
        reasoning_output_tokens: this.#reasoningTokens,
        tokens_per_second: seconds > 0 ? completionTokens / seconds : 0,
        time_to_first_token_seconds: prompt / 1000,
        ...(this.#loadDuration && { model_load_time_seconds: this.#loadDuration / 1000 })
      }
    }
  }

  #once(type: string, fields: object = {}): Event[] {
    if (this.#sent.has(type)) return []
    this.#sent.add(type)
    return [{ type, ...fields }]
  }

  #start(): Event[] {
    const model_instance_id = this.#instance
    const events = this.#once('chat.start', { model_instance_id })
    if (this.#loadDuration || this.#sent.has('model_load.start')) {
      const load_time_seconds = (this.#loadDuration ?? 0) / 1000
      events.push(...this.#once('model_load.start', { model_instance_id }))
      events.push(...this.#once('model_load.end', { model_instance_id, load_time_seconds }))
    }
    return [...events, ...this.#once('prompt_processing.start')]
  }

  #piece(type: 'reasoning' | 'message', content: string): Event[] {
    this.#first ??= performance.now()
    const events = this.#once('prompt_processing.end')
    const open = this.#output.at(-1)
    if (open?.type === type) open.content += content
    else {
      if (open) events.push({ type: `${open.type}.end` })
      this.#output.push({ type, content })
      events.push({ type: `${type}.start` })
    }
    return [...events, { type: `${type}.delta`, content }]
  }
}
