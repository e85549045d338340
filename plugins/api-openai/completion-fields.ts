import type { Model } from '../../core/contracts/catalog.ts'
import { CorralError } from '../../core/errors.ts'
import { withStops } from './chat-fields.ts'
import { askLogprobs } from './logprobs.ts'
import type { CompletionRequest } from './request-schemas.ts'

type Fields = Record<string, unknown>
export type Prompt = string | number[]

/** What a completion asks that engines do not do by themselves. */
export interface CompletionExtras {
  /** How many of the likeliest tokens are told at each place; undefined where no probabilities are asked for. */
  logprobs?: number
  /** The prompts, where answers are to begin with them. */
  echo?: Prompt[]
  /** Choices to keep of each prompt, where more are made to choose from. */
  bestOf?: number
  /** Nothing is to be generated; engines make one token all the same. */
  nothing: boolean
}

export interface Completion {
  fields: Fields
  /** Choices of each prompt that the engine makes. */
  choices: number
  prompts: number
  extras: CompletionExtras
}

/**
 * A body of the older completions as engines take it.
 * @param fields the body that was checked, its options already in it
 * @throws CorralError with the field at fault as `param`
 */
export function completionFields(fields: CompletionRequest & Fields, variant: Model): Completion {
  const { prompt, suffix, echo, best_of, logprobs, n, ...rest } = fields
  const prompts = promptsOf(prompt)
  const kept = n ?? 1
  const choices = Math.max(kept, best_of ?? kept)
  const wanted = logprobs === true ? 1 : logprobs === false || logprobs === null ? undefined : logprobs
  if (best_of && best_of < kept) {
    throw new CorralError('invalid_request', `"best_of" must be at least "n", which is ${kept}.`, { param: 'best_of' })
  }
  if (choices > kept && rest.stream) {
    throw new CorralError('invalid_request', 'What is chosen by "best_of" cannot be streamed: leave one of them out.', {
      param: 'best_of'
    })
  }
  if (echo && wanted !== undefined) {
    throw new CorralError(
      'unsupported_capability',
      'The engine tells no probabilities of the prompt: leave out "echo" or "logprobs".',
      { param: 'logprobs' }
    )
  }
  // Probabilities are what the best answers are chosen by.
  const top = choices > kept ? (wanted ?? 0) : wanted
  const common = {
    ...rest,
    ...withStops(rest.stop),
    ...(choices > 1 && { n: choices }),
    ...(top !== undefined && askLogprobs(top))
  }
  const extras: CompletionExtras = {
    ...(wanted !== undefined && { logprobs: wanted }),
    ...(echo && { echo: prompts }),
    ...(choices > kept && { bestOf: kept }),
    nothing: rest.max_tokens === 0
  }
  if (suffix) {
    return {
      fields: { ...common, prompt: fillable(prompts, variant), suffix },
      choices,
      prompts: 1,
      extras
    }
  }
  // One prompt goes as it is: an engine with a projector takes no lists.
  const asked = prompts.length === 1 ? prompts[0] : prompts
  return { fields: { ...common, prompt: asked }, choices, prompts: prompts.length, extras }
}

function promptsOf(prompt: CompletionRequest['prompt']): Prompt[] {
  if (typeof prompt === 'string') return [prompt]
  if (!prompt) return ['']
  return typeof prompt[0] === 'number' ? [prompt as number[]] : (prompt as Prompt[])
}

function fillable(prompts: Prompt[], variant: Model): string {
  if (!variant.metadata.capabilities.includes('insert')) {
    throw new CorralError(
      'unsupported_capability',
      `Model "${variant.publicName}" cannot fill in before a "suffix". Leave it out, or use a model that can, as many for code do.`,
      { param: 'suffix' }
    )
  }
  const [prompt] = prompts
  if (prompts.length === 1 && typeof prompt === 'string') return prompt
  throw new CorralError('invalid_request', '"prompt" must be one text where there is a "suffix".', { param: 'prompt' })
}

/**
 * The choices that are kept of each prompt: those whose tokens are likeliest on average, as hosted services choose them.
 * @param means mean log probability of each choice's tokens, by the index of the choice
 */
export function bestChoices(means: readonly number[], made: number, kept: number): number[] {
  const chosen: number[] = []
  for (let first = 0; first < means.length; first += made) {
    const group = Array.from({ length: made }, (_, place) => first + place)
    chosen.push(...group.sort((a, b) => means[b]! - means[a]!).slice(0, kept))
  }
  return chosen
}
