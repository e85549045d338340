import type { CorralError } from '../errors.ts'

/**
 * Returns the message of an error. If the context is full, it begins with the words of the API's vendor, because
 * programs recognize a full context by these. The advice stays.
 * @param counted words the first sentence from the tokens of the prompt and those of the context
 * @param uncounted comes before the message of an engine that has not counted
 */
export function contextMessage(
  { code, message, details }: CorralError,
  counted: (promptTokens: unknown, contextSize: unknown) => string,
  uncounted: string
): string {
  const { n_prompt_tokens: tokens, n_ctx: most } = details ?? {}
  if (code !== 'context_exceeded') return message
  if (tokens === undefined) return message.startsWith(uncounted) ? message : `${uncounted}: ${message}`
  const [, advice = ''] = /\.( .*)$/s.exec(message) ?? []
  return counted(tokens, most) + advice
}
