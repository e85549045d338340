import type { Delta, TokenProbability, TokenUsage, ToolCallPiece } from '../../../core/contracts/engines.ts'
import type { CorralError } from '../../../core/errors.ts'
import { chatLogprobs } from '../chunks.ts'
import { openaiErrorBody } from '../openai-error.ts'
import type { EngineFields } from './engine-request.ts'
import { type FunctionCall, newId, type OutputItem, type OutputMessage, type ReasoningItem } from './items.ts'
import { calledFunction } from './offered-tools.ts'
import type { ResponseRequest } from './request-schema.ts'

/** An event of a streamed response. */
export interface ResponseEvent {
  type: string
  sequence_number: number
  [field: string]: unknown
}

/** A response is `incomplete` by one reason here: it was cut at the most tokens it may have. */
type Ending = 'completed' | 'incomplete'

/**
 * Makes a response of what the engine adds to its answer, piece by piece, with the events that tell of it: items of
 * reasoning, text and function calls in the order of their first pieces, each closed before the next.
 */
export class ResponseWriter {
  readonly #head: ResponseHead
  readonly #output: OutputItem[] = []
  #open: OutputItem | undefined
  /** Which of the engine's calls is open. */
  #call: number | undefined
  #began = false
  #sequence = 0
  #ending: Ending = 'completed'
  #usage: TokenUsage = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 }
  #reasoningTokens = 0

  constructor(head: ResponseHead) {
    this.#head = head
  }

  /** What the model said. */
  get output(): readonly OutputItem[] {
    return this.#output
  }

  /** The events of what the engine adds. */
  add(deltas: readonly Delta[]): ResponseEvent[] {
    const events: ResponseEvent[] = []
    for (const delta of deltas) if (!delta.choice) this.#take(delta, events)
    return events
  }

