/** A token's log probability as llama-server gives it; its form is that of chat completions. */
export interface TokenProbability {
  token: string
  bytes: number[]
  logprob: number
  top_logprobs: { token: string; bytes: number[]; logprob: number }[]
}

/** The older form, of completions. */
export interface OlderLogprobs {
  tokens: string[]
  token_logprobs: number[]
  top_logprobs: Record<string, number>[] | null
  /** Where each token begins in the text, in characters. */
  text_offset: number[]
}

/**
 * Asks the engine for them by its own name, since it refuses "logprobs" where tools are streamed.
 * @param top how many of the likeliest are wanted; it takes 0 for none at all, also of the token's own
 */
export function askLogprobs(top: number): Record<string, unknown> {
  // Else it would tell probabilities, where a request asks for those.
  return { n_probs: Math.max(1, top), post_sampling_probs: false }
}

/**
 * Tokens with as many of the likeliest as were asked for. One without text is left out: the end of the text, and what
 * llama-server holds back, which comes with the token after it.
 */
export function chatLogprobs(tokens: readonly TokenProbability[], top: number): TokenProbability[] {
  return tokens
    .filter(({ bytes }) => bytes.length > 0)
    .map(({ token, bytes, logprob, top_logprobs }) => ({
      token,
      bytes,
      logprob,
      top_logprobs: top_logprobs.slice(0, top).map(({ token, bytes, logprob }) => ({ token, bytes, logprob }))
    }))
}

/**
 * The same in the form of completions.
 * @param offset characters of the text before the first of these tokens
 */
export function olderLogprobs(tokens: readonly TokenProbability[], top: number, offset: number): OlderLogprobs {
  const told = chatLogprobs(tokens, top)
  let at = offset
  return {
    tokens: told.map(({ token }) => token),
    token_logprobs: told.map(({ logprob }) => logprob),
    top_logprobs: top === 0 ? null : told.map(({ top_logprobs }) => byToken(top_logprobs)),
    text_offset: told.map(({ token }) => {
      const start = at
      at += [...token].length
      return start
    })
  }
}

function byToken(likeliest: TokenProbability['top_logprobs']): Record<string, number> {
  const found = new Map<string, number>()
  // Tokens that are parts of characters may look alike; the likeliest comes first.
  for (const { token, logprob } of likeliest) if (!found.has(token)) found.set(token, logprob)
  return Object.fromEntries(found)
}
