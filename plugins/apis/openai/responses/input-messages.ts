import { callArguments } from '../../../../core/answers/call-arguments.ts'
import { engineName } from './response-request.ts'
import type { InputPart, Item } from './schemas.ts'

type Content = string | Record<string, unknown>[]

/** A message in the engine's format. */
interface EngineMessage {
  role: 'system' | 'user' | 'assistant' | 'tool'
  content?: Content
  reasoning_content?: string
  tool_calls?: { id: string; type: 'function'; function: { name: string; arguments: string } }[]
  tool_call_id?: string
  name?: string
  [other: string]: unknown
}

/** An item and its place in the request. Items of earlier responses have no place. */
export interface PlacedItem {
  item: Item
  place?: string
}

function engineContent(parts: readonly InputPart[]): Content {
  const [first] = parts
  if (parts.length === 1 && first!.type === 'input_text') return first!.text
  return parts.map(part => {
    if (part.type === 'input_text') return { type: 'text', text: part.text }
    if (part.type === 'input_image') return { type: 'image_url', image_url: { url: part.image_url } }
    return { ...part }
  })
}

/**
 * Converts a conversation to chat messages. Consecutive reasoning, text and calls become one assistant message, and
 * leading system messages become one, because many templates allow no more.
 * @returns the messages, and the place of each one's content in the request
 */
export function engineMessages(
  items: readonly PlacedItem[],
  instructions?: string
): { messages: EngineMessage[]; places: string[] } {
  const messages: EngineMessage[] = []
  const places: string[] = []
  const names = new Map<string, string>()
  const answered = new Set(items.map(({ item }) => item.type === 'function_call_output' && item.call_id))
  const push = (message: EngineMessage, place = 'previous_response_id') => {
    messages.push(message)
    places.push(place)
    return message
  }
  /** Returns the last assistant message, or a new one if the last has a field that must come after the added one. */
  const assistant = (...closed: (keyof EngineMessage)[]) => {
    const last = messages.at(-1)
    const open = last?.role === 'assistant' && closed.every(field => last[field] === undefined)
    return open ? last : push({ role: 'assistant' })
  }
  if (instructions) push({ role: 'system', content: instructions }, 'instructions')
  for (const { item, place } of items) {
    switch (item.type) {
      case 'reasoning': {
        const text = (item.content.length > 0 ? item.content : item.summary).map(part => part.text).join('\n')
        if (text) assistant('content', 'tool_calls', 'reasoning_content').reasoning_content = text
        break
      }
      case 'function_call': {
        const name = engineName(item)
        names.set(item.call_id, name)
        // A truncated call is kept only if the client answered it.
        if (item.status === 'incomplete' && !answered.has(item.call_id)) break
        const message = assistant()
        message.tool_calls ??= []
        message.tool_calls.push({
          id: item.call_id,
          type: 'function',
          function: { name, arguments: callArguments(item.arguments) }
        })
        break
      }
      case 'function_call_output': {
        const { call_id, output } = item
        const name = names.get(call_id)
        const content = typeof output === 'string' ? output : engineContent(output)
        push({ role: 'tool', tool_call_id: call_id, ...(name && { name }), content }, place && `${place}.output`)
        break
      }
      default:
        if (item.role === 'assistant') {
          assistant('content', 'tool_calls').content = item.content.map(part => part.text).join('')
        } else if (item.role === 'user') {
          push({ role: 'user', content: engineContent(item.content) }, place && `${place}.content`)
        } else addSystem(engineContent(item.content), place && `${place}.content`)
    }
  }
  // Engines require content in a message without calls.
  for (const message of messages) if (!message.tool_calls) message.content ??= ''
  return { messages, places }

  function addSystem(content: Content, place: string | undefined): void {
    const [first] = messages
    const joinable = messages.length === 1 && first!.role === 'system' && typeof first!.content === 'string'
    if (joinable && typeof content === 'string') first!.content = `${first!.content}\n\n${content}`
    else push({ role: 'system', content }, place)
  }
}
