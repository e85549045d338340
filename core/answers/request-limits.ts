import type { CoreConfig } from '../config/core-schema.ts'
import { settingsFor } from '../config/model-settings.ts'
import type { ModelLimits } from '../contracts/answers.ts'
import type { Caller, RequestBounds } from '../contracts/callers.ts'
import type { EngineFields } from '../contracts/engines.ts'
import type { Operation } from '../contracts/hooks.ts'
import type { LeaseRequest, RunningModel } from '../contracts/leases.ts'
import type { Model } from '../contracts/models.ts'
import { CorralError } from '../errors.ts'
import { optionName } from '../models/options.ts'
import { merged } from '../system/collections.ts'
import { parseDuration } from '../system/duration.ts'
import { isObject } from '../system/json-object.ts'

export interface Asked<Body extends EngineFields = EngineFields> {
  operation: Operation
  body?: Body | undefined
  lease: Pick<LeaseRequest, 'mode' | 'options' | 'keepAlive' | 'slots'>
}

/** The last result for each key's limits: clients mostly ask for the same model again. */
const latest = new WeakMap<Partial<RequestBounds>, { ofModel: RequestBounds; all: RequestBounds }>()

export function getRequestLimits(config: CoreConfig, variant: Model, { bounds }: Limited): RequestBounds {
  const ofModel = settingsFor(config, variant).bounds
  if (!bounds) return ofModel
  const found = latest.get(bounds)
  if (found?.ofModel === ofModel) return found.all
  const all = merged(ofModel, bounds)
  latest.set(bounds, { ofModel, all })
  return all
}

/**
 * Enforces the limits of requests, for all APIs and operations. The scheduler clamps `num_ctx`, and the code that
 * builds grammars and schemas limits these.
 *
 * 1. `num_parallel`, `keep_alive`, prompts and choices over their limit are refused.
 * 2. A `max_tokens` over its limit is clamped, and requests without one get the limit, so that no answer is endless.
 * 3. Lists that engines search for every token have a maximum length.
 *
 * @param sent the request's body as it was sent, which shows what the client itself asked for
 * @returns the body for the engine, within the limits
 * @throws CorralError `over_limit`
 */
export function enforceRequestLimits<Body extends EngineFields>(
  { operation, body, lease }: Asked<Body>,
  bounds: RequestBounds,
  sent: unknown
): Body | undefined {
  const { num_parallel: slots } = lease.options
  if (slots !== undefined && slots > bounds.num_parallel) {
    throw overLimit(fieldOf(sent, 'num_parallel', slots) ?? 'num_parallel', 'num_parallel', slots, bounds.num_parallel)
  }
  requireKeepAlive(lease.keepAlive, bounds, sent)
  if (!body) return undefined
  const choices = lease.slots ?? 1
  if (choices > bounds.n) {
    const param = fieldOf(sent, 'best_of', choices) ?? fieldOf(sent, 'n', choices) ?? 'n'
    throw overLimit(param, 'n', choices, bounds.n)
  }
  const [list, prompts] = promptsOf(operation, body)
  if (prompts * choices > bounds.prompts) throw overLimit(list, 'prompts', prompts * choices, bounds.prompts)
  if (!GENERATING.has(operation)) {
    // Results of plugins' operations, such as images, are limited like choices.
    if (typeof body.n === 'number' && body.n > bounds.n && operation !== 'tokens') {
      throw overLimit('n', 'n', body.n, bounds.n)
    }
    return body
  }
  requireShortLists(body)
  const within = merged<EngineFields, EngineFields>(body, {
    max_tokens: tokensOf(body.max_tokens, bounds.max_tokens)
  })
  // The API leases a slot for each choice, so no other field may ask for more.
  if (choices === 1) delete within.n
  return within as Body
}

/** Operations that generate tokens, whose number is limited. */
const GENERATING = new Set<Operation>(['chat', 'completion', 'transcribe'])

/** The error for a value over a limit. @param bound its name below `limits` */
function overLimit(param: string, bound: string, given: number | string, most: number | string): CorralError {
  const message = `"${param}" is ${given}, and "limits.${bound}" allows ${most} at most. Ask for less, or have the admin raise the limit.`
  return new CorralError('over_limit', message, { param, details: { limit: `limits.${bound}`, value: most, given } })
}

