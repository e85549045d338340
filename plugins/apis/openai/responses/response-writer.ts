import { callArguments } from '../../../../core/answers/call-arguments.ts'
import type { Delta, TokenProbability, TokenUsage, ToolCallPiece } from '../../../../core/contracts/engines.ts'
import type { HostedEvent } from '../../../../core/contracts/tool-host.ts'
import { type CorralError, errorCodes } from '../../../../core/errors.ts'
import { OPENAI_CONTEXT_CODE, openaiErrorBody } from '../../../../core/http/openai-error.ts'
import { FreeformInput } from '../freeform-tools.ts'
import { chatLogprobs } from '../openai-answer.ts'
import { type EngineRequest, newId } from './response-request.ts'
import { hostedStep } from './response-tools.ts'
import type {
  CompactionItem,
  CustomToolCall,
  FunctionCall,
  OutputItem,
  OutputMessage,
  Reasoning,
  ResponseRequest
} from './schemas.ts'
import { CLIENT_TOOLS, calledTool, type OfferedTool } from './tools.ts'

export interface ResponseEvent {
  type: string
  sequence_number: number
  [field: string]: unknown
}

export type ResponseObject = Record<string, unknown> & { id: string; output: readonly OutputItem[] }

export interface ResponseHead {
  id: string
  createdAt: number
  request: ResponseRequest
  engine: EngineRequest
  sampling: Record<string, unknown>
  truncation: 'auto' | 'disabled'
  /** The servers whose tools the conversation lists already. */
  listed?: ReadonlySet<unknown>
}

type Ending = 'completed' | 'incomplete'

/**
 * Builds a response and the events of its stream from an engine's answer: reasoning, text and calls of tools in the
 * order of their first pieces. Each item ends before the next starts.
 */
export class ResponseWriter {
  readonly #head: ResponseHead
  readonly #output: OutputItem[] = []
  #events: ResponseEvent[] = []
  #open: OutputItem | undefined
  /** The open item if it is a call, and its index in the engine's answer. */
  #call: { index: number; writer: CallWriter } | undefined
  /** The latest item of a tool that corral runs. */
  #hosted: OutputItem | undefined
  #began = false
  #sequence = 0
  #ending: Ending = 'completed'
  #usage: TokenUsage = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 }
  #reasoningTokens = 0

  /** @param earlier writer of an attempt that sent no content, whose events the client already has */
  constructor(head: ResponseHead, earlier?: ResponseWriter) {
    this.#head = head
    if (!earlier) return
    this.#began = earlier.#began
    this.#sequence = earlier.#sequence
  }

  beat(): ResponseEvent[] {
    if (this.#began) this.#event('response.in_progress', { response: this.#response('in_progress', {}) })
    else this.#begin()
    return this.#taken()
  }

  add(deltas: readonly Delta[]): ResponseEvent[] {
    for (const { choice, thinking, content, toolCalls = [], logprobs = [], usage, finish, hosted } of deltas) {
      if (choice) continue
      if (usage) this.#count(usage, Boolean(thinking))
      if (finish === 'length') this.#ending = 'incomplete'
      if (hosted) this.#host(hosted)
      if (thinking) this.#reason(thinking)
      if (content) this.#say(content, logprobs)
      for (const piece of toolCalls) this.#callTool(piece)
    }
    return this.#taken()
  }

  /** Adds a summary of the conversation, and counts its tokens unless an answer follows. */
  compacted(item: CompactionItem, usage: TokenUsage): void {
    this.#begin()
    const output_index = this.#output.push(item) - 1
    for (const type of ['added', 'done']) this.#event(`response.output_item.${type}`, { output_index, item })
    this.#usage = usage
  }

  complete(): { events: ResponseEvent[]; response: ResponseObject } {
    // Clients read the text of a message even if it is empty.
    if (this.#output.length === 0) this.#openMessage()
    this.#close(this.#ending)
    const { promptTokens, cachedTokens, completionTokens } = this.#usage
    const response = this.#response(this.#ending, {
      usage: {
        input_tokens: promptTokens,
        // Cache writes are not counted.
        input_tokens_details: { cached_tokens: cachedTokens, cache_write_tokens: 0 },
        output_tokens: completionTokens,
        output_tokens_details: { reasoning_tokens: this.#reasoningTokens },
        total_tokens: promptTokens + completionTokens
      }
    })
    this.#event(`response.${this.#ending}`, { response })
    return { events: this.#taken(), response }
  }

  /** Returns the events that end a failed response. The last has the form of other streams too, which SDKs throw. */
  fail(failure: CorralError): ResponseEvent[] {
    this.#begin()
    if (this.#open) this.#open.status = 'incomplete'
    const code = failureCode(failure)
    const { retryAfter } = failure
    // Codex reads the delay from the message.
    const delay = code === 'rate_limit_exceeded' && retryAfter ? ` Try again in ${retryAfter} s.` : ''
    const error = { code, message: failure.message + delay }
    this.#event('response.failed', { response: this.#response('failed', { error }) })
    const { error: shown } = openaiErrorBody(failure)
    this.#event('error', { code: shown.code, message: shown.message, param: shown.param, error: shown })
    return this.#taken()
  }

  #taken(): ResponseEvent[] {
    const events = this.#events
    this.#events = []
    return events
  }

  #event(type: string, fields: Record<string, unknown>): void {
    this.#events.push({ type, sequence_number: this.#sequence++, ...fields })
  }

  #itemEvent(type: string, fields: Record<string, unknown>): void {
    this.#event(type, { item_id: this.#open!.id, output_index: this.#output.length - 1, ...fields })
  }

