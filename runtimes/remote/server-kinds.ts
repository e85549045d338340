import type { EngineFields } from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'

/** The servers whose own ways are known; others are asked as the hosted-chat API has it. */
export const SERVER_KINDS = ['mlx'] as const
type KindName = (typeof SERVER_KINDS)[number]

/** What a kind of server does in its own way. */
export interface ServerKind {
  /** Where its health is asked, by the address of its API. */
  health(url: string): string
  /**
   * A request in its words.
   * @throws CorralError `unsupported_capability` for what it would leave out without a word
   */
  request(alias: string, fields: EngineFields, contextSize: number): EngineFields
}

const HOSTED_CHAT: ServerKind = {
  health: url => `${url}/models`,
  request: (_alias, fields) => fields
}

/** `mlx_lm.server` of mlx-lm 0.32: what it is asked otherwise, and what it refuses or ignores. */
const MLX: ServerKind = {
  // Its list of models reads all of Hugging Face's cache, and fails where there is none.
  health: url => url.replace(/\/v1$/, '/health'),
  request(alias, fields, contextSize) {
    const { repeat_penalty, repeat_last_n, max_tokens, max_completion_tokens, top_k, seed, ...others } = fields
    const refuse = (what: string, param: string) => {
      const message = `The server of model "${alias}" (MLX) ${what}.`
      return new CorralError('unsupported_capability', message, { param })
    }
    if (Number(fields.n ?? 1) > 1) throw refuse('gives one answer to a request, not several ("n")', 'n')
    const format = (fields.response_format as { type?: unknown } | null | undefined)?.type
    if (format !== undefined && format !== 'text') {
      throw refuse('does not hold its answers to JSON or a schema', 'response_format')
    }
    // Without a limit it ends answers after 512 tokens.
    const limit = Number(max_completion_tokens ?? max_tokens ?? -1)
    const window = repeat_last_n === -1 ? contextSize : repeat_last_n
    // Penalties without a window are none.
    const penalized = window !== 0
    return {
      ...Object.fromEntries(
        Object.entries(others).flatMap(([name, value]) => {
          if (!penalized && (name === 'presence_penalty' || name === 'frequency_penalty')) return []
          // Whole numbers are none to it there.
          if (!/^xtc_/.test(name) || !Number.isInteger(value)) return [[name, value]]
          return value === 0 ? [] : [[name, 0.999999]]
        })
      ),
      max_tokens: limit > 0 ? limit : contextSize,
      ...(repeat_penalty !== undefined && penalized && { repetition_penalty: repeat_penalty }),
      ...(window !== undefined &&
        penalized && {
          repetition_context_size: window,
          presence_context_size: window,
          frequency_context_size: window
        }),
      ...(top_k !== undefined && { top_k: Math.max(0, Number(top_k)) }),
      ...(seed !== undefined && Number(seed) >= 0 && { seed })
    }
  }
}

/** What is known of a kind of server; undefined is one that speaks hosted chat and nothing else. */
export function serverKind(name: KindName | undefined): ServerKind {
  return name === 'mlx' ? MLX : HOSTED_CHAT
}
