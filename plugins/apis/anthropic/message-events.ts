import type { Delta, TokenUsage, ToolCallPiece } from '../../../core/contracts/engines.ts'
import type { HostedEvent } from '../../../core/contracts/tool-host.ts'
import { parseAnyJson } from '../../../core/system/json-object.ts'
import type { ManagedContext } from './context-management.ts'
import { toClientId } from './history.ts'
import { hostedBlock } from './message-tools.ts'
import type { BlockDelta, Message, MessageEvent, ReplyBlock, StopReason, Usage } from './schemas.ts'

type Prose = 'text' | 'thinking'

export interface MessageHead {
  id: string
  model: string
  stopSequences: readonly string[]
  omitThinking?: boolean
  /** Whether the answer may have only one tool call. Not every grammar of the engine enforces this. */
  oneCall?: boolean
  /** The fields of calls of functions that have another name in the request. */
  called?: ReadonlyMap<string, { name: string; toolset_name: string } | undefined>
  /** The changes of tools within the messages, which a summary of them must repeat. */
  toolChanges?: readonly object[]
}

/**
 * Turns an engine's answer into the events of Anthropic's streams. Blocks are numbered without gaps, and each one ends
 * before the next starts. Blocks of white space, which models tend to put between thinking and tool calls, are dropped
 * because clients could not send them back.
 */
export class MessageEvents {
  #head: MessageHead
  #out: MessageEvent[] = []
  readonly #content: ReplyBlock[] = []
  #json = ''
  #started = false
  #index = 0
  /** The open block. A number is the index of a tool call. */
  #open: Prose | number | undefined
  #blank = { kind: 'text' as Prose, text: '' }
  /** Text that arrived while a tool call is open, since more pieces of the call may follow. */
  #waiting: { kind: Prose; text: string }[] = []
  #unnamed = ''
  #calls = 0
  #usage: TokenUsage = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 }
  #finish: Delta['finish']
  #stopSequence: string | undefined
  #managed: ManagedContext | undefined

  /** @param earlier the events of an attempt that sent no content, which the client already has */
  constructor(head: MessageHead, earlier?: MessageEvents) {
    this.#head = head
    if (earlier) this.#started = earlier.#started
  }

  beat(): MessageEvent[] {
    if (this.#started) return [{ type: 'ping' }]
    this.#start()
    return this.#taken()
  }

  /** What to ask the engine in place of the request's conversation. */
  get body(): ManagedContext['body'] | undefined {
    return this.#managed?.body
  }

  /** Reports what was done to the conversation. A summary of it is the first block. */
  manage(managed: ManagedContext | undefined): this {
    this.#managed = managed
    if (!managed?.summary) return this
    this.#start()
    const block = { type: 'compaction' as const, content: null, encrypted_content: null }
    const { text: content = null } = managed.summary
    const tool_changes = [...(this.#head.toolChanges ?? [])]
    const index = this.#index++
    this.#content.push({ ...block, content, tool_changes })
    this.#out.push(
      { type: 'content_block_start', index, content_block: { ...block, tool_changes } },
      { type: 'content_block_delta', index, delta: { ...block, type: 'compaction_delta', content } },
      { type: 'content_block_stop', index }
    )
    return this
  }

  add(deltas: readonly Delta[]): MessageEvent[] {
    for (const { choice, reading, usage, thinking, content, toolCalls = [], finish, stopSequence, hosted } of deltas) {
      if (choice) continue
      if (reading) this.#usage = { ...this.#usage, promptTokens: reading.total, cachedTokens: reading.cached }
      this.#usage = usage ?? this.#usage
      if (hosted) this.#host(hosted)
      if (thinking && !this.#head.omitThinking) this.#say('thinking', thinking)
      if (content) this.#say('text', content)
      for (const piece of toolCalls) this.#call(piece)
      this.#finish ??= finish
      this.#stopSequence ??= stopSequence
    }
    return this.#taken()
  }

  end(): MessageEvent[] {
    this.#close()
    this.#start()
    const usage = this.#shownUsage()
    this.#out.push({ type: 'message_delta', delta: this.#ending(), usage, ...this.#shownEdits() })
    this.#out.push({ type: 'message_stop' })
    return this.#taken()
  }

  whole(): Message {
    this.#close()
    return { ...this.#message(this.#content, this.#shownUsage(), this.#ending()), ...this.#shownEdits() }
  }

  #taken(): MessageEvent[] {
    const events = this.#out
    this.#out = []
    return events
  }

  #message(content: ReplyBlock[], usage: Usage, ending: Pick<Message, 'stop_reason' | 'stop_sequence'>): Message {
    const { id, model } = this.#head
    return { id, type: 'message', role: 'assistant', model, content, ...ending, usage }
  }

  #ending(): { stop_reason: StopReason; stop_sequence: string | null } {
    const stop = this.#stopSequence
    if (stop !== undefined && this.#head.stopSequences.includes(stop)) {
      return { stop_reason: 'stop_sequence', stop_sequence: stop }
    }
    if (this.body === false) return { stop_reason: 'compaction', stop_sequence: null }
    const reason = this.#finish === 'length' ? 'max_tokens' : this.#calls > 0 ? 'tool_use' : 'end_turn'
    return { stop_reason: reason, stop_sequence: null }
  }

  #shownEdits(): Pick<Message, 'context_management'> {
    return this.#managed ? { context_management: { applied_edits: this.#managed.applied } } : {}
  }

