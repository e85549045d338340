import { Counter, Gauge, Histogram, type Registry } from 'prom-client'
import type { Elsewhere, EngineStats, SchedulerStats } from '../../../core/contracts/built-in-services.ts'
import type { ConversionCounts } from '../../../core/contracts/conversion.ts'
import type { PullRecord } from '../../../core/contracts/downloads.ts'
import type { EngineMode, StoredConversations } from '../../../core/contracts/engines.ts'
import type { PluginHooks } from '../../../core/contracts/hooks.ts'
import { version } from '../../../core/system/package-info.ts'
import type { LabelValues } from './label-values.ts'

export interface MeasuredEngine extends Omit<EngineStats, 'longestWait'> {
  /** Undefined if the nodes do not report it. */
  readonly longestWait: number | undefined
}

/** Where the values of a scrape come from. */
export interface Sources {
  scheduler(): Omit<SchedulerStats, 'engines'> & { readonly engines: readonly MeasuredEngine[] }
  pulls(): readonly Pick<PullRecord, 'state'>[]
  received(): number
  conversions(): ConversionCounts
  storedConversations(): Promise<readonly StoredConversations[]>
  freeSpace(): Promise<number | undefined>
}

const LOAD = [0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640]
const PULL_STATES = ['downloading', 'waiting', 'storing', 'paused', 'failed']

export function modelMetrics(registry: Registry, values: LabelValues): PluginHooks {
  const counter = <Label extends string>(name: string, help: string, ...labelNames: Label[]) =>
    new Counter({ name, help, labelNames, registers: [registry] })
  const loads = new Histogram({
    name: 'corral_load_seconds',
    help: 'Time that model loads took, from available memory to an engine that answers',
    labelNames: ['model'] as const,
    buckets: LOAD,
    registers: [registry]
  })
  const loadFailures = counter(
    'corral_load_failures_total',
    'Failed loads by error code and cause (docs/failures.md)',
    'model',
    'code',
    'cause'
  )
  const unloads = counter(
    'corral_unloads_total',
    'Stopped engines by reason: idle, evicted, reload, stopped or failed',
    'model',
    'reason'
  )
  const engineFailures = counter(
    'corral_engine_failures_total',
    'Engines that failed while serving, by cause such as stuck, hung or over_memory (docs/failures.md)',
    'model',
    'cause'
  )
  const pulls = counter(
    'corral_downloads_total',
    'Downloads that were stored or failed; code says why',
    'outcome',
    'code'
  )
  return {
    modelLoaded({ model, milliseconds }) {
      loads.observe({ model: values.model(model) }, milliseconds / 1000)
    },
    modelUnloaded({ model, reason, cause = 'unknown' }) {
      unloads.inc({ model: values.model(model), reason })
      if (reason === 'failed') engineFailures.inc({ model: values.model(model), cause })
    },
    loadFailed({ model, code, cause = '' }) {
      loadFailures.inc({ model: values.model(model), code, cause })
    },
    pullFinished: () => pulls.inc({ outcome: 'stored', code: '' }),
    pullFailed: ({ code }) => pulls.inc({ outcome: 'failed', code })
  }
}

/**
 * Adds the models on the nodes of a cluster, summed over all nodes and whoever called them. The local statistics of
 * such a model only count passed requests, so they are replaced.
 * @param named the public name of a model here, or undefined if the nodes do not have it
 */
export function withMembers(
  own: readonly EngineStats[],
  { running, loading }: Pick<Elsewhere, 'running' | 'loading'>,
  named: (model: string, mode: EngineMode) => string | undefined
): MeasuredEngine[] {
  const there = new Map<string, MeasuredEngine>()
  const add = (name: string, mode: EngineMode, more: Partial<MeasuredEngine>) => {
    const model = named(name, mode)
    if (model !== undefined) addEngine(there, { ...IDLE, model, mode, ...more })
  }
  for (const { name, mode, slots, running: answered, queued } of running) {
    const freeSlots = Math.max(0, slots - answered)
    add(name, mode as EngineMode, { isLoaded: true, slots, freeSlots, running: answered, waiting: queued })
  }
  for (const { name, mode, queued } of loading) add(name, mode as EngineMode, { waiting: queued })
  for (const { model, mode, waiting, isBlocked } of own) add(model, mode, { waiting, isBlocked })
  return [...own.filter(({ model, mode }) => named(model, mode) === undefined), ...there.values()]
}

const IDLE = {
  isLoaded: false,
  isBlocked: false,
  slots: 0,
  freeSlots: 0,
  running: 0,
  waiting: 0,
  longestWait: undefined,
  reserved: {}
}

