import { Counter, Gauge, Histogram, type Registry } from 'prom-client'
import type { Elsewhere, EngineStats, SchedulerStats } from '../../../core/contracts/built-in-services.ts'
import type { ConversionCounts } from '../../../core/contracts/conversion.ts'
import type { PullRecord } from '../../../core/contracts/downloads.ts'
import type { EngineMode, StoredConversations } from '../../../core/contracts/engines.ts'
import type { PluginHooks } from '../../../core/contracts/hooks.ts'
import { version } from '../../../core/system/package-info.ts'
import HELP from './help-texts.json' with { type: 'json' }
import type { LabelValues } from './label-values.ts'

export interface MeasuredEngine extends Omit<EngineStats, 'longestWait'> {
  /** Undefined if the nodes do not report it. */
  readonly longestWait: number | undefined
}

/** The sources of the values of a scrape. */
export interface Sources {
  scheduler(): Omit<SchedulerStats, 'engines'> & { readonly engines: readonly MeasuredEngine[] }
  pulls(): readonly Pick<PullRecord, 'state'>[]
  received(): number
  conversions(): ConversionCounts
  storedConversations(): Promise<readonly StoredConversations[]>
  freeSpace(): Promise<number | undefined>
}

type MetricName = keyof typeof HELP

const LOAD = [0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640]
const PULL_STATES = ['downloading', 'waiting', 'storing', 'paused', 'failed']

export function modelMetrics(registry: Registry, values: LabelValues): PluginHooks {
  const about = <Label extends string>(name: MetricName, ...labelNames: Label[]) => {
    return { name, help: HELP[name], labelNames, registers: [registry] }
  }
  const loads = new Histogram({ ...about('corral_load_seconds', 'model'), buckets: LOAD })
  const loadFailures = new Counter(about('corral_load_failures_total', 'model', 'code', 'cause'))
  const unloads = new Counter(about('corral_unloads_total', 'model', 'reason'))
  const engineFailures = new Counter(about('corral_engine_failures_total', 'model', 'cause'))
  const pulls = new Counter(about('corral_downloads_total', 'outcome', 'code'))
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
 * Adds the models on the nodes of a cluster, summed over all nodes and all callers. The local statistics of such a
 * model only count passed requests, so they are replaced.
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
  pulls: Record<string, number>
  received: number
  conversions: ConversionCounts
  /** Sums over all models. */
  stored: Omit<StoredConversations, 'model'>
  freeSpace: number | undefined
}

type Sample = readonly [labels: Record<string, string>, value: number]

interface Family {
  name: MetricName
  labels: readonly string[]
  read(snapshot: Snapshot): readonly Sample[]
}

/** A gauge for each model in each mode. */
function perEngine(name: MetricName, value: (engine: MeasuredEngine) => number | undefined): Family {
  const read = ({ engines }: Snapshot) =>
    engines.flatMap(engine => {
      const known = value(engine)
      return known === undefined ? [] : [[{ model: engine.model, mode: engine.mode }, known] as const]
    })
  return { name, labels: ['model', 'mode'], read }
}

/**
 * A gauge for each model under the name that vLLM uses, which load balancers such as the Gateway API extension read.
 */