  #take(delta: Delta, events: ResponseEvent[]): void {
    const { thinking, content, toolCalls = [] } = delta
    if (delta.usage) this.#count(delta.usage, Boolean(thinking))
    if (delta.finish === 'length') this.#ending = 'incomplete'
    if (!thinking && !content && toolCalls.length === 0) return
    this.#begin(events)
    if (thinking) this.#reason(thinking, events)
    if (content) this.#say(content, delta.logprobs ?? [], events)
    for (const piece of toolCalls) this.#callFunction(piece, events)
  }

  /** The events that end the response, and the response. */
  complete(): { events: ResponseEvent[]; response: ResponseObject } {
    const events: ResponseEvent[] = []
    this.#begin(events)
    // Clients look for the text of a message even where there is none.
    if (this.#output.length === 0) this.#openMessage(events)
    this.#close(this.#ending, events)
    const usage = { ...this.#usage, reasoningTokens: this.#reasoningTokens }
    const response = responseObject(this.#head, { status: this.#ending, output: this.#output, usage })
    events.push(this.#event(`response.${this.#ending}`, { response }))
    return { events, response }
  }

  /**
   * The events that end a response that failed. The last one has the error as OpenAI's type says, and as all hosted-chat
   * streams have it too: that is what SDKs throw.
   */
  fail(failure: CorralError): ResponseEvent[] {
    const events: ResponseEvent[] = []
    this.#begin(events)
    if (this.#open) this.#open.status = 'incomplete'
    const response = responseObject(this.#head, { status: 'failed', output: this.#output, failure })
    events.push(this.#event('response.failed', { response }))
    const { error } = openaiErrorBody(failure)
    const { code, message, param } = error
    events.push(this.#event('error', { code, message, param, error }))
    return events
  }

  #event(type: string, fields: Record<string, unknown>): ResponseEvent {
    return { type, sequence_number: this.#sequence++, ...fields }
  }

  /** Where the open item is. */
  #at(): { item_id: string; output_index: number } {
    return { item_id: this.#open!.id, output_index: this.#output.length - 1 }
  }

  #begin(events: ResponseEvent[]): void {
    if (this.#began) return
    this.#began = true
    const response = responseObject(this.#head, { status: 'in_progress', output: [] })
    events.push(this.#event('response.created', { response }), this.#event('response.in_progress', { response }))
  }

  /** The engine counts all tokens alike; those since its last count are what this piece is made of. */
  #count(usage: TokenUsage, thinking: boolean): void {
    if (thinking) this.#reasoningTokens += usage.completionTokens - this.#usage.completionTokens
    this.#usage = usage
  }

  #add(item: OutputItem, events: ResponseEvent[]): void {
    this.#close('completed', events)
    this.#open = item
    this.#output.push(item)
    // A copy: the item goes on growing.
    events.push(this.#event('response.output_item.added', { output_index: this.#output.length - 1, item: bare(item) }))
  }

  #reason(delta: string, events: ResponseEvent[]): void {
    if (this.#open?.type !== 'reasoning') {
      const part: ReasoningItem['content'][number] = { type: 'reasoning_text', text: '' }
      const item: ReasoningItem = {
        type: 'reasoning',
        id: newId('rs'),
        status: 'in_progress',
        summary: [],
        content: [part]
      }
      this.#add(item, events)
      events.push(this.#event('response.content_part.added', { ...this.#at(), content_index: 0, part: { ...part } }))
    }
    ;(this.#open as ReasoningItem).content[0]!.text += delta
    events.push(this.#event('response.reasoning_text.delta', { ...this.#at(), content_index: 0, delta }))
  }

  #openMessage(events: ResponseEvent[]): OutputMessage {
    if (this.#open?.type === 'message') return this.#open
    const part: OutputMessage['content'][number] = { type: 'output_text', text: '', annotations: [], logprobs: [] }
    const item: OutputMessage = {
      type: 'message',
      id: newId('msg'),
      status: 'in_progress',
      role: 'assistant',
      content: [part]
    }
    this.#add(item, events)
    const copy = { ...part, logprobs: [] }
    events.push(this.#event('response.content_part.added', { ...this.#at(), content_index: 0, part: copy }))
    return item
  }

  #say(delta: string, given: readonly TokenProbability[], events: ResponseEvent[]): void {
    const [part] = this.#openMessage(events).content
    const { logprobs: top } = this.#head.engine
    const logprobs = top === undefined ? [] : chatLogprobs(given, top)
    part!.text += delta
    part!.logprobs.push(...logprobs)
    events.push(this.#event('response.output_text.delta', { ...this.#at(), content_index: 0, delta, logprobs }))
  }

  #callFunction(piece: ToolCallPiece, events: ResponseEvent[]): void {
    if (this.#open?.type !== 'function_call' || this.#call !== piece.index) {
      this.#add(
        {
          type: 'function_call',
          id: newId('fc'),
          status: 'in_progress',
          call_id: callId(piece.id),
          ...calledFunction(this.#head.engine.tools, piece.name ?? ''),
          arguments: ''
        },
        events
      )
      this.#call = piece.index
    }
    if (!piece.arguments) return
    ;(this.#open as FunctionCall).arguments += piece.arguments
    events.push(this.#event('response.function_call_arguments.delta', { ...this.#at(), delta: piece.arguments }))
  }

  #close(status: Ending, events: ResponseEvent[]): void {
    const item = this.#open
    if (!item) return
    item.status = status
    const at = this.#at()
    if (item.type === 'function_call') {
      const { name, arguments: text } = item
      events.push(this.#event('response.function_call_arguments.done', { ...at, name, arguments: text }))
    } else {
      const [part] = item.content
      const done =
        part!.type === 'output_text'
          ? this.#event('response.output_text.done', {
              ...at,
              content_index: 0,
              text: part!.text,
              logprobs: part!.logprobs
            })
          : this.#event('response.reasoning_text.done', { ...at, content_index: 0, text: part!.text })
      events.push(done, this.#event('response.content_part.done', { ...at, content_index: 0, part }))
    }
    events.push(this.#event('response.output_item.done', { output_index: at.output_index, item }))
    this.#open = undefined
  }
}

/** A model's own id stays, since its template may take no other form; one that the engine drew gets OpenAI's form. */
function callId(given: string | undefined): string {
  if (!given) return newId('call')
  return /^[A-Za-z0-9]{32}$/.test(given) ? `call_${given}` : given
}

/** An item as it is before anything is in it. */
function bare(item: OutputItem): OutputItem {
  return item.type === 'function_call' ? { ...item } : ({ ...item, content: [] } as OutputItem)
}

/** How far a response is. */
interface ResponseState {
  status: 'in_progress' | 'completed' | 'incomplete' | 'failed'
  output: readonly OutputItem[]
  usage?: TokenUsage & { reasoningTokens: number }
  failure?: CorralError
}

/** The Responses API's object of a response. */
export type ResponseObject = Record<string, unknown> & { id: string; output: readonly OutputItem[] }

/** What stays the same of a response from its beginning to its end. */
export interface ResponseHead {
  id: string
  /** Seconds since the epoch. */
  createdAt: number
  request: ResponseRequest
  engine: EngineFields
  /** The options in force. */
  sampling: Record<string, unknown>
  truncation: 'auto' | 'disabled'
}

const seconds = () => Math.floor(Date.now() / 1000)

/** OpenAI's own words for why a response failed; the event that ends the stream has corral's. */
function failureCode({ code, status }: CorralError): string {
  if (code === 'queue_full') return 'rate_limit_exceeded'
  return status < 500 ? 'invalid_prompt' : 'server_error'
}

function usageObject({
  promptTokens,
  cachedTokens,
  completionTokens,
  reasoningTokens
}: Required<ResponseState>['usage']) {
  return {
    input_tokens: promptTokens,
    // Of what is written to caches, nothing is counted.
    input_tokens_details: { cached_tokens: cachedTokens, cache_write_tokens: 0 },
    output_tokens: completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens },
    total_tokens: promptTokens + completionTokens
  }
}

/** The response with everything that OpenAI's type has, the request's own fields repeated. */
function responseObject(head: ResponseHead, state: ResponseState): ResponseObject {
  const { id, createdAt, request, engine, sampling, truncation } = head
  const { status, output, usage, failure } = state
  return {
    id,
    object: 'response',
    created_at: createdAt,
    status,
    background: false,
    completed_at: status === 'completed' ? seconds() : null,
    error: failure ? { code: failureCode(failure), message: failure.message } : null,
    incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
    instructions: request.instructions ?? null,
    max_output_tokens: request.max_output_tokens ?? null,
    max_tool_calls: null,
    metadata: request.metadata ?? {},
    model: request.model ?? request.name,
    output,
    parallel_tool_calls: request.parallel_tool_calls ?? true,
    previous_response_id: request.previous_response_id ?? null,
    prompt_cache_key: request.prompt_cache_key ?? null,
    reasoning: { effort: request.reasoning?.effort ?? null, summary: request.reasoning?.summary ?? null },
    safety_identifier: request.safety_identifier ?? null,
    service_tier: 'default',
    store: request.store ?? true,
    temperature: sampling.temperature ?? null,
    text: { format: request.text?.format ?? { type: 'text' }, verbosity: request.text?.verbosity ?? 'medium' },
    tool_choice: request.tool_choice ?? 'auto',
    tools: engine.tools,
    top_logprobs: engine.logprobs ?? 0,
    top_p: sampling.top_p ?? null,
    truncation,
    ...(usage && { usage: usageObject(usage) }),
    ...(request.user && { user: request.user })
  }
}
