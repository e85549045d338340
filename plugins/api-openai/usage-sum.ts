/** Token counts of a request as llama-server gives them with each of its choices. */
export interface Usage {
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
  prompt_tokens_details?: { cached_tokens: number }
}

/** The counts of a request with several choices: each prompt is counted once, and the tokens of all choices. */
export class UsageSum {
  readonly #prompts = new Map<number, { tokens: number; cached: number }>()
  #completionTokens = 0
  /** How many choices were counted. */
  choices = 0

  /** @param prompt number of the prompt that the choice is an answer to */
  add({ prompt_tokens, completion_tokens, prompt_tokens_details }: Usage, prompt: number): void {
    const cached = prompt_tokens_details?.cached_tokens ?? 0
    const before = this.#prompts.get(prompt)
    // What the first of several choices had to read, the others find in the cache.
    this.#prompts.set(prompt, { tokens: prompt_tokens, cached: Math.min(before?.cached ?? cached, cached) })
    this.#completionTokens += completion_tokens
    this.choices++
  }

  total(): Usage {
    let tokens = 0
    let cached = 0
    for (const prompt of this.#prompts.values()) {
      tokens += prompt.tokens
      cached += prompt.cached
    }
    return {
      prompt_tokens: tokens,
      completion_tokens: this.#completionTokens,
      total_tokens: tokens + this.#completionTokens,
      prompt_tokens_details: { cached_tokens: cached }
    }
  }
}
