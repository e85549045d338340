import type { EngineFields } from '../../core/contracts/engines.ts'
import fields from './request-fields.json' with { type: 'json' }

/**
 * Request fields that llama-server reads in chat completions and completions, from its server-schema.cpp and
 * server-common.cpp and those of older builds, and the `cache` field of corral (`PromptSlots.take`). Fields missing from
 * this list are passed on all the same, and only reported as unknown.
 */
export const KNOWN_OPTIONS: readonly string[] = fields.known

/**
 * Fields of llama-server that are never taken from a request. They select slots, whose caches belong to others
 * (`id_slot`), prevent other requests from sharing a batch (`lora`), change how answers are parsed or written, or pass
 * regular expressions and token lists to its own parsers. Clients send some of them with meaningless values, so they
 * are dropped and not rejected.
 */
const NEVER = new Set(fields.never)

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
