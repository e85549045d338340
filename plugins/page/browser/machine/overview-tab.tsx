import { useEffect } from 'preact/hooks'
import type { RuntimesReport } from '../../../../core/contracts/builds.ts'
import { formatAgo, formatNumber, formatSize } from '../parts/formats.ts'
import { may, me } from '../state/me.ts'
import { collectSamples, type LoadSample, samples } from '../state/recent-load.ts'
import { build, engines, gpus, pools, server } from '../state/server-state.ts'
import { fill, texts } from '../texts/texts.ts'
import { LiveChart } from './live-chart.tsx'
import { useReply } from './use-reply.ts'

/** The current load of the server, its hardware, and the caller's role. */
export function OverviewTab() {
  const t = texts.value
  useEffect(collectSamples, [])
  const now: LoadSample | undefined = samples.value.at(-1)
  const loaded = engines.value.filter(({ state }) => state === 'loaded')
  return (
    <>
      <div class="charts">
        <Chart title={t.tokensPerSecond} value={formatNumber(now?.tokens ?? 0, 1)} field="tokens" />
        <Chart title={t.requestsRunning} value={formatNumber(now?.running ?? 0)} field="running" />
        <Chart title={t.requestsWaiting} value={formatNumber(now?.waiting ?? 0)} field="waiting" />
        {pools.value.length > 0 && <Chart title={t.memory} value={formatSize(now?.memory ?? 0)} field="memory" />}
        {gpus.value.some(({ temperature }) => temperature !== undefined) && (
          <Chart
            title={t.gpuTemperature}
            value={gpus.value.flatMap(({ temperature = [] }) => `${temperature} °C`).join(' · ')}
            field="temperature"
          />
        )}
        {gpus.value.some(({ utilization }) => utilization !== undefined) && (
          <Chart
            title={t.gpuUtilization}
            value={gpus.value
              .flatMap(({ utilization }) => (utilization === undefined ? [] : `${Math.round(100 * utilization)} %`))
              .join(' · ')}
            field="utilization"
          />
        )}
      </div>
      <h2 class="section-title">{t.loadedModels}</h2>
      {loaded.length === 0 && <p class="quiet">{t.nothingLoaded}</p>}
      {loaded.length > 0 && (
        <div class="table-frame" tabIndex={0}>
          <table class="data-table">
            <thead>
              <tr>
                <th>{t.model}</th>
                <th>{t.slotsBusy}</th>
                <th>{t.waiting}</th>
                <th>{t.memory}</th>
              </tr>
            </thead>
            <tbody>
              {loaded.map(
                engine =>
                  engine.state === 'loaded' && (
                    <tr key={`${engine.name} ${engine.mode}`}>
                      <td>{engine.name}</td>
                      <td>
                        {engine.running} / {engine.slots}
                      </td>
                      <td>{engine.queued}</td>
                      <td>{engine.memory && formatSize(engine.size)}</td>
                    </tr>
                  )
              )}
            </tbody>
          </table>
        </div>
      )}
      <h2 class="section-title">{t.thisServer}</h2>
      <dl class="facts">
        {server.value && (
          <>
            <dt>corral</dt>
            <dd>{server.value.version}</dd>
            <dt>{t.startedAt}</dt>
            <dd>{formatAgo(Date.parse(server.value.started_at))}</dd>
          </>
        )}
        {build.value && (
          <>
            <dt>llama.cpp</dt>
            <dd>
              {[build.value.version ?? build.value.state, build.value.kind, build.value.status]
                .filter(Boolean)
                .join(', ')}
            </dd>
          </>
        )}
        {me.value && (
          <>
            <dt>{t.you}</dt>
            <dd>
              {t.roles[me.value.role]}
              {me.value.key ? ` (${me.value.key.name})` : ''}
              {me.value.more && <p class="quiet">{me.value.more}</p>}
            </dd>
          </>
        )}
      </dl>
      {may('operator') && <Hardware />}
    </>
  )
}

function Chart({ title, value, field }: { title: string; value: string; field: Exclude<keyof LoadSample, 'at'> }) {
  return (
    <figure class="card chart">
      <figcaption>
        <span class="quiet">{title}</span>
        <strong>{value}</strong>
      </figcaption>
      <LiveChart field={field} />
    </figure>
  )
}

/** The hardware, the builds that fit it, and what is missing for a better build. */
function Hardware() {
  const t = texts.value
  const { reply, fault } = useReply<RuntimesReport>('api/runtimes')
  if (fault) return <p class="is-error">{fault}</p>
  if (!reply) return null
  const { cpu, memory, gpus, problems } = reply.hardware ?? {}
  return (
    <>
      <h2 class="section-title">{t.hardware}</h2>
      <dl class="facts">
        {cpu && (
          <>
            <dt>{t.processor}</dt>
            <dd>
              {cpu.model}, {fill(t.threads, { count: cpu.threads })}
            </dd>
          </>
        )}
        {memory && (
          <>
            <dt>{t.memory}</dt>
            <dd>{fill(t.memoryFree, { free: formatSize(memory.available), whole: formatSize(memory.total) })}</dd>
          </>
        )}
        <dt>{t.gpus}</dt>
        <dd>{gpus?.length ? gpus.map(({ name }) => name).join(', ') : t.noGpu}</dd>
      </dl>
      {problems?.map(({ message, advice }) => (
        <p key={message} class="card">
          {message}
          {advice && <span class="quiet"> {advice}</span>}
        </p>
      ))}
      <h2 class="section-title">{t.builds}</h2>
      <ul class="plain-list">
        {reply.ranking?.map(candidate => (
          <li key={candidate.kind} class="row build-line">
            <span class="grow">
              {candidate.kind}
              <small> {candidate.reasons.join('; ')}</small>
            </span>
          </li>
        ))}
      </ul>
    </>
  )
}