  #begin(): void {
    if (this.#began) return
    this.#began = true
    const response = this.#response('in_progress', { output: [] })
    this.#event('response.created', { response })
    this.#event('response.in_progress', { response })
  }

  /** The engine does not distinguish reasoning tokens. The tokens since its last count belong to this piece. */
  #count(usage: TokenUsage, thinking: boolean): void {
    if (thinking) this.#reasoningTokens += usage.completionTokens - this.#usage.completionTokens
    this.#usage = usage
  }

  #add(item: OutputItem): void {
    this.#begin()
    this.#close('completed')
    this.#open = item
    this.#output.push(item)
    const output_index = this.#output.length - 1
    // Events get copies, because the items and parts still grow.
    const { content } = item as Partial<OutputMessage>
    this.#event('response.output_item.added', { output_index, item: { ...item, ...(content && { content: [] }) } })
    if (!content) return
    this.#itemEvent('response.content_part.added', { content_index: 0, part: structuredClone(content[0]) })
  }

  #reason(delta: string): void {
    if (this.#open?.type !== 'reasoning') {
      const content: Reasoning['content'] = [{ type: 'reasoning_text', text: '' }]
      this.#add({ type: 'reasoning', id: newId('rs'), status: 'in_progress', summary: [], content })
    }
    ;(this.#open as Reasoning).content[0]!.text += delta
    this.#itemEvent('response.reasoning_text.delta', { content_index: 0, delta })
  }

  #openMessage(): void {
    if (this.#open?.type === 'message') return
    const content: OutputMessage['content'] = [{ type: 'output_text', text: '', annotations: [], logprobs: [] }]
    this.#add({ type: 'message', id: newId('msg'), status: 'in_progress', role: 'assistant', content })
  }

  #say(delta: string, given: readonly TokenProbability[]): void {
    this.#openMessage()
    const [part] = (this.#open as OutputMessage).content
    const { logprobs: top } = this.#head.engine
    const logprobs = top === undefined ? [] : chatLogprobs(given, top)
    part!.text += delta
    part!.logprobs.push(...logprobs)
    this.#itemEvent('response.output_text.delta', { content_index: 0, delta, logprobs })
  }

  #callTool({ index, id, name = '', arguments: json }: ToolCallPiece): void {
    if (this.#call?.index !== index) {
      const writer = openCall(calledTool(this.#head.engine.tools.offered, name), id)
      this.#add(writer.item)
      this.#call = { index, writer }
    }
    if (!json) return
    for (const event of this.#call.writer.add(json)) this.#itemEvent(...event)
  }

  /** Adds what happened to a tool that corral runs. */
  #host(event: HostedEvent): void {
    if (event.type === 'tools' && this.#head.listed?.has(event.label)) return
    const { begins, events, ends } = hostedStep(event, newId) ?? { events: [] }
    if (begins) {
      this.#add(begins)
      this.#hosted = begins
    }
    // The user has denied it, so that it was never begun.
    if (!this.#hosted || this.#open !== this.#hosted) return
    for (const [type, fields] of events) this.#itemEvent(`response.${type}`, fields)
    if (!ends) return
    Object.assign(this.#open, ends)
    this.#close('completed')
  }

  #close(status: Ending): void {
    const item = this.#open
    if (!item) return
    if (item === this.#hosted) {
      if ((item.status as string) === 'in_progress') item.status = 'incomplete'
      this.#event('response.output_item.done', { output_index: this.#output.length - 1, item })
      this.#open = undefined
      return
    }
    // A patch is either complete or in progress.
    item.status = status === 'incomplete' && item.type === 'apply_patch_call' ? 'in_progress' : status
    if (this.#call) for (const event of this.#call.writer.end()) this.#itemEvent(...event)
    else {
      const part = (item as OutputMessage | Reasoning).content[0]!
      if (part.type === 'output_text') {
        const { text, logprobs } = part
        this.#itemEvent('response.output_text.done', { content_index: 0, text, logprobs })
      } else this.#itemEvent('response.reasoning_text.done', { content_index: 0, text: part.text })
      this.#itemEvent('response.content_part.done', { content_index: 0, part })
    }
    this.#event('response.output_item.done', { output_index: this.#output.length - 1, item })
    this.#open = undefined
    this.#call = undefined
  }

  /** Returns the response with all fields of OpenAI's type, including those repeated from the request. */
  #response(status: Ending | 'in_progress' | 'failed', more: Record<string, unknown>): ResponseObject {
    const { id, createdAt, request, engine, sampling, truncation } = this.#head
    return {
      id,
      object: 'response',
      created_at: createdAt,
      status,
      background: false,
      completed_at: status === 'completed' ? Math.floor(Date.now() / 1000) : null,
      error: null,
      incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
      instructions: request.instructions ?? null,
      max_output_tokens: request.max_output_tokens ?? null,
      max_tool_calls: null,
      metadata: request.metadata ?? {},
      model: request.model ?? request.name,
      output: this.#output,
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
      tools: engine.tools.shown,
      top_logprobs: engine.logprobs ?? 0,
      top_p: sampling.top_p ?? null,
      truncation,
      ...(request.user && { user: request.user }),
      ...more
    }
  }
}

/** Codes for which only a later request helps, at the earliest when the server or the model is back. */
const PASSING = errorCodes('shutting_down model_stopped')

/** Whether the same request would fail again. */
const isFinal = ({ code, status, retryable }: CorralError) => status < 500 || !(retryable || PASSING.includes(code))

/**
 * Returns OpenAI's code for a failure. Programs such as Codex repeat a request after `server_error`. The event that ends
 * the stream has corral's code.
 */
function failureCode(failure: CorralError): string {
  const { code } = failure
  if (code === 'queue_full' || code === 'too_busy') return 'rate_limit_exceeded'
  if (code === 'context_exceeded') return OPENAI_CONTEXT_CODE
  return isFinal(failure) ? 'invalid_prompt' : 'server_error'
}

type CallEvent = [type: string, fields: Record<string, unknown>]

/** Builds the item for a call whose arguments arrive in pieces, in the form of its type of tool. */
interface CallWriter {
  item: OutputItem
  add(json: string): CallEvent[]
  end(): CallEvent[]
}

/** @param given the engine's id of the call */
function openCall({ type, name, namespace }: Omit<OfferedTool, 'function'>, given: string | undefined): CallWriter {
  const common = { status: 'in_progress', call_id: callId(given) } as const
  const named = { ...common, name, ...(namespace && { namespace }) }
  if (type === 'function') return functionCall({ type: 'function_call', id: newId('fc'), ...named, arguments: '' })
  if (type === 'custom') return customCall({ type: 'custom_tool_call', id: newId('ctc'), ...named, input: '' })
  const { item: itemType, prefix, toItem } = CLIENT_TOOLS[type]!
  const item = { type: itemType, id: newId(prefix), ...common, ...toItem({}) }
  let json = ''
  return {
    item,
    add(piece) {
      json += piece
      return []
    },
    end() {
      Object.assign(item, toItem(JSON.parse(callArguments(json))))
      return []
    }
  }
}

function functionCall(item: FunctionCall): CallWriter {
  const kind = 'response.function_call_arguments'
  return {
    item,
    add(delta) {
      item.arguments += delta
      return [[`${kind}.delta`, { delta }]]
    },
    end: () => [[`${kind}.done`, { name: item.name, arguments: item.arguments }]]
  }
}

function customCall(item: CustomToolCall): CallWriter {
  const kind = 'response.custom_tool_call_input'
  const input = new FreeformInput()
  const say = (delta: string): CallEvent[] => {
    item.input += delta
    return delta === '' ? [] : [[`${kind}.delta`, { delta }]]
  }
  return {
    item,
    add: json => say(input.add(json)),
    end: () => [...say(input.end()), [`${kind}.done`, { input: item.input }]]
  }
}

/** The model's own id is kept, because its template may require it. A random id of the engine gets OpenAI's format. */
function callId(given: string | undefined): string {
  if (!given) return newId('call')
  return /^[A-Za-z0-9]{32}$/.test(given) ? `call_${given}` : given
}
