import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import type { EngineSettings } from '../../core/config/model-settings.ts'
import type { Build } from '../../core/contracts/builds.ts'
import type { Speculation } from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'
import { abortAfter } from '../../core/system/abort-signals.ts'
import type { LlamaServerEngine } from './engine.ts'
import type { LaunchSpec } from './launch-spec.ts'
import { createLearnedFile } from './learned-file.ts'
import { readMetrics } from './prompt-cache/slot-requests.ts'

/*
 * Speculative decoding guesses the next tokens cheaply and lets the model check several at once. Whether that is faster
 * depends on the model, the machine and the texts, so each method is measured with real answers before it is kept.
 */

/** How tokens are guessed: by heads of the model itself (MTP), by a model that was made for it, or from earlier text. */
const METHODS = ['none', 'mtp', 'draft', 'ngram'] as const
export type Method = (typeof METHODS)[number]

const SpeedSchema = Type.Object({
  tokens: Type.Number(),
  milliseconds: Type.Number(),
  /** Whether an engine with this method did not start or crashed. */
  failed: Type.Optional(Type.Boolean())
})
const Methods = Type.Object({ none: SpeedSchema, mtp: SpeedSchema, draft: SpeedSchema, ngram: SpeedSchema })
const SpeedsSchema = Type.Object({ methods: Type.Partial(Methods) })
type Speed = Static<typeof SpeedSchema>
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

/** Milliseconds between measurements, and without requests until an engine may be replaced to try another method. */
const USUAL_TIMES = { measureEvery: 20_000, idleFor: 120_000 }
/** Milliseconds for which a model is not guessed for after a request for log probabilities. */
const EXACT_FOR = 3_600_000
const REQUEST_LIMIT = 10_000
/** Tokens of a measurement, at least, and answers in progress at the same time, at most on average. */
const MIN_TOKENS = 50
const MAX_BUSY_SLOTS = 1.2

export interface Chosen {
  model: string
  key: string
  methods: readonly Method[]
  method: Method
  /** The settings to start with. If absent, those of the configuration. */
  settings?: EngineSettings['speculation']
}

export type SpeculationChooser = ReturnType<typeof createSpeculation>

export interface SpeculationOptions {
  directory: string
  log: { warn(object: object, message: string): void; info(object: object, message: string): void }
  isEnabled(): boolean
  times?: typeof USUAL_TIMES
}

export function withMethod(spec: LaunchSpec, { settings: speculation }: Chosen): LaunchSpec {
  const { settings } = spec
  return settings && speculation ? { ...spec, settings: { ...settings, speculation } } : spec
}

