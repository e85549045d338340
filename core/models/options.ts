import { type Static, type TNull, type TOptional, type TSchema, type TUnion, Type } from 'typebox'
import { CorralError } from '../errors.ts'
import { parseDuration } from '../system/duration.ts'
import { allowedBy, fits } from '../system/schema-check.ts'
import { DEFAULT_LOAD_OPTIONS, type LoadOptions, LoadOptionsSchema, MAX_INT } from './load-options.ts'

/** How to handle a conversation that is longer than the context: report an error, or leave out its oldest turns. */
export const OverflowPolicySchema = Type.Enum(['error', 'drop_oldest'])
export type OverflowPolicy = Static<typeof OverflowPolicySchema>

/** corral's own options that are sent to the engine with each request. */
export const SamplingOptionsSchema = Type.Object({
  temperature: Type.Number({ minimum: 0, maximum: 1e6, description: 'Randomness; 0 is greedy' }),
  top_p: Type.Number({ minimum: 0, maximum: 1, description: 'Nucleus sampling' }),
  top_k: Type.Integer({ minimum: -1, maximum: MAX_INT, description: 'Top-K cap; 0 or less is off' }),
  max_tokens: Type.Integer({
    minimum: -2,
    maximum: MAX_INT,
    description: 'Maximum tokens generated; negative is unlimited'
  }),
  seed: Type.Integer({
    minimum: -(2 ** 63),
    maximum: 2 ** 64,
    description: '-1 is random; of other numbers the lowest 32 bits are used'
  })
})
export type SamplingOptions = Static<typeof SamplingOptionsSchema>

export const DEFAULT_SAMPLING_OPTIONS: SamplingOptions = {
  temperature: 0.7,
  top_p: 0.9,
  top_k: 40,
  max_tokens: 2048,
  seed: -1
}

const { cache_type_k, cache_type_v, dtype, ...numbers } = LoadOptionsSchema.properties
/** Types may also be written in capitals, so `parseOptions` checks them. */
const types = {
  cache_type_k: Type.String({ documented: cache_type_k }),
  cache_type_v: Type.String({ documented: cache_type_v }),
  dtype: Type.String({ documented: dtype })
}
const ofRequests = {
  ...numbers,
  ...types,
  ...SamplingOptionsSchema.properties,
  num_predict: SamplingOptionsSchema.properties.max_tokens,
  num_gpu: LoadOptionsSchema.properties.n_gpu_layers,
  context_overflow: OverflowPolicySchema
}

/** corral's own options as fields of a request. */
export const requestOptions = orNull(ofRequests)

/** The API document's description of request options, which `parseOptions` checks. */
export const RequestOptionsSchema = Type.Object(
  orNull(ofRequests, { ...DEFAULT_LOAD_OPTIONS, ...DEFAULT_SAMPLING_OPTIONS }),
  {
    title: 'Options',
    description:
      "The defaults are the model's options in the configuration, then the server's. num_predict is " +
      'max_tokens, num_gpu is n_gpu_layers. Other options of the engine (stop, min_p, repeat_penalty, …) are passed on. ' +
      'Unknown options are passed on too: the header X-Corral-Unknown-Options of the reply lists them, and X-Corral-Clamped says ' +
      'if num_ctx is larger than allowed.',
    additionalProperties: true
  }
)

/** Properties that may be absent or null, with their defaults. */
function orNull<Properties extends Record<string, TSchema>>(
  properties: Properties,
  defaults: Record<string, unknown> = {}
) {
  const entries = Object.entries(properties).map(([name, schema]) => [
    name,
    Type.Optional(Type.Union([schema, Type.Null()], { default: defaults[name] }))
  ])
  return Object.fromEntries(entries) as { [Name in keyof Properties]: TOptional<TUnion<[Properties[Name], TNull]>> }
}

/** Aliases of options. A canonical name in the same request wins. */
const ALIASES: Record<string, string> = {
  num_predict: 'max_tokens',
  max_completion_tokens: 'max_tokens',
  n_predict: 'max_tokens',
  num_gpu: 'n_gpu_layers'
}

export const optionName = (spelled: string) => ALIASES[spelled] ?? spelled

/** corral's own options. */
const RULES: Record<string, TSchema> = {
  ...SamplingOptionsSchema.properties,
  ...LoadOptionsSchema.properties,
  context_overflow: OverflowPolicySchema
}

function kindOf(value: unknown): string {
  if (Array.isArray(value)) return 'an array'
  return typeof value === 'object' ? 'an object' : `${typeof value} ${JSON.stringify(value)?.slice(0, 60)}`
}

