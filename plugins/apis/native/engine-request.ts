import { deflateRawSync, inflateRawSync } from 'node:zlib'
import { callArguments } from '../../../core/answers/call-arguments.ts'
import { withModelDefaults } from '../../../core/answers/engine-fields.ts'
import { withUsableMedia } from '../../../core/answers/media-parts.ts'
import type { Question } from '../../../core/answers/question.ts'
import { readThinking, thinkingFields } from '../../../core/answers/thinking.ts'
import { type EngineSettings, setsTemplate, type TemplateSettings } from '../../../core/config/model-settings.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { invalidRequest } from '../../../core/errors.ts'
import type { ChatRequest, GenerateRequest, Message } from './schemas.ts'

export type NativeCall = Pick<Question, 'operation'> & { body: Record<string, unknown> }

type Part = { type: 'text'; text: string } | { type: 'image_url'; image_url: { url: string } }

/** Engines detect the image type themselves. Some clients send base64 with line breaks. */
function imagePart(image: string): Part {
  const url = image.startsWith('data:') ? image : `data:image/png;base64,${image.replace(/\s+/g, '')}`
  return { type: 'image_url', image_url: { url } }
}

function messageContent(text: string, images: string[] | null | undefined): string | Part[] {
  return images?.length ? [{ type: 'text', text }, ...images.map(imagePart)] : text
}

/**
 * Converts native messages to the OpenAI chat format. Tool calls get ids, and tool results get the ids of their calls.
 */
export function engineMessages(messages: Message[]): Record<string, unknown>[] {
  let calls = 0
  let open: { id: string; name: string }[] = []
  return messages.map(message => {
    const role = message.role ?? 'user'
    const converted: Record<string, unknown> = { role, content: messageContent(message.content ?? '', message.images) }
    if (message.thinking) converted.reasoning_content = message.thinking
    if (message.tool_calls?.length) {
      open = message.tool_calls.map(call => ({ id: call.id ?? `call_${calls++}`, name: call.function.name }))
      converted.tool_calls = message.tool_calls.map(({ function: { name, arguments: value } }, index) => ({
        id: open[index]!.id,
        type: 'function',
        function: { name, arguments: callArguments(value) }
      }))
    }
    if (role === 'tool') {
      const at = message.tool_name ? open.findIndex(call => call.name === message.tool_name) : 0
      const [answered] = open.splice(Math.max(at, 0), 1)
      converted.tool_call_id = message.tool_call_id ?? answered?.id ?? `call_${calls++}`
      if (message.tool_name) converted.name = message.tool_name
    }
    return converted
  })
}

function responseFormat(format: unknown): Record<string, unknown> {
  if (format === undefined || format === null || format === '') return {}
  if (format === 'json') return { response_format: { type: 'json_object' } }
  if (typeof format === 'object') {
    return { response_format: { type: 'json_schema', json_schema: { name: 'answer', schema: format } } }
  }
  throw invalidRequest('format', '"format" must be "json" or a JSON schema.')
}

function formatFields({ format, logprobs, top_logprobs }: ChatRequest | GenerateRequest): Record<string, unknown> {
  const probabilities = logprobs ? { logprobs: true, top_logprobs: top_logprobs ?? 0 } : {}
  return { ...responseFormat(format), ...probabilities }
}

/** Builds the engine's request for a chat. @param sampling the effective options, under the engine's names */
export function chatCall(
  request: ChatRequest,
  variant: Model,
  sampling: Record<string, unknown>,
  engine: Pick<EngineSettings, 'projector'> = {}
): NativeCall {
  // The text is part 0, before the images.
  const place = (message: number, part: number) => `messages[${message}].images[${part - 1}]`
  const messages = withUsableMedia(engineMessages(request.messages ?? []), variant, engine, place)
  return {
    operation: 'chat',
    body: {
      ...sampling,
      ...formatFields(request),
      ...thinkingFields(readThinking({ think: request.think })),
      ...(request.tools?.length ? { tools: request.tools } : {}),
      messages: withModelDefaults(messages, variant.defaults)
    }
  }
}