/** Finds out with which method of speculative decoding each model is fastest on this machine. */
export function createSpeculation({ directory, log, isEnabled, times = USUAL_TIMES }: SpeculationOptions) {
  const learned = createLearnedFile(join(directory, 'speeds.json'), 'speeds', SpeedsSchema, log)
  /** By key: when a request last asked for log probabilities. */
  const exact = new Map<string, number>()

  const getSpeeds = (key: string) => learned.get(key)?.methods ?? {}
  const setSpeed = (key: string, method: Method, speed: ReturnType<typeof addSpeed>) =>
    learned.set(key, { methods: { ...getSpeeds(key), [method]: speed } })
  const wantsExact = (key: string) => performance.now() - (exact.get(key) ?? Number.NEGATIVE_INFINITY) < EXACT_FOR

  /** Returns the method for the next engine with this key. */
  function choose(key: string, methods: readonly Method[]): Method {
    return isEnabled() && !wantsExact(key) ? chooseMethod(methods, getSpeeds(key)) : 'none'
  }

  function failed({ model, key, method }: Chosen, reason: string): void {
    log.warn({ model, method, reason }, 'guessing tokens ahead failed and is not tried again')
    setSpeed(key, method, { tokens: 0, milliseconds: 0, failed: true })
  }

  return {
    loaded: learned.loaded,
    close: learned.close,

    /** Chooses the method for an engine. A method that the configuration sets stays. */
    choose(spec: LaunchSpec, build: Build): Chosen {
      const key = getSpeedKey(spec, build)
      const methods = listMethods(spec)
      const method = choose(key, methods)
      const decides = methods.length > 1 || wantsExact(key)
      const companion = method === 'draft' ? companionPath(spec.variant) : undefined
      const settings = {
        ngram: method === 'ngram',
        ...(method === 'mtp' && { mtp: true }),
        ...(companion !== undefined && { companion })
      }
      return { model: spec.alias, key, methods, method, ...(decides && { settings }) }
    },

    failed,

    /** Refuses a request for log probabilities, which are unknown for guessed tokens. The next engine guesses none. */
    refuseProbabilities({ key, model }: Chosen): never {
      exact.set(key, performance.now())
      const message = `The model "${model}" is being loaded again, because its engine does not know the log probabilities of tokens that it guessed ahead. Send the request again.`
      throw new CorralError('engine_crashed', message, { details: { cause: 'outdated', sent: false } })
    },

    /** Measures an engine until it ends. @param outdate called once another method should be used */
    follow(engine: LlamaServerEngine, chosen: Chosen, outdate: () => void): void {
      const { key, method, methods } = chosen
      if (methods.length === 1) return
      let before: Counts | undefined
      let uses = 0
      let usedAt = performance.now()
      let stopped = false

      async function measure(): Promise<void> {
        const { promptSlots } = engine
        if (promptSlots.uses === uses && promptSlots.isIdle) {
          if (performance.now() - usedAt >= times.idleFor && choose(key, methods) !== method) outdate()
          return
        }
        uses = promptSlots.uses
        usedAt = performance.now()
        const now = await readCounts(engine)
        if (!now || stopped) return
        const speed = before && speedBetween(before, now)
        if (!before || speed) before = now
        if (!speed || speed.busySlots > MAX_BUSY_SLOTS) return
        setSpeed(key, method, addSpeed(getSpeeds(key)[method], speed))
      }

      // One after another: an engine may take long to answer.
      let timer: NodeJS.Timeout
      const again = () => {
        if (stopped) return
        timer = setTimeout(() => {
          void measure()
            .catch(error => log.info({ err: error }, 'the speed of an engine was not measured'))
            .then(again)
        }, times.measureEvery).unref()
      }
      again()
      void engine.exited.then(({ expected, failure }) => {
        stopped = true
        clearTimeout(timer)
        if (!expected && method !== 'none') failed(chosen, `${failure?.message}`)
      })
    },

    describe({ key, method, methods }: Chosen): Speculation | undefined {
      if (methods.length === 1) return undefined
      const speeds = getSpeeds(key)
      const rates = METHODS.flatMap(each => (getRate(speeds[each]) > 0 ? [[each, getRate(speeds[each])] as const] : []))
      return { method, tokensPerSecond: Object.fromEntries(rates) }
    }
  }
}

type Counts = NonNullable<Awaited<ReturnType<typeof readCounts>>>

async function readCounts(engine: Pick<LlamaServerEngine, 'request'>) {
  const count = await readMetrics(engine, abortAfter(REQUEST_LIMIT))
  const decodes = count('n_decode_total')
  const counts = {
    tokens: count('tokens_predicted_total'),
    seconds: count('tokens_predicted_seconds_total'),
    decodes,
    busySlots: count('n_busy_slots_per_decode') * decodes
  }
  return Object.values(counts).every(Number.isFinite) ? counts : undefined
}

function speedBetween(before: Counts, now: Counts) {
  const tokens = now.tokens - before.tokens
  const seconds = now.seconds - before.seconds
  const decodes = now.decodes - before.decodes
  if (tokens < MIN_TOKENS || seconds <= 0 || decodes <= 0) return undefined
  return { tokens, milliseconds: seconds * 1000, busySlots: (now.busySlots - before.busySlots) / decodes }
}
