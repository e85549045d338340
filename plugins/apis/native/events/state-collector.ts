import { settingsFor } from '../../../../core/config/model-settings.ts'
import type { PoolsInUse } from '../../../../core/contracts/built-in-services.ts'
import type { RunningConversion } from '../../../../core/contracts/conversion.ts'
import type { Engines } from '../../../../core/contracts/engines.ts'
import type { LoadingModel, RunningModel } from '../../../../core/contracts/leases.ts'
import type { Model } from '../../../../core/contracts/models.ts'
import { NATIVE_NAMING } from '../../../../core/contracts/native-api.ts'
import type { PullReply } from '../../../../core/contracts/native-records.ts'
import { progressText } from '../../../../core/contracts/progress.ts'
import type { Services } from '../../../../core/contracts/services.ts'
import type { StateRecord, StateTopic, StateValue } from '../../../../core/contracts/state-events.ts'
import type { CorralError } from '../../../../core/errors.ts'
import type { Drain } from '../../../../core/http/draining.ts'
import { aliasesByModel } from '../../../../core/models/allowed-models.ts'
import { parseModelName } from '../../../../core/models/model-name.ts'
import { version } from '../../../../core/system/package-info.ts'
import { serverId } from '../../../../core/system/server-id.ts'
import type { NativeDependencies } from '../native-dependencies.ts'
import { isHere, loadingRecord, localRecord, poolRecords, runningRecord } from '../records.ts'

/** Milliseconds after which the progress of a pull is updated even if it is the same in hundredths. */
const PULL_INTERVAL_MS = 1000
/** Milliseconds between two reads of the GPU sensors, and after a read that returned nothing. */
const GPU_INTERVAL_MS = 5000
const SILENT_GPU_INTERVAL_MS = 60_000
/** Milliseconds between two reads of the memory in use. */
const USED_INTERVAL_MS = 5000
/** Step in milliseconds in which the expiry of a busy model advances. */
const EXPIRY_STEP_MS = 10_000

export type Access = 'operator' | Pick<Model, 'key'> | undefined

/** The current value of a record. The same object as before means that nothing changed. */
export type CurrentRecord = StateRecord & { access: Access }

type Needed = 'catalog' | 'scheduler' | 'downloads' | 'runtimes' | 'conversion' | 'config'

interface Dependencies extends Pick<NativeDependencies, Needed> {
  hardware: Pick<Services['hardware'], 'known' | 'readings'>
  engines: Pick<Engines, 'elsewhere' | 'providerOf' | 'used'>
  /** Undefined until the routes are registered. */
  drain(): Drain | undefined
}

/** The inputs of a model's record, to detect changes. */
interface ModelFacts {
  aliases: string
  pinned: boolean
  failure: CorralError | undefined
  seen: CurrentRecord
}

/** Reads the records of each topic from the services that own them. */
export class StateCollector {
  readonly #deps: Dependencies
  readonly #startedAt = new Date(Date.now() - process.uptime() * 1000).toISOString()
  /**
   * The records of all models and their inputs. Cached, because there may be thousands of models and they change
   * rarely. The models and settings in `made` are compared by identity.
   */
  #models:
    | { made: readonly unknown[]; aliases: string; facts: Map<Model, ModelFacts>; seen: readonly CurrentRecord[] }
    | undefined
  #pulls = new Map<string, { at: number; value: PullReply }>()
  #used: PoolsInUse = {}
  #nextUsed = 0
  #gpus: readonly CurrentRecord[] = []
  #nextGpus = 0

  constructor(deps: Dependencies) {
    this.#deps = deps
  }