/** @param spelled the name in the request */
function checkOption(name: string, spelled: string, value: unknown): unknown {
  const rule = Object.hasOwn(RULES, name) ? RULES[name] : undefined
  if (!rule) return value
  // Names of types may be written in capitals.
  const checked = typeof value === 'string' && Object.hasOwn(types, name) ? value.toLowerCase() : value
  if (!fits(rule, checked)) {
    const allowed = name === 'dtype' ? 'a type name such as f32, f16, bf16, q8_0 or q4_k_m' : allowedBy(rule as object)
    const message = `Option "${spelled}" must be ${allowed}; got ${kindOf(value)}.`
    throw new CorralError('invalid_option', message, { param: spelled })
  }
  if (name === 'max_tokens' && Number(checked) < 0) return -1
  return name === 'seed' ? engineSeed(checked as number) : checked
}

/** Clients send seeds of 63 bits and negative ones. Engines use 32 bits, and treat all ones as random. */
function engineSeed(seed: number): number {
  return seed === -1 ? -1 : Math.min(Number(BigInt.asUintN(32, BigInt(seed))), 2 ** 32 - 2)
}

/** Engines may take minutes for a hundred thousand. */
const MAX_OPTIONS = 1000

export interface ParsedOptions {
  load: Partial<LoadOptions>
  /** corral's own sampling options and all other options for the engine, under the engine's names. */
  sampling: Record<string, unknown>
  overflow?: OverflowPolicy
}

/** Parses options. `null` is not set; the engine gets unknown names. @throws CorralError `invalid_option` */
export function parseOptions(given: unknown): ParsedOptions {
  const parsed: ParsedOptions = { load: {}, sampling: {} }
  if (given === undefined || given === null) return parsed
  const refusal = (why: string) => new CorralError('invalid_option', `"options" ${why}.`, { param: 'options' })
  if (typeof given !== 'object' || Array.isArray(given)) throw refusal(`must be an object; got ${kindOf(given)}`)
  const entries = Object.entries(given)
  if (entries.length > MAX_OPTIONS) throw refusal(`has more than ${MAX_OPTIONS} fields`)
  const names = new Set(entries.filter(([, value]) => value !== null && value !== undefined).map(([name]) => name))
  for (const [spelled, value] of entries) {
    if (value === null || value === undefined) continue
    const name = optionName(spelled)
    if (name !== spelled && names.has(name)) continue
    const checked = checkOption(name, spelled, value)
    if (name === 'context_overflow') parsed.overflow = checked as OverflowPolicy
    else if (Object.hasOwn(LoadOptionsSchema.properties, name)) Object.assign(parsed.load, { [name]: checked })
    else parsed.sampling[name] = checked
  }
  return parsed
}

const OWN_OPTIONS = new Set([...Object.keys(RULES), ...Object.keys(ALIASES)])

/** Other options that Ollama's clients send, some of which have no effect here. */
const OLLAMA_OPTIONS =
  'num_keep min_p tfs_z typical_p repeat_last_n repeat_penalty presence_penalty stop frequency_penalty mirostat ' +
  'mirostat_tau mirostat_eta penalize_newline numa num_batch main_gpu low_vram f16_kv logits_all vocab_only use_mmap ' +
  'use_mlock embedding_only num_thread num_gqa rope_frequency_base rope_frequency_scale draft_num_predict'
const KNOWN_OPTIONS = new Set([...OWN_OPTIONS, ...OLLAMA_OPTIONS.split(' ')])

/** All known options of all engines. Corral's own options come first. */
export const knownOptionNames: readonly string[] = [...KNOWN_OPTIONS]

/** Whether an option is known for any engine: it is corral's own, or one of Ollama's. */
export const isKnownOption = (name: string) => KNOWN_OPTIONS.has(name)

/** Whether a field of an OpenAI request is one of corral's own options (or an alias of one). */
export const isOwnOption = (name: string) => OWN_OPTIONS.has(name)

/** The options of a request: the top level takes precedence over `options`. @throws CorralError `invalid_option` */
export function parseRequestOptions(body: Record<string, unknown>): ParsedOptions {
  const picked: Record<string, unknown> = {}
  for (const name in body) if (isOwnOption(name)) picked[name] = body[name]
  const own = parseOptions(picked)
  const nested = parseOptions(body.options)
  return {
    ...nested,
    ...own,
    load: { ...nested.load, ...own.load },
    sampling: { ...nested.sampling, ...own.sampling }
  }
}

/** Parses `keep_alive` (seconds, or `5m`) to milliseconds. @throws CorralError `invalid_option` */
export function parseKeepAlive(value: unknown): number | undefined {
  if (value === undefined || value === null) return undefined
  const ms = parseDuration(value)
  if (ms !== undefined) return ms
  const text = `"keep_alive" must be seconds or a duration such as "5m" or "1h30m"; got ${kindOf(value)}.`
  throw new CorralError('invalid_option', text, { param: 'keep_alive' })
}
