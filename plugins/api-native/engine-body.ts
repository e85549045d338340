import { CorralError } from '../../core/errors.ts'
import { withModelDefaults } from '../../core/http/model-defaults.ts'
import type { EngineCall } from '../../core/http/read-answer.ts'
import type { StoredVariant } from '../../core/services.ts'
import type { ChatRequest, GenerateRequest, Message } from './schemas.ts'

type Part = { type: 'text'; text: string } | { type: 'image_url'; image_url: { url: string } }

/** First bytes of the image formats that llama-server reads, in base64. */
const IMAGE_TYPES: [string, string][] = [
  ['iVBOR', 'image/png'],
  ['/9j/', 'image/jpeg'],
  ['R0lGOD', 'image/gif'],
  ['UklGR', 'image/webp'],
  ['Qk', 'image/bmp']
]

function imagePart(image: string): Part {
  if (image.startsWith('data:')) return { type: 'image_url', image_url: { url: image } }
  const type = IMAGE_TYPES.find(([start]) => image.startsWith(start))?.[1] ?? 'image/png'
  return { type: 'image_url', image_url: { url: `data:${type};base64,${image}` } }
}

function contentOf(text: string, images: string[] | null | undefined): string | Part[] {
  return images?.length ? [{ type: 'text', text }, ...images.map(imagePart)] : text
}

/** Native messages as llama-server takes them: tool calls get ids, and tool results the id of the call they answer. */
export function engineMessages(messages: Message[]): Record<string, unknown>[] {
  let calls = 0
  let open: { id: string; name: string }[] = []
  return messages.map(message => {
    const role = message.role ?? 'user'
    const converted: Record<string, unknown> = { role, content: contentOf(message.content ?? '', message.images) }
    if (message.thinking) converted.reasoning_content = message.thinking
    if (message.tool_calls?.length) {
      const withIds = message.tool_calls.map(call => ({
        id: call.id ?? `call_${calls++}`,
        type: 'function',
        function: {
          name: call.function.name,
          arguments:
            typeof call.function.arguments === 'string'
              ? call.function.arguments
              : JSON.stringify(call.function.arguments ?? {})
        }
      }))
      converted.tool_calls = withIds
      open = withIds.map(call => ({ id: call.id, name: call.function.name }))
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
  throw new CorralError('invalid_request', '"format" must be "json" or a JSON schema.', { param: 'format' })
}

function thinking(think: boolean | string | null | undefined): Record<string, unknown> {
  if (think === undefined || think === null) return {}
  const template = { chat_template_kwargs: { enable_thinking: think !== false } }
  return typeof think === 'string' ? { ...template, reasoning_effort: think } : template
}

/** llama-server gives none where the count is 0, and the token's own with any. */
function probabilities({ logprobs, top_logprobs }: ChatRequest | GenerateRequest): Record<string, unknown> {
  return logprobs ? { n_probs: Math.max(1, top_logprobs ?? 0) } : {}
}

function requireVision(variant: StoredVariant, images: boolean): void {
  if (!images || variant.metadata.capabilities.includes('vision')) return
  throw new CorralError(
    'unsupported_capability',
    `Model "${variant.publicName}" cannot see images: it has no projector (mmproj) file. Use a vision model, or import it together with its projector.`,
    { param: 'images' }
  )
}

/** The engine's request for a native chat. `sampling` are the options in force, under the engine's names. */
export function chatCall(request: ChatRequest, variant: StoredVariant, sampling: Record<string, unknown>): EngineCall {
  const messages = request.messages ?? []
  requireVision(
    variant,
    messages.some(message => message.images?.length)
  )
  return {
    path: '/v1/chat/completions',
    body: {
      ...sampling,
      ...responseFormat(request.format),
      ...thinking(request.think),
      ...probabilities(request),
      ...(request.tools?.length ? { tools: request.tools } : {}),
      messages: withModelDefaults(engineMessages(messages), variant.defaults)
    }
  }
}

/** The engine's request for a native generate: templated as one user turn, raw, or filling in before a suffix. */
export function generateCall(
  request: GenerateRequest,
  variant: StoredVariant,
  sampling: Record<string, unknown>
): EngineCall {
  const prompt = request.prompt ?? ''
  requireVision(variant, Boolean(request.images?.length))
  if (request.suffix) {
    const { max_tokens, ...others } = sampling
    return {
      path: '/infill',
      body: { ...others, n_predict: max_tokens, input_prefix: prompt, input_suffix: request.suffix }
    }
  }
  const format = { ...responseFormat(request.format), ...probabilities(request) }
  if (request.raw) return { path: '/v1/completions', body: { ...sampling, ...format, prompt } }
  const messages: Record<string, unknown>[] = [{ role: 'user', content: contentOf(prompt, request.images) }]
  if (request.system) messages.unshift({ role: 'system', content: request.system })
  return {
    path: '/v1/chat/completions',
    body: {
      ...sampling,
      ...format,
      ...thinking(request.think),
      messages: withModelDefaults(messages, variant.defaults)
    }
  }
}