/** Adds an engine to others of the same model and mode. */
function addEngine(engines: Map<string, MeasuredEngine>, engine: MeasuredEngine): void {
  const key = `${engine.model}#${engine.mode}`
  const before = engines.get(key)
  if (!before) return void engines.set(key, engine)
  const reserved = { ...before.reserved }
  for (const [pool, bytes] of Object.entries(engine.reserved)) reserved[pool] = (reserved[pool] ?? 0) + bytes
  const waits = [before.longestWait, engine.longestWait].filter(wait => wait !== undefined)
  engines.set(key, {
    model: engine.model,
    mode: engine.mode,
    isLoaded: before.isLoaded || engine.isLoaded,
    isBlocked: before.isBlocked || engine.isBlocked,
    slots: before.slots + engine.slots,
    freeSlots: before.freeSlots + engine.freeSlots,
    running: before.running + engine.running,
    waiting: before.waiting + engine.waiting,
    longestWait: waits.length === 0 ? undefined : Math.max(...waits),
    reserved
  })
}

interface Snapshot {
  engines: readonly MeasuredEngine[]
  memory: SchedulerStats['memory']
  /** Pulls by state. */
  pulls: ReadonlyMap<string, number>
  received: number
  conversions: ConversionCounts
  /** Sums over all models. */
  stored: Omit<StoredConversations, 'model'>
  freeSpace: number | undefined
}

type Sample = readonly [labels: Record<string, string>, value: number]

interface Family {
  name: string
  help: string
  labels?: readonly string[]
  isCounter?: true
  read(snapshot: Snapshot): readonly Sample[]
}

/** A gauge for each model in each mode. */
function perEngine(name: string, help: string, value: (engine: MeasuredEngine) => number | undefined): Family {
  const read = ({ engines }: Snapshot) =>
    engines.flatMap(engine => {
      const known = value(engine)
      return known === undefined ? [] : [[{ model: engine.model, mode: engine.mode }, known] as const]
    })
  return { name, help, labels: ['model', 'mode'], read }
}

/**
 * A gauge for each model under the name that vLLM uses, which load balancers such as the Gateway API extension read.
 */
function perModel(name: string, help: string, value: (engines: readonly MeasuredEngine[]) => number): Family {
  return {
    name: `vllm:${name}`,
    help,
    labels: ['model_name'],
    read({ engines }) {
      // Before its first load the server has free capacity. Without any sample, load balancers would treat it as
      // broken.
      if (engines.length === 0) return [[{ model_name: '' }, value([])]]
      const models = new Map<string, MeasuredEngine[]>()
      for (const engine of engines) models.set(engine.model, [...(models.get(engine.model) ?? []), engine])
      return [...models].map(([model, its]) => [{ model_name: model }, value(its)] as const)
    }
  }
}

function byPool(name: string, help: string, read: (memory: Snapshot['memory']) => Record<string, number>): Family {
  const samples = ({ memory }: Snapshot) =>
    Object.entries(read(memory)).map(([pool, value]) => [{ pool }, value] as const)
  return { name, help, labels: ['pool'], read: samples }
}

/** A gauge of the whole server, for load balancers that read a single value. */
function ofServer(name: string, help: string, value: (engines: readonly MeasuredEngine[]) => number): Family {
  return { name, help, read: ({ engines }) => [[{}, value(engines)]] }
}

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0)

const allRunning = (engines: readonly MeasuredEngine[]) => sum(engines.map(({ running }) => running))
const allWaiting = (engines: readonly MeasuredEngine[]) => sum(engines.map(({ waiting }) => waiting))

/** The share of slots in use, from 0 to 1, or 0 if nothing is loaded. */
function usedSlots(engines: readonly MeasuredEngine[]): number {
  const slots = sum(engines.map(each => each.slots))
  return slots === 0 ? 0 : 1 - sum(engines.map(each => each.freeSlots)) / slots
}

