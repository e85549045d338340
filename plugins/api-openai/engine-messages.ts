import { CorralError } from '../../core/errors.ts'
import type { ChatMessage, ContentPart } from './request-schemas.ts'

type Fields = Record<string, unknown>

/** Kinds of parts that engines read. */
const PARTS = ['text', 'image_url', 'input_audio', 'input_video', 'video_url']

function invalid(param: string, allowed: string): CorralError {
  return new CorralError('invalid_request', `"${param}" must be ${allowed}.`, { param })
}

/**
 * Hosted-chat messages as engines take them: one without a role is the user's, a refusal is what was said, and
 * the older calls of functions are calls of tools.
 * @throws CorralError `invalid_request` naming the place
 */
export function engineMessages(messages: readonly ChatMessage[]): Fields[] {
  let calls = 0
  return messages.map((message, index) => {
    const at = `messages[${index}]`
    const { function_call, tool_calls, refusal, ...rest } = message
    const given: Fields = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null))
    given.role ??= 'user'
    const callsMade = toolCalls(message, () => `call_${++calls}`)
    if (callsMade.length > 0) given.tool_calls = callsMade
    const content = message.content ?? refusal
    if (typeof content === 'string') given.content = content
    else if (content) given.content = content.map((part, number) => enginePart(part, `${at}.content[${number}]`))
    else if (given.role !== 'assistant' || (callsMade.length === 0 && message.content === undefined)) {
      throw invalid(`${at}.content`, 'text or a list of parts')
    } else given.content = null
    if (given.role === 'function') {
      // It answers the call before it.
      given.role = 'tool'
      given.tool_call_id = `call_${calls}`
    }
    return given
  })
}

function toolCalls({ tool_calls, function_call }: ChatMessage, newId: () => string): Fields[] {
  const made = tool_calls?.length ? tool_calls : function_call ? [{ function: function_call }] : []
  return made.map(call => {
    const { arguments: given } = call.function
    return {
      ...call,
      id: ('id' in call && call.id) || newId(),
      type: 'function',
      function: { ...call.function, arguments: typeof given === 'string' ? given : JSON.stringify(given ?? {}) }
    }
  })
}

function enginePart(part: ContentPart, at: string): Fields {
  if (part.type === 'refusal') return { type: 'text', text: part.refusal ?? '' }
  if (!PARTS.includes(part.type)) {
    throw invalid(`${at}.type`, '"text", "image_url" or "input_audio"')
  }
  if (part.type === 'text' && typeof part.text !== 'string') throw invalid(`${at}.text`, 'text')
  // Some clients leave out the object around the address.
  if (part.type === 'image_url' && typeof part.image_url === 'string') {
    return { type: 'image_url', image_url: { url: part.image_url } }
  }
  return part
}
