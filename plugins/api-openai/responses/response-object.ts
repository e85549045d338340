import type { TokenUsage } from '../../../core/contracts/engines.ts'
import type { CorralError } from '../../../core/errors.ts'
import type { EngineFields } from './engine-request.ts'
import type { OutputItem } from './items.ts'
import type { ResponseRequest } from './request-schema.ts'

/** How far a response is. */
export interface ResponseState {
  status: 'in_progress' | 'completed' | 'incomplete' | 'failed'
  output: readonly OutputItem[]
  usage?: TokenUsage & { reasoningTokens: number }
  failure?: CorralError
}

/** The Responses API's object of a response. */
export type ResponseObject = Record<string, unknown> & { id: string; output: readonly OutputItem[] }

/** What stays the same of a response from its beginning to its end. */
export interface ResponseHead {
  id: string
  /** Seconds since the epoch. */
  createdAt: number
  request: ResponseRequest
  engine: EngineFields
  /** The options in force. */
  sampling: Record<string, unknown>
  truncation: 'auto' | 'disabled'
}

const seconds = () => Math.floor(Date.now() / 1000)

/** OpenAI's own words for why a response failed; the event that ends the stream has corral's. */
function failureCode({ code, status }: CorralError): string {
  if (code === 'queue_full') return 'rate_limit_exceeded'
  return status < 500 ? 'invalid_prompt' : 'server_error'
}

function usageObject({
  promptTokens,
  cachedTokens,
  completionTokens,
  reasoningTokens
}: Required<ResponseState>['usage']) {
  return {
    input_tokens: promptTokens,
    // Of what is written to caches, nothing is counted.
    input_tokens_details: { cached_tokens: cachedTokens, cache_write_tokens: 0 },
    output_tokens: completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens },
    total_tokens: promptTokens + completionTokens
  }
}

/** The response with everything that OpenAI's type has, the request's own fields repeated. */
export function responseObject(head: ResponseHead, state: ResponseState): ResponseObject {
  const { id, createdAt, request, engine, sampling, truncation } = head
  const { status, output, usage, failure } = state
  return {
    id,
    object: 'response',
    created_at: createdAt,
    status,
    background: false,
    completed_at: status === 'completed' ? seconds() : null,
    error: failure ? { code: failureCode(failure), message: failure.message } : null,
    incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
    instructions: request.instructions ?? null,
    max_output_tokens: request.max_output_tokens ?? null,
    max_tool_calls: null,
    metadata: request.metadata ?? {},
    model: request.model ?? request.name,
    output,
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
    tools: engine.tools,
    top_logprobs: engine.logprobs ?? 0,
    top_p: sampling.top_p ?? null,
    truncation,
    ...(usage && { usage: usageObject(usage) }),
    ...(request.user && { user: request.user })
  }
}
