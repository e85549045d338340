import type { AnswerSink, EngineFields } from '../../core/contracts/engines.ts'
import type { ModelMetadata } from '../../core/contracts/models.ts'
import { merged } from '../../core/system/collections.ts'
import FIELDS from './request-fields.json' with { type: 'json' }
import { isSmall } from './text-length.ts'

export const CHAT = '/v1/chat/completions'
export const COMPLETION = '/v1/completions'

/** llama-server's own transcription endpoint uses the same instructions. */
const TRANSCRIBE = 'Transcribe audio to text'
const TRANSLATE = 'Translate audio to English text'
/** LFM2's audio models were trained with this system message instead of instructions. */
const LFM2_SYSTEM = 'Perform ASR.'

export function transcriptionChat(
  { audio, language, prompt, translate, ...fields }: EngineFields,
  { architecture, capabilities }: Pick<ModelMetadata, 'architecture' | 'capabilities'>
): EngineFields & { messages: EngineFields[] } {
  const isLfm2 = architecture === 'lfm2' && !translate && !prompt
  const instruction = isLfm2 ? '' : prompt || (translate ? TRANSLATE : TRANSCRIBE)
  const text = language ? `${instruction} (language: ${language})`.trimStart() : instruction
  const content = [
    ...(text === '' ? [] : [{ type: 'text', text }]),
    { type: 'input_audio', input_audio: { data: audio } }
  ]
  return {
    ...fields,
    messages: [...(isLfm2 ? [{ role: 'system', content: LFM2_SYSTEM }] : []), { role: 'user', content }],
    // Thoughts would not belong in the transcript.
    ...(capabilities.includes('thinking') && { chat_template_kwargs: { enable_thinking: false } })
  }
}

/** Maximum tokens of an answer that is requested in one piece. Only this many are wasted if the client disconnects. */
const FEW_TOKENS = 16

/**
 * Whether an answer may be requested in one piece if it is delivered whole. This is true for one choice of a few tokens
 * whose prompt llama-server processes in one batch. If the client disconnects, little more is computed than with a
 * stream.
 */
export function isShortAnswer(
  path: string,
  body: EngineFields,
  { whole, native, stopText, countEach, controlled }: AnswerSink
) {
  const { max_tokens: tokens, tools, n_probs } = body
  return (
    whole === true &&
    !(native || stopText || countEach || controlled) &&
    (path === CHAT || path === COMPLETION) &&
    typeof tokens === 'number' &&
    tokens > 0 &&
    tokens <= FEW_TOKENS &&
    !isWide(body) &&
    !(Array.isArray(tools) && tools.length > 0) &&
    n_probs === undefined &&
    isSmall(body)
  )
}

export const countChoices = ({ n }: EngineFields) => (typeof n === 'number' ? n : 1)

/** A list of tokens is one prompt. */
export const listPrompts = (list: readonly unknown[]) => (typeof list[0] === 'number' ? [list] : list)

/** Whether it asks for several choices or has several prompts. */
export function isWide(body: EngineFields): boolean {
  return countChoices(body) > 1 || (Array.isArray(body.prompt) && listPrompts(body.prompt).length > 1)
}

/** Turns a request for an answer into one that only processes its prompt. */
export function promptOnly(fields: EngineFields): EngineFields {
  const { stream_options, grammar, json_schema, response_format, ...prompt } = fields
  return { ...prompt, max_tokens: 0, n_predict: 0 }
}

/** Seeds each choice as llama-server does for the choices of one request. */
export function getSeed({ seed }: EngineFields, choice: number): EngineFields {
  return typeof seed === 'number' && seed >= 0 ? { seed: seed + choice } : {}
}

/** Turns a request into one for a stream. Without usage in the stream, counts come with the end of each choice. */
export function streamed(fields: EngineFields, { countEach, stopText, native }: AnswerSink): EngineFields {
  const { stream_options, ...rest } = withProbabilities(fields)
  return merged(rest, {
    stream: true,
    return_progress: true,
    ...(countEach && { timings_per_token: true }),
    // With verbose replies, the engine reports which text ended the answer.
    ...((stopText || native) && { verbose: true })
  })
}

/** Uses llama-server's own field, because it rejects "logprobs" when tools are streamed, and treats 0 as none. */
export function withProbabilities({ logprobs, top_logprobs, ...fields }: EngineFields): EngineFields {
  if (!logprobs) return fields
  // Otherwise it would report probabilities for requests that ask for them.
  return { ...fields, n_probs: Math.max(1, Number(top_logprobs ?? 0)), post_sampling_probs: false }
}

export function isConstrained({ response_format, grammar, json_schema, tools }: EngineFields): boolean {
  const type = (response_format as EngineFields | null | undefined)?.type
  return (
    (type !== undefined && type !== 'text') ||
    Boolean(grammar ?? json_schema) ||
    (Array.isArray(tools) && tools.length > 0)
  )
}

export function begunText(messages: unknown): string {
  const last = Array.isArray(messages) ? (messages.at(-1) as EngineFields | undefined) : undefined
  if (last?.role !== 'assistant') return ''
  const { content } = last
  if (typeof content === 'string') return content
  return Array.isArray(content) ? content.map(part => (part as EngineFields | null)?.text ?? '').join('') : ''
}

/**
 * Request fields that llama-server reads in chat completions and completions, from its server-schema.cpp and
 * server-common.cpp and those of older builds, and the `cache` field of corral (`PromptSlots.take`). Fields missing from
 * this list are passed on all the same, and only reported as unknown.
 */
export const KNOWN_OPTIONS: readonly string[] = FIELDS.known

/**
 * Fields of llama-server that are never taken from a request. They select slots, whose caches belong to others
 * (`id_slot`), prevent other requests from sharing a batch (`lora`), change how answers are parsed or written, or pass
 * regular expressions and token lists to its own parsers. Clients send some of them with meaningless values, so they
 * are dropped and not rejected.
 */
const NEVER = new Set(FIELDS.never)

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
