import type { EngineFields } from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'

/** The server programs that need special treatment. Others are used through the standard chat API. */
export const SERVER_KINDS = ['mlx'] as const
type KindName = (typeof SERVER_KINDS)[number]

export interface ServerKind {
  /** Returns the address of its health check from the address of its API. */
  health(url: string): string
  /** Translates a request. @throws CorralError `unsupported_capability` for fields that would be ignored */
  request(alias: string, fields: EngineFields, contextSize: number): EngineFields
}

const HOSTED_CHAT: ServerKind = {
  health: url => `${url}/models`,
  request: (_alias, fields) => fields
}

/** `mlx_lm.server` of mlx-lm 0.32: fields that it names differently, and fields that it rejects or ignores. */
const MLX: ServerKind = {
  // The server's list of models reads all of Hugging Face's cache, and fails without one.
  health: url => url.replace(/\/v1$/, '/health'),
  request(alias, fields, contextSize) {
    const { repeat_penalty, repeat_last_n, max_tokens, max_completion_tokens, top_k, seed, ...others } = fields
    const refuse = (what: string, param: string) => {
      const message = `The server of model "${alias}" (MLX) ${what}.`
      return new CorralError('unsupported_capability', message, { param })
    }
    if (Number(fields.n ?? 1) > 1) throw refuse('gives only one answer per request, not several ("n")', 'n')
    const format = (fields.response_format as { type?: unknown } | null | undefined)?.type
    if (format !== undefined && format !== 'text') {
      throw refuse('does not constrain its answers to JSON or a schema', 'response_format')
    }
    // Without a limit it ends answers after 512 tokens.
    const limit = Number(max_completion_tokens ?? max_tokens ?? -1)
    const window = repeat_last_n === -1 ? contextSize : repeat_last_n
    // Penalties without a window have no effect.
    const penalized = window !== 0
    return {
      ...Object.fromEntries(
        Object.entries(others).flatMap(([name, value]) => {
          if (!penalized && (name === 'presence_penalty' || name === 'frequency_penalty')) return []
          // The server does not accept integers for these fields.
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

export function serverKind(name: KindName | undefined): ServerKind {
  return name === 'mlx' ? MLX : HOSTED_CHAT
}
