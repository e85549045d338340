import type { EngineFields } from '../../core/contracts/engines.ts'

/**
 * Fields of llama-server that are never taken from a request. They select slots, whose caches belong to others
 * (`id_slot`), prevent other requests from sharing a batch (`lora`), change how answers are parsed or written, or pass
 * regular expressions and token lists to its own parsers. Clients send some of them with meaningless values, so they
 * are dropped and not rejected.
 */
const NEVER = new Set(
  `id_slot slot_id n_cmpl lora n_cache_reuse n_discard sse_ping_interval response_fields message_delimiters
  grammar_lazy grammar_triggers preserved_tokens chat_format chat_parser parse_tool_calls generation_prompt
  reasoning_budget_start_tag reasoning_budget_end_tags backend_sampling
  chat_template multimodal_data image_data`.split(/\s+/)
)

/** Other names of `max_tokens`, which llama-server would prefer. */
const TOKEN_LIMITS = ['n_predict', 'max_completion_tokens', 'max_output_tokens']

/** Lengths that samplers look back on. llama-server allocates as much as requested, and not all may be negative. */
const LOOK_BACK = ['repeat_last_n', 'dry_penalty_last_n']

/** Prepares a request for llama-server. @param contextSize tokens of each slot */
export function safeFields(body: EngineFields, contextSize: number): EngineFields {
  const safe: EngineFields = {}
  for (const name in body) if (!NEVER.has(name)) safe[name] = body[name]
  if (typeof safe.max_tokens === 'number') for (const name of TOKEN_LIMITS) delete safe[name]
  for (const name of LOOK_BACK) {
    if (Number(safe[name]) > contextSize || Number(safe[name]) < 0) safe[name] = contextSize
  }
  if (safe.reasoning_control !== true) delete safe.reasoning_control
  return safe
}