/** Returns the messages before the prompt: the conversation in `context`, with the request's system message. */
export function earlierTurns({ context, system }: GenerateRequest): Turn[] {
  const turns = decodeContext(context)
  return system ? [{ role: 'system', content: system }, ...turns.filter(({ role }) => role !== 'system')] : turns
}

/**
 * Builds the engine's request for generate: one user message, raw text, or text before a suffix. Base models get plain
 * text, unless there are images.
 */
export function generateCall(
  request: GenerateRequest,
  variant: Model,
  sampling: Record<string, unknown>,
  engine: Pick<EngineSettings, 'projector'> & TemplateSettings = { arguments: [], environment: {} }
): NativeCall {
  const prompt = request.prompt ?? ''
  const turn: Record<string, unknown> = { role: 'user', content: messageContent(prompt, request.images) }
  const turns = withUsableMedia([turn], variant, engine, (_, part) => `images[${part - 1}]`)
  if (request.images?.length && (request.suffix || request.raw)) {
    const other = request.suffix ? 'suffix' : 'raw'
    throw invalidRequest('images', `"images" cannot be combined with "${other}".`)
  }
  if (request.suffix) {
    return { operation: 'completion', body: { ...sampling, prompt, suffix: request.suffix } }
  }
  const format = formatFields(request)
  if (request.raw) return { operation: 'completion', body: { ...sampling, ...format, prompt } }
  const earlier: Record<string, unknown>[] = earlierTurns(request).map(each => ({ ...each }))
  const messages = withModelDefaults([...earlier, ...turns], variant.defaults)
  if (variant.metadata.capabilities.includes('base') && !request.images?.length && !setsTemplate(engine)) {
    return { operation: 'completion', body: { ...sampling, ...format, prompt: bareText(messages) } }
  }
  const thinking = thinkingFields(readThinking({ think: request.think }))
  return { operation: 'chat', body: { ...sampling, ...format, ...thinking, messages } }
}

function bareText(messages: readonly Record<string, unknown>[]): string {
  return messages.map(({ role, content }) => (role === 'system' ? `${content}\n\n` : content)).join('')
}

/*
 * Implements `context` of Ollama's generate: numbers that a client receives with an answer and sends with its next
 * prompt to continue the conversation. In Ollama they are tokens. Here they are the compressed conversation, which
 * works with any model and can be truncated message by message. Clients treat the numbers as opaque.
 */

export interface Turn {
  role: 'system' | 'user' | 'assistant'
  content: string
}

const CONTEXT_MARK = 0xc0_77a1
/** Maximum characters of a conversation. More fits in no model's context. */
const MAX_CHARACTERS = 16 * 2 ** 20

export function encodeContext(turns: readonly Turn[]): number[] {
  const bytes = deflateRawSync(JSON.stringify(turns.map(({ role, content }) => [role, content])))
  const numbers = [CONTEXT_MARK, bytes.length]
  for (let at = 0; at < bytes.length; at += 3) {
    numbers.push((bytes[at]! << 16) | ((bytes[at + 1] ?? 0) << 8) | (bytes[at + 2] ?? 0))
  }
  return numbers
}

/** Decodes a conversation: empty without a context of this server. @throws CorralError if it was changed */
function decodeContext(context: unknown): Turn[] {
  if (!Array.isArray(context) || context[0] !== CONTEXT_MARK) return []
  const [, length, ...numbers] = context as number[]
  const bytes = Buffer.alloc(numbers.length * 3)
  for (const [index, number] of numbers.entries()) bytes.writeUIntBE(number & 0xff_ffff, index * 3, 3)
  try {
    const text = inflateRawSync(bytes.subarray(0, length), { maxOutputLength: MAX_CHARACTERS }).toString()
    const turns: unknown = JSON.parse(text)
    if (Array.isArray(turns) && turns.every(isTurn)) return turns.map(([role, content]) => ({ role, content }))
  } catch {
    // The error below covers this case.
  }
  const message = '"context" was not created by this server or was changed. Send it unchanged, or leave it out.'
  throw invalidRequest('context', message)
}

const isTurn = (turn: unknown): turn is [Turn['role'], string] =>
  Array.isArray(turn) && ['system', 'user', 'assistant'].includes(turn[0]) && typeof turn[1] === 'string'
