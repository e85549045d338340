import type { EngineFields } from '../contracts/engines.ts'
import { CorralError } from '../errors.ts'
import type { LoadOptions } from '../models/load-options.ts'
import { isObject } from '../system/json-object.ts'

/* Decides with which context a model is loaded for a longer prompt than usual, if nobody has set `num_ctx`. */

export interface ContextLimits {
  /** The usual options, and those that the request itself sets. */
  usual: Readonly<LoadOptions>
  given: Partial<LoadOptions>
  /** Maximum tokens, by the model's training and by `limits.num_ctx`. */
  most: number
  /** Tokens that the answer may have, if the request says so. */
  answer: number | undefined
}

type Step = Partial<LoadOptions>

/** Tokens for an answer whose length the request does not limit, and for any answer if memory is short. */
const USUAL_ANSWER = 1024
/** Bytes of text that are at least one token. */
const MAX_BYTES_PER_TOKEN = 6
const SMALL_CACHE = 'q8_0'

/** Returns the smallest power of two of the usual context that holds these tokens, at most `most`. */
function findSize(tokens: number, { usual, most }: ContextLimits): number {
  let size = usual.num_ctx
  while (size < tokens && size < most) size *= 2
  return Math.min(size, most)
}

/**
 * Returns the options with which a prompt of this many tokens may fit, in the order in which they should be tried: with
 * the usual number of slots, with one slot, and with a smaller cache, unless the request sets these. Empty if nothing
 * larger than `size` can hold it.
 * @param size the context in tokens that was too small
 */
export function growthSteps(promptTokens: number, size: number, limits: ContextLimits): Step[] {
  const { usual, given, answer = USUAL_ANSWER } = limits
  const wanted = [answer, Math.min(answer, USUAL_ANSWER)].map(tokens => findSize(promptTokens + tokens, limits))
  const sizes = [...new Set(wanted)].filter(wide => wide > size && wide > promptTokens)
  const steps: Step[] = [{}]
  if (usual.num_parallel > 1 && given.num_parallel === undefined) steps.push({ num_parallel: 1 })
  const isPlain = usual.cache_type_k === 'f16' && usual.cache_type_v === 'f16'
  if (isPlain && given.cache_type_k === undefined && given.cache_type_v === undefined) {
    steps.push({ ...steps.at(-1), cache_type_k: SMALL_CACHE, cache_type_v: SMALL_CACHE })
  }
  return sizes.flatMap(num_ctx => steps.map(more => ({ num_ctx, ...more })))
}

/** Returns the options for a prompt that certainly does not fit, judging by its length, or none. */
export function guessStep(body: EngineFields | undefined, limits: ContextLimits): Step {
  const tokens = body ? countText([body.messages, body.prompt, body.tools]) / MAX_BYTES_PER_TOKEN : 0
  return tokens > limits.usual.num_ctx ? (growthSteps(Math.ceil(tokens), limits.usual.num_ctx, limits)[0] ?? {}) : {}
}

/** Counts the characters of texts, without images and other data. */
function countText(value: unknown): number {
  if (typeof value === 'string') return value.startsWith('data:') ? 0 : value.length
  if (Array.isArray(value)) return value.reduce((sum: number, each) => sum + countText(each), 0)
  if (!isObject(value)) return 0
  return Object.entries(value).reduce((sum, [name, each]) => sum + (name === 'data' ? 0 : countText(each)), 0)
}

export class ContextGrowth {
  readonly #limits: ContextLimits
  /** Load options for the next attempt. */
  options: Step
  /** The steps that are left, once the context was too small. */
  #steps: Step[] | undefined
  #full: CorralError | undefined
  /** The error of the last step for which there was no room. */
  #noRoom: CorralError | undefined

  constructor(limits: ContextLimits, body: EngineFields | undefined) {
    this.#limits = limits
    this.options = guessStep(body, limits)
  }

  get most(): number {
    return this.#limits.most
  }

  canGrow(error: unknown): boolean {
    const { n_prompt_tokens: tokens, n_ctx: size } = isFull(error) ? (error.details ?? {}) : {}
    if (typeof tokens !== 'number' || typeof size !== 'number') return false
    this.#steps ??= growthSteps(tokens, size, this.#limits)
    return this.#steps.length > 0
  }

  /**
   * Prepares the next attempt. If memory is too short for every step, the last one has the usual options again, and the
   * oldest messages can be dropped. @throws the error, or that of the full context, if there is no other attempt
   */
  next(error: unknown): void {
    if (this.canGrow(error)) this.#full = error as CorralError
    else if (isNoRoom(error) && this.options.num_ctx !== undefined) this.#noRoom = error
    else if (isFull(error)) throw this.#noRoom ? withoutRoom(error, this.#noRoom) : error
    else throw this.#full ?? error
    this.options = this.#steps?.shift() ?? {}
  }
}

const isFull = (error: unknown): error is CorralError =>
  error instanceof CorralError && error.code === 'context_exceeded'

/** Whether a load was refused for lack of memory, or because the client has forced too many reloads. */
const isNoRoom = (error: unknown): error is CorralError =>
  error instanceof CorralError && (error.code === 'insufficient_memory' || error.details?.limit === 'limits.reloads')

/** Explains why the context did not grow. A larger `num_ctx` would not help either. */
function withoutRoom(full: CorralError, { message: reason }: CorralError): CorralError {
  const [numbers = full.message] = /^.*?\.(?= |$)/.exec(full.message) ?? []
  return full.reworded(`${numbers} A larger context is not possible: ${reason}`)
}
