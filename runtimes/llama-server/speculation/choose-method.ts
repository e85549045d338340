import { join } from 'node:path'
import type { Build } from '../../../core/contracts/builds.ts'
import type { LaunchSpec } from '../launch-spec.ts'

/*
 * Speculative decoding guesses the next tokens cheaply and lets the model check several at once. Whether that is faster
 * depends on the model, the machine and the texts, so each method is measured with real answers before it is kept.
 */

/** How tokens are guessed: by heads of the model itself (MTP), by a model that was made for it, or from earlier text. */
export type Method = 'none' | 'mtp' | 'draft' | 'ngram'
export const METHODS = ['none', 'mtp', 'draft', 'ngram'] as const satisfies Method[]

export interface Speed {
  tokens: number
  milliseconds: number
  /** Whether an engine with this method did not start or crashed. */
  failed?: boolean | undefined
}
export type Speeds = Partial<Record<Method, Speed>>

/** Bytes. With smaller models, everything but the model takes most of the time. */
const MIN_MODEL_BYTES = 150 * 2 ** 20
/** Tokens that must be measured with a method before it is judged. */
const ENOUGH_TOKENS = 1500
/** Older measurements count less, once there are more tokens than this. */
const MAX_TOKENS = 20_000
/** How much faster a method must be than none: it also needs memory. */
const MIN_GAIN = 1.08

/** Returns the methods that can be tried with a model. Only `none` if the configuration decides. */
export function listMethods({ mode, variant, settings }: LaunchSpec): readonly Method[] {
  const { ngram, draft } = settings?.speculation ?? {}
  const isSet =
    ngram !== undefined || draft !== undefined || settings?.arguments.some(flag => flag.startsWith('--spec'))
  if (mode !== 'chat' || !settings || isSet || settings.rpc || variant.size < MIN_MODEL_BYTES) return ['none']
  const { architecture, info } = variant.metadata
  const heads = Number(info[`${architecture}.nextn_predict_layers`] ?? 0)
  const isOffered = { none: true, mtp: heads > 0, draft: companionPath(variant) !== undefined, ngram: true }
  return METHODS.filter(method => isOffered[method])
}

/** Returns the absolute path of the draft model that came with a model. */
export function companionPath({ directory, files, format }: LaunchSpec['variant']): string | undefined {
  const file = format === 'gguf' ? files.find(({ role }) => role === 'draft') : undefined
  return file && join(directory, file.path)
}

export function getRate(speed: Speed | undefined): number {
  return speed && speed.milliseconds > 0 ? (1000 * speed.tokens) / speed.milliseconds : 0
}

/** Chooses the method for the next engine: one that is not measured yet, otherwise the fastest. */
export function chooseMethod(methods: readonly Method[], speeds: Speeds): Method {
  const usable = methods.filter(method => !speeds[method]?.failed)
  const unknown = usable.find(method => (speeds[method]?.tokens ?? 0) < ENOUGH_TOKENS)
  if (unknown) return unknown
  const needed = getRate(speeds.none) * MIN_GAIN
  const faster = usable.filter(method => method !== 'none' && getRate(speeds[method]) >= needed)
  return faster.sort((a, b) => getRate(speeds[b]) - getRate(speeds[a]))[0] ?? 'none'
}

export function addSpeed(known: Speed | undefined, { tokens, milliseconds }: Speed): Speed {
  const { tokens: before = 0, milliseconds: time = 0 } = known ?? {}
  const weight = Math.min(1, MAX_TOKENS / (before + tokens))
  return { tokens: (before + tokens) * weight, milliseconds: (time + milliseconds) * weight }
}

/** Identifies the engines whose speeds can be compared. */
export function getSpeedKey({ variant, options, settings }: LaunchSpec, build: Build): string {
  const { n_gpu_layers, cache_type_k, cache_type_v, dtype } = options
  const flags = [n_gpu_layers, cache_type_k, cache_type_v, dtype, ...(settings?.arguments ?? [])]
  return [variant.key, variant.revision, build.id, build.version, build.commit ?? build.digest, ...flags].join(' ')
}
