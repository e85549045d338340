import type { ToolCallPiece } from '../contracts/engines.ts'
import { isObject, parseAnyJson } from '../system/json-object.ts'
import { JsonScan } from '../system/json-scan.ts'

/** Nesting allowed in arguments. llama-server crashes at about ten thousand levels. */
const MAX_DEPTH = 100
/** Valid JSON that engines in C++ refuse: lone surrogates, and numbers beyond the range of a double. */
const MAY_BE_REFUSED = /\\u[dD][89a-fA-F]|[eE]\+?\d{3}|\d{300}/

/**
 * Converts the arguments of an earlier tool call to the JSON text of an object, which is all that chat templates and
 * engines accept. Absent and empty arguments become `{}`. Anything else, such as text that `max_tokens` truncated,
 * becomes `{"arguments": …}`: the model still sees what it wrote, and the conversation can continue. Accepted text is
 * not rewritten, so that the engine's prompt cache still applies to it.
 */
export function callArguments(given: unknown): string {
  if (given === undefined || given === null) return '{}'
  if (typeof given !== 'string') return JSON.stringify(isObject(given) ? given : { arguments: given })
  const value = parse(given)
  if (value === null) return '{}'
  if (!isObject(value)) return JSON.stringify({ arguments: value ?? given })
  return MAY_BE_REFUSED.test(given) ? acceptable(value) : given
}

/** Adds a piece of a streamed call to the calls so far, which are stored by index. */
export function addCallPiece(calls: ToolCallPiece[], { index, id, name = '', arguments: text }: ToolCallPiece): void {
  calls[index] ??= { index, name: '', arguments: '' }
  const call = calls[index]
  if (id) call.id = id
  call.name += name
  call.arguments += text
}

/** Makes the end of a conversation usable for engines: calls get results, and answers in a row are joined. */
export function withUsableEnd<Body extends Record<string, unknown> | undefined>(body: Body): Body {
  const messages: Message[] = Array.isArray(body?.messages) ? body.messages : []
  const start = messages.findLastIndex(message => message?.role !== 'assistant') + 1
  if (messages.length - start < 2 && !messages.at(-1)?.tool_calls) return body
  const end: Message[] = []
  for (const message of messages.slice(start)) {
    const last = end.at(-1)
    if (last?.role !== 'assistant') end.push(message)
    else end[end.length - 1] = { ...last, ...message, content: [last, message].map(textOf).filter(Boolean).join('\n') }
    const calls = Array.isArray(message.tool_calls) ? message.tool_calls : []
    for (const call of calls) end.push({ role: 'tool', tool_call_id: call?.id, content: 'The tool was not run.' })
  }
  return { ...body, messages: [...messages.slice(0, start), ...end] }
}

type Message = Record<string, unknown>

function textOf({ content }: Message): string {
  if (!Array.isArray(content)) return typeof content === 'string' ? content : ''
  return content.map(part => part?.text ?? '').join('')
}

function parse(text: string): unknown {
  if (text.trim() === '') return null
  if (new JsonScan(text, MAX_DEPTH).next(text.length)) return undefined
  return parseAnyJson(text)
}

/** The JSON text of a value, with U+FFFD for lone surrogates and null for infinite numbers. */
function acceptable(value: unknown): string {
  return JSON.stringify(value).replace(/(?<!\\)((?:\\\\)*)\\ud[89a-f][0-9a-f]{2}/g, '$1\\ufffd')
}
