import { Counter, Gauge, Histogram, type Registry } from 'prom-client'
import type { Elsewhere, EngineStats, PoolsInUse, SchedulerStats } from '../../../core/contracts/built-in-services.ts'
import type { ConversionCounts } from '../../../core/contracts/conversion.ts'
import type { PullRecord } from '../../../core/contracts/downloads.ts'
import type { EngineMode, StoredConversations } from '../../../core/contracts/engines.ts'
import type { PluginHooks } from '../../../core/contracts/hooks.ts'
import { version } from '../../../core/system/package-info.ts'
import BUCKETS from './buckets.json' with { type: 'json' }
import HELP from './help-texts.json' with { type: 'json' }
import type { LabelValues } from './series.ts'

interface MeasuredEngine extends Omit<EngineStats, 'longestWait'> {
  /** Undefined if the nodes do not report it. */
  readonly longestWait: number | undefined
}

/** The state of the server, read at each scrape. */
export interface ServerState {
  engines: readonly MeasuredEngine[]
  memory: SchedulerStats['memory']
  inUse?: PoolsInUse
  pulls: readonly Pick<PullRecord, 'state'>[]
  received: number
  conversions: ConversionCounts
  stored: readonly StoredConversations[]
  freeSpace: number | undefined
  cluster?: Pick<Elsewhere, 'members' | 'replicas' | 'prefixes' | 'wanted'>
}

type MetricName = keyof typeof HELP

export function modelMetrics(registry: Registry, values: LabelValues): PluginHooks {
  const about = <Label extends string>(name: MetricName, ...labelNames: Label[]) => {
    return { name, help: HELP[name], labelNames, registers: [registry] }
  }
  const loads = new Histogram({ ...about('corral_load_seconds', 'model'), buckets: BUCKETS.corral_load_seconds })
  const loadFailures = new Counter(about('corral_load_failures_total', 'model', 'code', 'cause'))
  const unloads = new Counter(about('corral_unloads_total', 'model', 'reason'))
  const engineFailures = new Counter(about('corral_engine_failures_total', 'model', 'cause'))
  const pulls = new Counter(about('corral_downloads_total', 'outcome', 'code'))
  const toolCalls = new Counter(about('corral_tool_calls_total', 'server', 'result'))
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
    pullFailed: ({ code }) => pulls.inc({ outcome: 'failed', code }),
    toolCalled: ({ server, result }) => toolCalls.inc({ server, result })
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

/** A sample without a value is left out. */
type Sample = readonly [labels: Record<string, string>, value: number | undefined]

interface Family {
  name: MetricName
  labels: readonly string[]
  read(state: ServerState): readonly Sample[]
}

/** A gauge for each model in each mode. */
const perEngine = (name: MetricName, value: (engine: MeasuredEngine) => number | undefined): Family => ({
  name,
  labels: ['model', 'mode'],
  read: ({ engines }) => engines.map(engine => [{ model: engine.model, mode: engine.mode }, value(engine)])
})

/** A gauge for each model under vLLM's name, which load balancers such as the Gateway API extension read. */
const perModel = (name: MetricName, value: (engines: readonly MeasuredEngine[]) => number): Family => ({
  name,
  labels: ['model_name'],
  read({ engines }) {
    // Load balancers treat a server without any sample as broken, but before its first load it has free capacity.
    const models = engines.length === 0 ? [''] : [...new Set(engines.map(({ model }) => model))]
    return models.map(model => [{ model_name: model }, value(engines.filter(engine => engine.model === model))])
  }
})

/** A metric with one sample for each value of its only label. */
const by = (label: string, name: MetricName, read: (state: ServerState) => Record<string, number>): Family => ({
  name,
  labels: [label],
  read: state => Object.entries(read(state)).map(([key, value]) => [{ [label]: key }, value])
})

/** A metric without labels. */
const single = (name: MetricName, read: (state: ServerState) => number | undefined): Family => ({
  name,
  labels: [],
  read: state => [[{}, read(state)]]
})

const mapValues = <Value>(values: Record<string, Value>, map: (value: Value, key: string) => number) =>
  Object.fromEntries(Object.entries(values).map(([key, value]) => [key, map(value, key)]))

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0)

function countPulls(pulls: ServerState['pulls']): Record<string, number> {
  const counts: Record<string, number> = { downloading: 0, waiting: 0, storing: 0, paused: 0, failed: 0 }
  for (const { state } of pulls) counts[state]!++
  return counts
}