function perModel(name: MetricName, value: (engines: readonly MeasuredEngine[]) => number): Family {
  return {
    name,
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

/** A metric with one sample for each value of its only label. */
function by(label: string, name: MetricName, read: (snapshot: Snapshot) => Record<string, number>): Family {
  const samples = (snapshot: Snapshot) =>
    Object.entries(read(snapshot)).map(([key, value]) => [{ [label]: key }, value] as const)
  return { name, labels: [label], read: samples }
}

/** A metric without labels. */
function single(name: MetricName, read: (snapshot: Snapshot) => number | undefined): Family {
  const samples = (snapshot: Snapshot) => {
    const value = read(snapshot)
    return value === undefined ? [] : [[{}, value] as const]
  }
  return { name, labels: [], read: samples }
}

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0)

const runningIn = (engines: readonly MeasuredEngine[]) => sum(engines.map(({ running }) => running))
const waitingIn = (engines: readonly MeasuredEngine[]) => sum(engines.map(({ waiting }) => waiting))

/** The share of slots in use, from 0 to 1, or 0 if nothing is loaded. */
function usedSlots(engines: readonly MeasuredEngine[]): number {
  const slots = sum(engines.map(each => each.slots))
  return slots === 0 ? 0 : 1 - sum(engines.map(each => each.freeSlots)) / slots
}

const FAMILIES: readonly Family[] = [
  {
    name: 'corral_build_info',
    labels: ['version', 'node'],
    read: () => [[{ version, node: process.versions.node }, 1]]
  },
  perEngine('corral_model_loaded', ({ isLoaded }) => Number(isLoaded)),
  perEngine('corral_model_blocked', ({ isBlocked }) => Number(isBlocked)),
  perEngine('corral_slots', ({ slots }) => slots),
  perEngine('corral_slots_free', ({ freeSlots }) => freeSlots),
  perEngine('corral_requests_running', ({ running }) => running),
  perEngine('corral_requests_waiting', ({ waiting }) => waiting),
  perEngine('corral_queue_oldest_seconds', ({ longestWait: wait }) => (wait === undefined ? undefined : wait / 1000)),
  {
    name: 'corral_model_memory_bytes',
    labels: ['model', 'mode', 'pool'],
    read: ({ engines }) =>
      engines.flatMap(({ model, mode, reserved }) =>
        Object.entries(reserved).map(([pool, bytes]) => [{ model, mode, pool }, bytes] as const)
      )
  },
  by('pool', 'corral_memory_reserved_bytes', ({ memory: { reserved, budget } }) => ({
    ...Object.fromEntries(Object.keys(budget).map(pool => [pool, 0])),
    ...reserved
  })),
  by('pool', 'corral_memory_budget_bytes', ({ memory }) => memory.budget),
  single('corral_server_requests_running', ({ engines }) => runningIn(engines)),
  single('corral_server_requests_waiting', ({ engines }) => waitingIn(engines)),
  single('corral_server_slots_used_ratio', ({ engines }) => usedSlots(engines)),
  // Under the names that llama-server uses.
  single('llamacpp:requests_processing', ({ engines }) => runningIn(engines)),
  single('llamacpp:requests_deferred', ({ engines }) => waitingIn(engines)),
  perModel('vllm:num_requests_running', runningIn),
  perModel('vllm:num_requests_waiting', waitingIn),
  perModel('vllm:kv_cache_usage_perc', usedSlots),
  by('state', 'corral_downloads_unfinished', ({ pulls }) => pulls),
  single('corral_download_bytes_total', ({ received }) => received),
  single('corral_conversions_running', ({ conversions }) => conversions.running),
  by('outcome', 'corral_conversions_total', ({ conversions: { finished, failed } }) => ({ finished, failed })),
  by('tier', 'corral_prompt_cache_bytes', ({ stored: { memory, disk } }) => ({ memory, disk })),
  by('outcome', 'corral_prompt_cache_prompts_total', ({ stored: { hits, misses } }) => ({ hit: hits, miss: misses })),
  single('corral_prompt_cache_restored_tokens_total', ({ stored }) => stored.restoredTokens),
  single('corral_prompt_cache_restore_seconds_total', ({ stored }) => stored.restoreTime / 1000),
  single('corral_disk_free_bytes', ({ freeSpace }) => freeSpace)
]

/**
 * Gauges of the current state, which is read at each scrape and never otherwise.
 * @returns a function that reads the state, to be called before the registry is printed
 */
export function stateMetrics(registry: Registry, values: LabelValues, sources: Sources): () => Promise<void> {
  const metrics = FAMILIES.map(({ name, labels, read }) => {
    const configuration = { name, help: HELP[name], labelNames: labels, registers: [registry] }
    return { metric: name.endsWith('_total') ? new Counter(configuration) : new Gauge(configuration), read }
  })
  return async () => {
    const [freeSpace, conversations] = await Promise.all([sources.freeSpace(), sources.storedConversations()])
    const { engines, memory } = sources.scheduler()
    const pulls: Snapshot['pulls'] = Object.fromEntries(PULL_STATES.map(state => [state, 0]))
    for (const { state } of sources.pulls()) pulls[state]!++
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