  /** The tokens of a summary are only in the list of calls, as in Anthropic's API. */
  #shownUsage(): Usage {
    const usage = toUsage(this.#usage)
    const { summary } = this.#managed ?? {}
    if (!summary) return usage
    const iterations = [{ type: 'compaction', ...toUsage(summary.usage) }]
    if (this.body) iterations.push({ type: 'message', ...usage })
    return { ...usage, iterations }
  }

  #start(): void {
    if (this.#started) return
    this.#started = true
    const usage = { ...this.#shownUsage(), output_tokens: 0 }
    const message = this.#message([], usage, { stop_reason: null, stop_sequence: null })
    this.#out.push({ type: 'message_start', message }, { type: 'ping' })
  }

  #begin(open: Prose | number, block: ReplyBlock): void {
    this.#start()
    this.#open = open
    this.#blank.text = ''
    this.#json = ''
    this.#content.push({ ...block })
    this.#out.push({ type: 'content_block_start', index: this.#index, content_block: block })
  }

  #delta(delta: BlockDelta): void {
    const block = this.#content.at(-1)
    if (delta.type === 'input_json_delta') this.#json += delta.partial_json
    else if (block?.type === 'text' && delta.type === 'text_delta') block.text += delta.text
    else if (block?.type === 'thinking' && delta.type === 'thinking_delta') block.thinking += delta.thinking
    else if (block?.type === 'thinking' && delta.type === 'signature_delta') block.signature = delta.signature
    this.#out.push({ type: 'content_block_delta', index: this.#index, delta })
  }

  #close(): void {
    while (this.#open !== undefined) {
      // corral does not verify signatures, but some clients drop thinking without one.
      if (this.#open === 'thinking') this.#delta({ type: 'signature_delta', signature: this.#head.id })
      this.#out.push({ type: 'content_block_stop', index: this.#index++ })
      if (typeof this.#open === 'number') this.#closeCall()
      this.#open = undefined
      for (const { kind, text } of this.#waiting.splice(0)) this.#say(kind, text)
    }
  }

  #closeCall(): void {
    const call = this.#content.at(-1) as Extract<ReplyBlock, { type: 'tool_use' }>
    const input = parseAnyJson(this.#json || '{}')
    // A call that max_tokens truncated must not look complete. The stop reason reports it.
    if (input === undefined) this.#content.pop()
    else call.input = input
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

  /** Adds a block of a tool that corral runs, which is complete at once. */
  #host(event: HostedEvent): void {
    const block = hostedBlock(event)
    if (!block) return
    this.#close()
    const { input } = block as { input?: unknown }
    this.#begin('text', input === undefined ? block : ({ ...block, input: {} } as ReplyBlock))
    if (input !== undefined) this.#delta({ type: 'input_json_delta', partial_json: JSON.stringify(input) })
    this.#close()
    Object.assign(this.#content.at(-1)!, block)
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
      const called = this.#head.called?.get(name) ?? { name }
      this.#begin(index, { type: 'tool_use', id: toClientId(id ?? `${this.#head.id}_${index}`), ...called, input: {} })
      this.#calls++
      added = this.#unnamed + json
      this.#unnamed = ''
    }
    if (added) this.#delta({ type: 'input_json_delta', partial_json: added })
  }
}

function toUsage({ promptTokens, cachedTokens, completionTokens }: TokenUsage): Usage {
  return {
    input_tokens: promptTokens - cachedTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cachedTokens,
    output_tokens: completionTokens
  }
}