function promptsOf(operation: Operation, { prompt, input, documents }: EngineFields): [string, number] {
  if (operation === 'completion') return ['prompt', countOf(prompt)]
  if (operation === 'embeddings') return ['input', countOf(input)]
  if (operation === 'rerank') return ['documents', countOf(documents)]
  return ['prompt', 1]
}

/** A list of numbers is one prompt, given as tokens. */
function countOf(texts: unknown): number {
  return Array.isArray(texts) && typeof texts[0] !== 'number' ? texts.length : 1
}

function tokensOf(wanted: unknown, most: number): number {
  return typeof wanted !== 'number' || wanted < 0 ? most : Math.min(wanted, most)
}

function requireKeepAlive(wanted: number | undefined, bounds: RequestBounds, sent: unknown): void {
  const most = parseDuration(bounds.keep_alive) ?? -1
  if (wanted === undefined || most < 0 || (wanted >= 0 && wanted <= most)) return
  const { keep_alive: given } = sent as { keep_alive: string | number }
  throw overLimit('keep_alive', 'keep_alive', String(given).slice(0, 60), bounds.keep_alive)
}

/** Returns the field of a request, or of its options, that sets an option to this value, if there is one. */
function fieldOf(sent: unknown, option: string, value: number): string | undefined {
  if (!isObject(sent)) return undefined
  const sets = ([name, given]: [string, unknown]) => given === value && optionName(name) === option
  const own = Object.entries(sent).find(sets)
  const nested = isObject(sent.options) ? Object.entries(sent.options).find(sets) : undefined
  return own ? own[0] : nested && `options.${nested[0]}`
}

/** Maximum lengths of lists that engines search for each token that they generate. */
const MAX_LISTS = Object.entries({ stop: 256, samplers: 64, dry_sequence_breakers: 256, logit_bias: 16_384 })

const MAX_PROBABILITIES = 1000

function requireShortLists(body: EngineFields): void {
  const refuse = (name: string, most: number) =>
    new CorralError('over_limit', `"${name}" has more than ${most} entries. Send fewer.`, {
      param: name,
      details: { value: most }
    })
  for (const [name, most] of MAX_LISTS) {
    const given = body[name]
    if (typeof given !== 'object' || given === null) {
      if (name === 'samplers' && typeof given === 'string' && given.length > most) throw refuse(name, most)
    } else if ((Array.isArray(given) ? given : Object.keys(given)).length > most) throw refuse(name, most)
  }
  for (const name of ['n_probs', 'top_logprobs']) {
    if (Number(body[name]) > MAX_PROBABILITIES) throw refuse(name, MAX_PROBABILITIES)
  }
}

type Limited = Pick<Caller, 'bounds'>

/** Returns the size to which a model's context may grow for a caller, or undefined if it has a fixed size. */
export function growthLimit(config: CoreConfig, variant: Model, caller: Limited): number | undefined {
  const { contextLength: trained } = variant.metadata
  if (!settingsFor(config, variant).growsContext || trained === undefined) return undefined
  return clamp(trained, getRequestLimits(config, variant, caller).num_ctx)
}

export function modelLimits(
  config: CoreConfig,
  running: readonly Pick<RunningModel, 'variant' | 'mode' | 'engine'>[],
  caller: Limited
): (variant: Model) => ModelLimits {
  const contexts = new Map<string, number>()
  for (const { variant, mode, engine } of running) {
    if (mode === 'chat' || !contexts.has(variant.key)) contexts.set(variant.key, engine.contextSize)
  }
  return variant => {
    const { num_ctx, max_tokens } = getRequestLimits(config, variant, caller)
    const loaded = contexts.get(variant.key)
    const usual = () => clamp(settingsFor(config, variant).load.num_ctx, variant.metadata.contextLength ?? 0)
    const window = growthLimit(config, variant, caller) ?? loaded ?? clamp(usual(), num_ctx)
    return { context: loaded ?? window, window, answer: clamp(window, max_tokens) }
  }
}

/** @param most 0 means unlimited */
const clamp = (size: number, most: number) => (most > 0 ? Math.min(size, most) : size)
