import type { TokenProbability } from '../../core/contracts/engines.ts'

/** The older form, of completions. */
export interface OlderLogprobs {
  tokens: string[]
  token_logprobs: number[]
  top_logprobs: Record<string, number>[] | null
  /** Where each token begins in the text, in characters. */
  text_offset: number[]
}

/** Requests them of an engine. @param top how many of the likeliest are wanted */
export function askLogprobs(top: number): Record<string, unknown> {
  return { logprobs: true, top_logprobs: top }
}

/**
 * Tokens with as many of the likeliest as were asked for. One without text is left out: the end of the text, and what
 * an engine holds back, which comes with the token after it.
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
