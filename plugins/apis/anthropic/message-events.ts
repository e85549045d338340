import type { Delta, TokenUsage, ToolCallPiece } from '../../../core/contracts/engines.ts'
import { shownId } from './messages.ts'
import type { BlockDelta, Message, MessageEvent, ReplyBlock, StopReason, Usage } from './schemas.ts'

type Prose = 'text' | 'thinking'

export interface MessageHead {
  id: string
  /** As in the request. */
  model: string
  /** Texts that may end the answer. */
  stopSequences: readonly string[]
  /** Whether thoughts are left out. */
  omitThinking?: boolean
  /** Whether the answer may call one tool only; not all of the engine's grammars keep to that. */
  oneCall?: boolean
}

/**
 * Makes the events of Anthropic's streams of an engine's answer. Blocks are numbered without gaps and follow one
 * another: each is complete before the next begins. Blocks of nothing but blanks, which models like to put between
 * thoughts and calls, are left out: clients could not send them back.
 */
export class MessageEvents {
  #head: MessageHead
  #out: MessageEvent[] = []
  #started = false
  #index = 0
  /** The block that is open; a number is a tool call's. */
  #open: Prose | number | undefined
  /** Blanks that a block may begin with. */
  #blank = { kind: 'text' as Prose, text: '' }
  /** Prose that arrived while a call is open; another piece of the call may still come. */
  #waiting: { kind: Prose; text: string }[] = []
  /** Arguments of a call whose name has not come yet. */
  #unnamed = ''
  #calls = 0
  #usage: TokenUsage = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 }
  #finish: Delta['finish']
  #stopSequence: string | undefined

  constructor(head: MessageHead) {
    this.#head = head
  }

  /** The events of what the engine adds. */
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

  /** The events that end the message. */
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

  /** Ends the open block; the prose that waited for its end follows. */
  #close(): void {
    while (this.#open !== undefined) {
      // Nothing here checks signatures, but some clients drop thoughts without one.
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

  /** Pieces of the engine's calls come call by call. */
  #call({ index, id, name, arguments: json }: ToolCallPiece): void {
    if (this.#head.oneCall && index > 0) return
    let added = json
    if (this.#open !== index) {
      if (!name) {
        this.#unnamed += json
        return
      }
      this.#close()
      this.#begin(index, { type: 'tool_use', id: shownId(id ?? `${this.#head.id}_${index}`), name, input: {} })
      this.#calls++
      added = this.#unnamed + json
      this.#unnamed = ''
    }
    if (added) this.#delta({ type: 'input_json_delta', partial_json: added })
  }
}

/** The message that the events of a stream make. */
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
        // Cut off by max_tokens, as the stop reason says. Half a call must not be taken for a whole one.
        content.pop()
      }
    } else if (event.type === 'message_delta') Object.assign(message!, event.delta, { usage: event.usage })
  }
  return message!
}
