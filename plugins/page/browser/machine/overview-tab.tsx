import { useEffect, useState } from 'preact/hooks'
import type { RuntimesReport } from '../../../../core/contracts/builds.ts'
import type { PromptCacheRecord } from '../../../../core/contracts/native-records.ts'
import { formatAgo, formatNumber, formatSize } from '../parts/formats.ts'
import { Choices } from '../parts/forms.tsx'
import { Facts, Fault, Table } from '../parts/layout.tsx'
import { MemoryPools } from '../parts/memory-pools.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { may, me } from '../state/me.ts'
import { build, engines, gpus, pools, server } from '../state/server-state.ts'
import { fill, texts } from '../texts/texts.ts'
import { collectSamples, followHistory, history, LiveChart, type LoadSample, samples } from './live-chart.tsx'

export function OverviewTab() {
  const t = texts.value
  const [range, setRange] = useState<keyof typeof t.ranges>('now')
  useEffect(collectSamples, [])
  useEffect(() => (range === 'now' ? undefined : followHistory(range)), [range])
  const all = range === 'now' ? samples : history
  const now: LoadSample | undefined = samples.value.at(-1)
  const temperatures = gpus.value.flatMap(({ temperature = [] }) => `${temperature} °C`)
  const loads = gpus.value.flatMap(({ utilization: share }) =>
    share === undefined ? [] : `${Math.round(100 * share)} %`
  )
  const loaded = engines.value.filter(engine => engine.state === 'loaded')
  const isLive = range === 'now'
  const charts = [
    [t.tokensPerSecond, formatNumber(now?.tokens ?? 0, 1), 'tokens'],
    [t.requestsRunning, formatNumber(now?.running ?? 0), 'running'],
    [t.requestsWaiting, formatNumber(now?.waiting ?? 0), 'waiting'],
    [`${t.memory}: ${t.reservedMemory}`, pools.value.length > 0 ? formatSize(now?.memory ?? 0) : undefined, 'memory'],
    // The server does not record the sensors.
    [t.gpuTemperature, isLive && temperatures.length > 0 ? temperatures.join(' · ') : undefined, 'temperature'],
    [t.gpuUtilization, isLive && loads.length > 0 ? loads.join(' · ') : undefined, 'utilization']
  ] as const
  const llama = build.value
  const who = me.value
  const facts = [
    ['corral', server.value?.version],
    [t.startedAt, server.value && formatAgo(Date.parse(server.value.started_at))],
    ['llama.cpp', llama && [llama.version ?? llama.state, llama.kind, llama.status].filter(Boolean).join(', ')],
    [
      t.you,
      who && (
        <>
          {t.roles[who.role]}
          {who.key ? ` (${who.key.name})` : ''}
          {who.more && <p class="quiet">{who.more}</p>}
        </>
      )
    ]
  ] as const
  return (
    <>
      {may('operator') && <Choices label={t.timeRange} names={t.ranges} chosen={range} onChoose={setRange} />}
      <div class="charts">
        {charts.map(
          ([title, value, field]) =>
            value !== undefined && <LiveChart key={field} title={title} value={value} field={field} all={all} />
        )}
      </div>
      <MemoryPools />
      <h2 class="section-title">{t.loadedModels}</h2>
      {loaded.length === 0 && <p class="quiet">{t.nothingLoaded}</p>}
      {loaded.length > 0 && (
        <Table
          head={[t.model, t.slotsBusy, t.waiting, t.promptCache, t.memory]}
          rows={loaded.map(
            ({ name, running, slots, queued, prompt_cache: cache, memory, size, remote_model: remote }) => [
              name,
              remote === undefined ? `${running} / ${slots}` : running,
              queued,
              cache && formatHits(cache),
              memory && formatSize(size)
            ]
          )}
        />
      )}
      <h2 class="section-title">{t.thisServer}</h2>
      <Facts facts={facts} />
      {may('operator') && <Hardware />}
    </>
  )
}

/** Formats the share of prompts whose conversation was stored, and the size of what is stored. */
function formatHits({ hits, misses, memory, disk }: PromptCacheRecord): string {
  const share =
    hits + misses > 0 ? `${fill(texts.value.cacheHits, { share: Math.round((100 * hits) / (hits + misses)) })} · ` : ''
  return share + formatSize(memory + disk)
}

function Hardware() {
  const t = texts.value
  const { reply, fault } = useReply<RuntimesReport>('api/runtimes')
  if (fault) return <Fault text={fault.message} />
  if (!reply) return null
  const { cpu, memory, gpus, problems } = reply.hardware ?? {}
  const facts = [
    [t.processor, cpu && `${cpu.model}, ${fill(t.threads, { count: cpu.threads })}`],
    [t.memory, memory && formatSize(memory.total)],
    [t.gpus, gpus?.length ? gpus.map(({ name }) => name).join(', ') : t.noGpu]
  ] as const
  return (
    <>
      <h2 class="section-title">{t.hardware}</h2>
      <Facts facts={facts} />
      {problems?.map(({ message, advice }) => (
        <p key={message} class="card">
          {message}
          {advice && <span class="quiet"> {advice}</span>}
        </p>
      ))}
      <h2 class="section-title">{t.builds}</h2>
      <ul class="plain-list">
        {reply.ranking?.map(({ kind, reasons }) => (
          <li key={kind} class="row build-line">
            <span class="grow">
              {kind}
              <small> {reasons.join('; ')}</small>
            </span>
          </li>
        ))}
      </ul>
    </>
  )
}
