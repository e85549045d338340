import { StringDecoder } from 'node:string_decoder'
import type { Delta, ToolCallPiece } from '../contracts/engines.ts'

interface OpenAiMessage {
  content?: string | null
  reasoning_content?: string | null
  tool_calls?: { index?: number; id?: string; function?: { name?: string; arguments?: string } }[]
}

/** An event of a `/v1/chat/completions` or `/v1/completions` stream, with one choice each. */
export interface OpenAiEvent {
  choices?: {
    index?: number
    text?: string
    finish_reason?: string | null
    delta?: OpenAiMessage
    /** Instead of `delta` if the answer came in one piece. */
    message?: OpenAiMessage
    logprobs?: { content?: Delta['logprobs'] | null } | null
  }[]
}

export function toDelta(event: OpenAiEvent): Delta {
  const choice = event.choices?.[0]
  const message = choice?.delta ?? choice?.message
  const delta: Delta = {}
  if (choice?.index) delta.choice = choice.index
  const content = message?.content ?? choice?.text
  if (content) delta.content = content
  if (message?.reasoning_content) delta.thinking = message.reasoning_content
  if (message?.tool_calls) delta.toolCalls = message.tool_calls.map(pieceOf)
  if (choice?.logprobs?.content) delta.logprobs = choice.logprobs.content
  if (choice?.finish_reason) delta.finish = toFinishReason(choice.finish_reason)
  return delta
}

/** The reason why an answer ended. Unknown reasons count as `stop`. */
export function toFinishReason(reason: string): NonNullable<Delta['finish']> {
  return reason === 'length' || reason === 'tool_calls' ? reason : 'stop'
}

function pieceOf(call: NonNullable<OpenAiMessage['tool_calls']>[number]): ToolCallPiece {
  const { name, arguments: text = '' } = call.function ?? {}
  return { index: call.index ?? 0, ...(call.id && { id: call.id }), ...(name && { name }), arguments: text }
}

/** Splits Server-Sent Events into their payloads. Engines send one `data:` line for each event, and comments. */
export class SseParser {
  #rest = ''
  // Several times as fast as TextDecoder for chunks as short as tokens.
  #decoder = new StringDecoder('utf8')

  /** Adds a chunk. Returns the payloads of the `data:` lines that it completes. */
  push(chunk: Uint8Array): string[] {
    const text = this.#rest + this.#decoder.write(chunk)
    const payloads: string[] = []
    let start = 0
    for (let end = text.indexOf('\n'); end !== -1; end = text.indexOf('\n', start)) {
      if (text.startsWith('data:', start))
        payloads.push(text.slice(start + (text[start + 5] === ' ' ? 6 : 5), end).trimEnd())
      start = end + 1
    }
    this.#rest = text.slice(start)
    return payloads
  }
}