const sumStored = (stored: ServerState['stored'], field: Exclude<keyof StoredConversations, 'model'>) =>
  sum(stored.map(each => each[field]))

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
  {
    name: 'corral_cluster_replicas',
    labels: ['model', 'mode', 'state'],
    read: ({ cluster }) =>
      (cluster?.replicas ?? []).flatMap(({ model, mode, wanted, loaded, loading }) =>
        Object.entries({ wanted, ready: loaded, loading }).map(
          ([state, count]) => [{ model, mode, state }, count] as const
        )
      )
  },
  by('state', 'corral_cluster_nodes', ({ cluster: { members } = { members: [] } }) =>
    mapValues(members.length > 0 ? { up: 0, draining: 0, away: 0 } : {}, (_, state) => {
      return members.filter(member => member.state === state).length
    })
  ),
  single('corral_cluster_wanted_nodes', ({ cluster }) => cluster?.wanted),
  single('corral_cluster_conversations', ({ cluster }) => cluster?.prefixes?.conversations),
  by('reason', 'corral_cluster_requests_total', ({ cluster }) => cluster?.prefixes?.requests ?? {}),
  by('pool', 'corral_memory_reserved_bytes', ({ memory: { reserved, budget } }) => ({
    ...Object.fromEntries(Object.keys(budget).map(pool => [pool, 0])),
    ...reserved
  })),
  by('pool', 'corral_memory_budget_bytes', ({ memory }) => memory.budget),
  by('pool', 'corral_memory_free_bytes', ({ memory: { reserved, budget } }) =>
    mapValues(budget, (bytes, pool) => Math.max(0, bytes - (reserved[pool] ?? 0)))
  ),
  by('pool', 'corral_memory_used_bytes', ({ inUse = {} }) => mapValues(inUse, ({ used }) => used)),
  single('corral_server_requests_running', ({ engines }) => runningIn(engines)),
  single('corral_server_requests_waiting', ({ engines }) => waitingIn(engines)),
  single('corral_server_slots_used_ratio', ({ engines }) => usedSlots(engines)),
  // Under the names that llama-server uses.
  single('llamacpp:requests_processing', ({ engines }) => runningIn(engines)),
  single('llamacpp:requests_deferred', ({ engines }) => waitingIn(engines)),
  perModel('vllm:num_requests_running', runningIn),
  perModel('vllm:num_requests_waiting', waitingIn),
  perModel('vllm:kv_cache_usage_perc', usedSlots),
  by('state', 'corral_downloads_unfinished', ({ pulls }) => countPulls(pulls)),
  single('corral_download_bytes_total', ({ received }) => received),
  single('corral_conversions_running', ({ conversions }) => conversions.running),
  by('outcome', 'corral_conversions_total', ({ conversions: { finished, failed } }) => ({ finished, failed })),
  by('tier', 'corral_prompt_cache_bytes', ({ stored }) => ({
    memory: sumStored(stored, 'memory'),
    disk: sumStored(stored, 'disk')
  })),
  by('outcome', 'corral_prompt_cache_prompts_total', ({ stored }) => ({
    hit: sumStored(stored, 'hits'),
    miss: sumStored(stored, 'misses')
  })),
  single('corral_prompt_cache_restored_tokens_total', ({ stored }) => sumStored(stored, 'restoredTokens')),
  single('corral_prompt_cache_restore_seconds_total', ({ stored }) => sumStored(stored, 'restoreTime') / 1000),
  single('corral_disk_free_bytes', ({ freeSpace }) => freeSpace)
]

/** Registers the gauges of the current state. @returns a function that fills them before the registry is printed */
export function stateMetrics(registry: Registry, values: LabelValues): (state: ServerState) => void {
  const metrics = FAMILIES.map(({ name, labels, read }) => {
    const configuration = { name, help: HELP[name], labelNames: labels, registers: [registry] }
    return { metric: name.endsWith('_total') ? new Counter(configuration) : new Gauge(configuration), read }
  })
  return state => {
    // Models without their own label are added up.
    const labelled = new Map<string, MeasuredEngine>()
    for (const engine of state.engines) addEngine(labelled, { ...engine, model: values.model(engine.model) })
    const replicas = state.cluster?.replicas.map(each => ({ ...each, model: values.model(each.model) }))
    const cluster = state.cluster && { ...state.cluster, replicas: replicas! }
    const shown = { ...state, engines: [...labelled.values()], ...(cluster && { cluster }) }
    for (const { metric, read } of metrics) {
      metric.reset()
      for (const [labels, value] of read(shown)) if (value !== undefined) metric.inc(labels, value)
    }
  }
}