  /** @param now `performance.now()` @returns the same list as before if nothing has changed */
  of(topic: StateTopic, now: number): readonly CurrentRecord[] {
    const { scheduler, downloads, conversion, engines, drain } = this.#deps
    switch (topic) {
      case 'server': {
        const value = { version, id: serverId, started_at: this.#startedAt, draining: drain()?.since !== undefined }
        return [{ topic, key: topic, value, access: undefined }]
      }
      case 'requests': {
        const value = { total: scheduler.stats().requests, open: drain()?.open ?? 0 }
        return [{ topic, key: topic, value, access: 'operator' }]
      }
      case 'model':
        return this.#modelRecords()
      case 'engine':
        return this.#engineRecords()
      case 'pull':
        return this.#pullRecords(downloads.list(), now)
      case 'conversion':
        return conversion.running().map(conversionRecord)
      case 'gpu':
        return this.#gpuRecords(now)
      case 'memory':
        return poolRecords(scheduler.stats(), this.#readUsed(now)).map(value => ({
          topic,
          key: value.pool,
          value,
          access: 'operator'
        }))
      case 'member':
        return engines.elsewhere().members.map(value => ({ topic, key: value.name, value, access: 'operator' }))
      case 'replicas': {
        const { replicas } = engines.elsewhere()
        return replicas.map(value => ({ topic, key: `${value.model}#${value.mode}`, value, access: 'operator' }))
      }
      case 'build':
        return [{ topic, key: topic, value: this.#build(), access: 'operator' }]
    }
  }

  #engineRecords(): CurrentRecord[] {
    const { scheduler, catalog, engines } = this.#deps
    const { running, loading } = engines.elsewhere()
    const elsewhere = [
      ...running.map(record => ({ ...record, state: 'loaded' as const })),
      ...loading.map(record => ({ ...record }))
    ].flatMap((value): CurrentRecord[] => {
      const access = catalog.find(parseModelName(value.name))
      return access ? [{ topic: 'engine', key: `${access.key}#${value.mode}@${value.member}`, value, access }] : []
    })
    return [
      ...scheduler.running().filter(isHere(engines)).map(loadedEngine),
      ...scheduler.loading().filter(isHere(engines)).map(loadingEngine),
      ...elsewhere
    ]
  }

  forget(): void {
    this.#models = undefined
    this.#pulls.clear()
    this.#gpus = []
  }

  #modelRecords(): readonly CurrentRecord[] {
    const { catalog, scheduler, config } = this.#deps
    const { models, defaults, limits } = config
    const settings = { models, defaults, limits } as typeof config
    const names = aliasesByModel(catalog.aliases())
    const list = catalog.list()
    const last = this.#models
    const aliases = JSON.stringify([...names])
    const made = [models, defaults, limits, ...list, ...list.map(model => scheduler.loadFailure(model))]
    const isSame = last?.aliases === aliases && last.made.length === made.length
    if (isSame && made.every((one, at) => one === last.made[at])) return last.seen
    const facts = new Map(
      list.map(model => {
        const own = names.get(model.key)
        const now = {
          aliases: `${own}`,
          pinned: settingsFor(settings, model).pin,
          failure: scheduler.loadFailure(model)
        }
        const before = last?.facts.get(model)
        const isKnown =
          before?.aliases === now.aliases && before.pinned === now.pinned && before.failure === now.failure
        return [model, isKnown ? before : { ...now, seen: modelRecord(model, own, now) }] as const
      })
    )
    const seen = [...facts.values()].map(({ seen }) => seen)
    this.#models = { made, aliases, facts, seen }
    return seen
  }

  /** Progress is shown in hundredths, and once a second if it is slower. */
  #pullRecords(pulls: PullReply[], now: number): CurrentRecord[] {
    const before = this.#pulls
    this.#pulls = new Map(
      pulls.map(value => {
        const shown = before.get(value.id)
        const isSame = shown && now - shown.at < PULL_INTERVAL_MS && looksLike(shown.value, value)
        return [value.id, isSame ? shown : { at: now, value }]
      })
    )
    return [...this.#pulls].map(([key, { value }]) => ({ topic: 'pull', key, value, access: 'operator' }))
  }

  /** Returns the last readings, and starts the next read if it is due and there are GPUs. */
  #gpuRecords(now: number): readonly CurrentRecord[] {
    const { hardware } = this.#deps
    if (now < this.#nextGpus || !hardware.known()?.gpus.length) return this.#gpus
    this.#nextGpus = Infinity
    void hardware.readings().then(readings => {
      this.#gpus = readings.map(({ id, ...value }) => ({ topic: 'gpu', key: id, value, access: 'operator' }))
      this.#nextGpus = performance.now() + (readings.length > 0 ? GPU_INTERVAL_MS : SILENT_GPU_INTERVAL_MS)
    })
    return this.#gpus
  }

  /** Returns the memory in use as it was read last, and starts the next read if it is due. */
  #readUsed(now: number): PoolsInUse {
    if (now >= this.#nextUsed) {
      this.#nextUsed = now + USED_INTERVAL_MS
      void this.#deps.engines.used().then(
        pools => (this.#used = pools),
        () => undefined
      )
    }
    return this.#used
  }

  #build(): StateValue<'build'> {
    const { runtimes } = this.#deps
    const { id, kind, version } = runtimes.current() ?? {}
    const working = runtimes.working()
    return {
      state: runtimes.state(),
      ...(id !== undefined && kind && { id, kind, version }),
      ...(working && { status: progressText(working) }),
      ...(working?.fraction !== undefined && { progress: hundredths(working.fraction) })
    }
  }
}

