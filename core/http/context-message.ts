import type { CorralError } from '../errors.ts'

/**
 * Returns the message of an error. If the context is full and both numbers are known, `say` words the first sentence, as
 * the vendor of the API does, because programs recognize a full context by these words. The advice stays.
 * @param say gets the tokens of the prompt, and those of the context
 */
export function contextMessage(
  { code, message, details }: CorralError,
  say: (promptTokens: unknown, contextSize: unknown) => string
): string {
  const { n_prompt_tokens: tokens, n_ctx: most } = details ?? {}
  if (code !== 'context_exceeded' || tokens === undefined) return message
  const [, advice = ''] = /\.( .*)$/s.exec(message) ?? []
  return say(tokens, most) + advice
}
