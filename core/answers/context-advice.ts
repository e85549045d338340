import { CorralError } from '../errors.ts'

/** The context that was too small. */
export interface FullContext {
  model: string
  /** Tokens of the context. */
  size: number
  /** Tokens that the model was trained for. */
  trained?: number | undefined
  /** Tokens that `limits.num_ctx` allows; 0 is unlimited. */
  allowed: number
}

/** Advice for a full context. It suggests a larger context only if the model and the limits allow one. */
export function contextAdvice({ model, size, trained, allowed }: FullContext): string {
  if (trained !== undefined && size >= trained) {
    return `"${model}" was trained for ${trained} tokens, so its context cannot be larger. Shorten the text, or use a model with a longer context.`
  }
  if (allowed > 0 && size >= allowed) {
    return 'limits.num_ctx does not allow a larger context. Shorten the text, or have the admin raise that limit in config.yaml.'
  }
  return `Shorten the text, or ask for a larger context: "num_ctx" in "options", or models."${model}".options.num_ctx in config.yaml.`
}

/** An engine's error, with advice if the context is full. Errors of other servers stay unchanged. */
export function withContextAdvice(error: CorralError, context: FullContext): CorralError {
  const { code, message, details, param } = error
  if (code !== 'context_exceeded' || /shorten|num_ctx/i.test(message)) return error
  const { n_ctx: size = context.size } = details ?? {}
  const advice = contextAdvice({ ...context, size: Number(size) })
  return new CorralError(code, `${message} ${advice}`, {
    cause: error,
    ...(details && { details }),
    ...(param !== undefined && { param })
  })
}