/** Whether a record changes without announcements: a running answer, a transfer, a search for a build. */
export function isMoving({ topic, value }: StateRecord): boolean {
  if (topic === 'engine') return value.state === 'loaded' && value.running > 0
  if (topic === 'pull') return value.state === 'downloading'
  if (topic === 'conversion') return true
  return topic === 'build' && value.status !== undefined
}

function modelRecord(
  model: Model,
  aliases: readonly string[] | undefined,
  { pinned, failure }: Pick<ModelFacts, 'pinned' | 'failure'>
): CurrentRecord {
  const why = failure && { failure: { code: failure.code, message: failure.message } }
  const value = { ...localRecord(model, NATIVE_NAMING, aliases), pinned, ...why }
  return { topic: 'model', key: value.name, value, access: model }
}

const hundredths = (fraction: number) => Math.floor(fraction * 100) / 100

/** The key is based on the variant, because its public name changes when another variant becomes the default. */
const engineKey = ({ variant, mode }: RunningModel | LoadingModel) => `${variant.key}#${mode}`

function conversionRecord({ variant, dtype, progress }: RunningConversion): CurrentRecord {
  const value = {
    model: NATIVE_NAMING.shown(variant),
    dtype,
    status: progressText(progress),
    ...(progress.fraction !== undefined && { progress: hundredths(progress.fraction) })
  }
  return { topic: 'conversion', key: `${variant.key}#${dtype}`, value, access: variant }
}

function loadedEngine(running: RunningModel): CurrentRecord {
  const record = runningRecord(running, NATIVE_NAMING)
  // The expiry of a busy model advances continuously, so it is rounded.
  const steps = Math.ceil((running.expiresAt?.getTime() ?? 0) / EXPIRY_STEP_MS)
  const moves = running.running > 0 && running.expiresAt !== undefined
  const expires_at = moves ? new Date(steps * EXPIRY_STEP_MS).toISOString() : record.expires_at
  const value = { ...record, expires_at, state: 'loaded' as const }
  return { topic: 'engine', key: engineKey(running), value, access: running.variant }
}

function loadingEngine(loading: LoadingModel): CurrentRecord {
  const record = loadingRecord(loading, NATIVE_NAMING)
  const { progress } = record
  const value = { ...record, ...(progress !== undefined && { progress: hundredths(progress) }) }
  return { topic: 'engine', key: engineKey(loading), value, access: loading.variant }
}

function looksLike(shown: PullReply, now: PullReply): boolean {
  const isSame = (['state', 'reason', 'detached', 'watchers', 'total'] as const).every(of => shown[of] === now[of])
  return isSame && hundredths(shown.completed / shown.total) === hundredths(now.completed / now.total)
}