const FAMILIES: readonly Family[] = [
  {
    name: 'corral_build_info',
    help: 'The versions of corral and of Node',
    labels: ['version', 'node'],
    read: () => [[{ version, node: process.versions.node }, 1]]
  },
  perEngine('corral_model_loaded', '1 while the model is loaded', ({ isLoaded }) => Number(isLoaded)),
  perEngine(
    'corral_model_blocked',
    '1 while requests for the model are refused because its loads failed repeatedly',
    ({ isBlocked }) => Number(isBlocked)
  ),
  perEngine('corral_slots', 'Requests that the loaded model can answer at the same time', ({ slots }) => slots),
  perEngine('corral_slots_free', 'Free slots', ({ freeSlots }) => freeSlots),
  perEngine('corral_requests_running', 'Requests that the model is answering', ({ running }) => running),
  perEngine('corral_requests_waiting', 'Requests waiting for the model or one of its slots', ({ waiting }) => waiting),
  perEngine('corral_queue_oldest_seconds', 'Longest time that a waiting request has waited', ({ longestWait }) =>
    longestWait === undefined ? undefined : longestWait / 1000
  ),
  {
    name: 'corral_model_memory_bytes',
    help: 'Memory reserved for the model, by pool: host or a GPU',
    labels: ['model', 'mode', 'pool'],
    read: ({ engines }) =>
      engines.flatMap(({ model, mode, reserved }) =>
        Object.entries(reserved).map(([pool, bytes]) => [{ model, mode, pool }, bytes] as const)
      )
  },
  byPool('corral_memory_reserved_bytes', 'Memory reserved for all models, by pool', ({ reserved, budget }) => ({
    ...Object.fromEntries(Object.keys(budget).map(pool => [pool, 0])),
    ...reserved
  })),
  byPool('corral_memory_budget_bytes', 'Memory that all models together may use, by pool', ({ budget }) => budget),
  ofServer('corral_server_requests_running', 'Requests that models of the server are answering', allRunning),
  ofServer('corral_server_requests_waiting', 'Requests waiting for models of the server', allWaiting),
  ofServer(
    'corral_server_slots_used_ratio',
    'Share of the slots of all loaded models that are in use; 1 is all',
    usedSlots
  ),
  // Under the names that llama-server uses.
  ofServer('llamacpp:requests_processing', 'Requests that models of the server are answering', allRunning),
  ofServer('llamacpp:requests_deferred', 'Requests waiting for models of the server', allWaiting),
  perModel('num_requests_running', 'Requests that the model is answering', allRunning),
  perModel('num_requests_waiting', 'Requests waiting for the model', allWaiting),
  perModel(
    'kv_cache_usage_perc',
    "Share of the model's slots in use, each with its part of the KV cache; 1 is all",
    usedSlots
  ),
  {
    name: 'corral_downloads_unfinished',
    help: 'Unfinished downloads, by state',
    labels: ['state'],
    read: ({ pulls }) => PULL_STATES.map(state => [{ state }, pulls.get(state) ?? 0])
  },
  {
    name: 'corral_download_bytes_total',
    help: 'Bytes of files received by downloads',
    isCounter: true,
    read: ({ received }) => [[{}, received]]
  },
  {
    name: 'corral_conversions_running',
    help: 'Running conversions of SafeTensors models',
    read: ({ conversions }) => [[{}, conversions.running]]
  },
  {
    name: 'corral_conversions_total',
    help: 'Finished conversions, by outcome',
    labels: ['outcome'],
    isCounter: true,
    read: ({ conversions: { finished, failed } }) => [
      [{ outcome: 'finished' }, finished],
      [{ outcome: 'failed' }, failed]
    ]
  },
  {
    name: 'corral_prompt_cache_bytes',
    help: 'Bytes of stored conversations, in memory and on disk',
    labels: ['tier'],
    read: ({ stored: { memory, disk } }) => [
      [{ tier: 'memory' }, memory],
      [{ tier: 'disk' }, disk]
    ]
  },
  {
    name: 'corral_prompt_cache_prompts_total',
    help: 'Prompts by whether their conversation was in a slot or restored: hit or miss',
    labels: ['outcome'],
    isCounter: true,
    read: ({ stored: { hits, misses } }) => [
      [{ outcome: 'hit' }, hits],
      [{ outcome: 'miss' }, misses]
    ]
  },
  {
    name: 'corral_prompt_cache_restored_tokens_total',
    help: 'Prompt tokens that were restored instead of processed again',
    isCounter: true,
    read: ({ stored }) => [[{}, stored.restoredTokens]]
  },
  {
    name: 'corral_prompt_cache_restore_seconds_total',
    help: 'Time that restoring them took',
    isCounter: true,
    read: ({ stored }) => [[{}, stored.restoreTime / 1000]]
  },
  {
    name: 'corral_disk_free_bytes',
    help: 'Free bytes on the disk of the models',
    read: ({ freeSpace }) => (freeSpace === undefined ? [] : [[{}, freeSpace]])
  }
]

/**
 * Gauges of the current state, which is read at each scrape and never otherwise.
 * @returns a function that reads the state, to be called before the registry is printed
 */
export function stateMetrics(registry: Registry, values: LabelValues, sources: Sources): () => Promise<void> {
  const metrics = FAMILIES.map(({ name, help, labels = [], isCounter, read }) => {
    const configuration = { name, help, labelNames: labels, registers: [registry] }
    return { metric: isCounter ? new Counter(configuration) : new Gauge(configuration), read }
  })
  return async () => {
    const [freeSpace, conversations] = await Promise.all([sources.freeSpace(), sources.storedConversations()])
    const { engines, memory } = sources.scheduler()
    const pulls = new Map<string, number>()
    for (const { state } of sources.pulls()) pulls.set(state, (pulls.get(state) ?? 0) + 1)
    // Models without their own label are added up.
    const labelled = new Map<string, MeasuredEngine>()
    for (const engine of engines) addEngine(labelled, { ...engine, model: values.model(engine.model) })
    const snapshot: Snapshot = {
      engines: [...labelled.values()],
      memory,
      pulls,
      received: sources.received(),
      conversions: sources.conversions(),
      stored: addUp(conversations),
      freeSpace
    }
    // Everything from here on is synchronous, so that concurrent scrapes do not count twice.
    for (const { metric, read } of metrics) {
      metric.reset()
      for (const [labels, value] of read(snapshot)) metric.inc(labels, value)
    }
  }
}

function addUp(list: readonly StoredConversations[]): Snapshot['stored'] {
  const sum = { conversations: 0, tokens: 0, memory: 0, disk: 0, hits: 0, misses: 0, restoredTokens: 0, restoreTime: 0 }
  const names = Object.keys(sum) as (keyof typeof sum)[]
  for (const one of list) for (const name of names) sum[name] += one[name]
  return sum
}
