import type { Delta, TokenUsage, ToolCallPiece } from '../../../core/contracts/engines.ts'
import { toClientId } from './message-request.ts'
import type { BlockDelta, Message, MessageEvent, ReplyBlock, StopReason, Usage } from './schemas.ts'

type Prose = 'text' | 'thinking'

export interface MessageHead {
  id: string
  /** The name in the request. */
  model: string
  /** Texts that may end the answer. */
  stopSequences: readonly string[]
  /** Whether thinking is omitted. */
  omitThinking?: boolean
  /** Whether the answer may have only one tool call. Not every grammar of the engine enforces this. */
  oneCall?: boolean
}

/**
 * Turns an engine's answer into the events of Anthropic's streams. Blocks are numbered without gaps, and each one ends
 * before the next starts. Blocks of white space, which models tend to put between thinking and tool calls, are dropped
 * because clients could not send them back.
 */
export class MessageEvents {
  #head: MessageHead
  #out: MessageEvent[] = []
  #started = false
  #index = 0
  /** The open block. A number is the index of a tool call. */
  #open: Prose | number | undefined
  /** White space that a block may start with. */
  #blank = { kind: 'text' as Prose, text: '' }
  /** Text that arrived while a tool call is open, since more pieces of the call may follow. */
  #waiting: { kind: Prose; text: string }[] = []
  /** Arguments of a call whose name has not arrived yet. */
  #unnamed = ''
  #calls = 0
  #usage: TokenUsage = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 }
  #finish: Delta['finish']
  #stopSequence: string | undefined

  constructor(head: MessageHead) {
    this.#head = head
  }

  /** Returns the events for new deltas. */
  add(deltas: readonly Delta[]): MessageEvent[] {
    for (const { choice, reading, usage, thinking, content, toolCalls = [], finish, stopSequence } of deltas) {
      if (choice) continue
      if (reading) this.#usage = { ...this.#usage, promptTokens: reading.total, cachedTokens: reading.cached }
      this.#usage = usage ?? this.#usage
      if (thinking && !this.#head.omitThinking) this.#say('thinking', thinking)
      if (content) this.#say('text', content)
      for (const piece of toolCalls) this.#call(piece)
      this.#finish ??= finish
      this.#stopSequence ??= stopSequence
    }
    return this.#taken()
  }

  /** Returns the events that end the message. */
  end(): MessageEvent[] {
    this.#close()
    this.#start()
    const stop = this.#stopSequence
    const requested = stop !== undefined && this.#head.stopSequences.includes(stop)
    this.#out.push({
      type: 'message_delta',
      delta: { stop_reason: requested ? 'stop_sequence' : this.#stopReason(), stop_sequence: requested ? stop : null },
      usage: this.#shownUsage()
    })
    this.#out.push({ type: 'message_stop' })
    return this.#taken()
  }

  #taken(): MessageEvent[] {
    const events = this.#out
    this.#out = []
    return events
  }

  #stopReason(): StopReason {
    if (this.#finish === 'length') return 'max_tokens'
    return this.#calls > 0 ? 'tool_use' : 'end_turn'
  }

  #shownUsage(): Usage {
    const { promptTokens, cachedTokens, completionTokens } = this.#usage
    return {
      input_tokens: promptTokens - cachedTokens,
      cache_creation_input_tokens: 0,
      cache_read_input_tokens: cachedTokens,
      output_tokens: completionTokens
    }
  }

  #start(): void {
    if (this.#started) return
    this.#started = true
    const { id, model } = this.#head
    const message: Message = {
      id,
      type: 'message',
      role: 'assistant',
      model,
      content: [],
      stop_reason: null,
      stop_sequence: null,
      usage: { ...this.#shownUsage(), output_tokens: 0 }
    }
    this.#out.push({ type: 'message_start', message }, { type: 'ping' })
  }

  #begin(open: Prose | number, block: ReplyBlock): void {
    this.#start()
    this.#open = open
    this.#blank.text = ''
    this.#out.push({ type: 'content_block_start', index: this.#index, content_block: block })
  }

  #delta(delta: BlockDelta): void {
    this.#out.push({ type: 'content_block_delta', index: this.#index, delta })
  }

  /** Closes the open block and sends the text that waited for it. */
  #close(): void {
    while (this.#open !== undefined) {
      // corral does not verify signatures, but some clients drop thinking without one.
      if (this.#open === 'thinking') this.#delta({ type: 'signature_delta', signature: this.#head.id })
      this.#out.push({ type: 'content_block_stop', index: this.#index++ })
      this.#open = undefined
      for (const { kind, text } of this.#waiting.splice(0)) this.#say(kind, text)
    }
  }

  #say(kind: Prose, text: string): void {
    if (typeof this.#open === 'number') {
      this.#waiting.push({ kind, text })
      return
    }
    let said = text
    if (this.#open !== kind) {
      said = this.#blank.kind === kind ? this.#blank.text + text : text
      if (said.trim() === '') {
        this.#blank = { kind, text: said }
        return
      }
      this.#close()
      this.#begin(kind, kind === 'text' ? { type: kind, text: '' } : { type: kind, thinking: '', signature: '' })
    }
    this.#delta(kind === 'text' ? { type: 'text_delta', text: said } : { type: 'thinking_delta', thinking: said })
  }

  /** The engine sends one call after the other. */
  #call({ index, id, name, arguments: json }: ToolCallPiece): void {
    if (this.#head.oneCall && index > 0) return
    let added = json
    if (this.#open !== index) {
      if (!name) {
        this.#unnamed += json
        return
      }
      this.#close()
      this.#begin(index, { type: 'tool_use', id: toClientId(id ?? `${this.#head.id}_${index}`), name, input: {} })
      this.#calls++
      added = this.#unnamed + json
      this.#unnamed = ''
    }
    if (added) this.#delta({ type: 'input_json_delta', partial_json: added })
  }
}

/** Assembles a message from the events of a stream. */
export function wholeMessage(events: readonly MessageEvent[]): Message {
  const content: ReplyBlock[] = []
  let message: Message | undefined
  let json = ''
  for (const event of events) {
    const block = content.at(-1)
    if (event.type === 'message_start') message = { ...event.message, content }
    else if (event.type === 'content_block_start') {
      content.push({ ...event.content_block })
      json = ''
    } else if (event.type === 'content_block_delta') {
      const { delta } = event
      if (delta.type === 'input_json_delta') json += delta.partial_json
      else if (block?.type === 'text' && delta.type === 'text_delta') block.text += delta.text
      else if (block?.type === 'thinking' && delta.type === 'thinking_delta') block.thinking += delta.thinking
      else if (block?.type === 'thinking' && delta.type === 'signature_delta') block.signature = delta.signature
    } else if (event.type === 'content_block_stop' && block?.type === 'tool_use') {
      try {
        block.input = JSON.parse(json || '{}')
      } catch {
        // The call was truncated by max_tokens and must not look complete. The stop reason reports it.
        content.pop()
      }
    } else if (event.type === 'message_delta') Object.assign(message!, event.delta, { usage: event.usage })
  }
  return message!
}
