import { useState } from 'preact/hooks'
import { formatNumber } from '../parts/formats.ts'
import { Button, Choices } from '../parts/forms.tsx'
import { Fault, PageView, Table } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { toolServers } from '../state/hosted-tools.ts'
import { may, me } from '../state/me.ts'
import { linkTo } from '../state/route.ts'
import { fill, texts } from '../texts/texts.ts'
import { KeysTab } from './keys-tab.tsx'
import { LogsTab } from './logs-tab.tsx'
import { MachinesTab } from './machines-tab.tsx'
import { OverviewTab } from './overview-tab.tsx'
import { PluginsTab } from './plugins-tab.tsx'
import { SessionsTab } from './sessions-tab.tsx'
import { ToolsTab } from './tools-tab.tsx'

type Counts = Record<'requests' | 'tokens_in' | 'tokens_cached' | 'tokens_out', number>

const countsIn = (row: Counts) =>
  [row.requests, row.tokens_in, row.tokens_cached, row.tokens_out].map(count => formatNumber(count))

/** Usage of models in the last days. */
function UsageTab() {
  const t = texts.value
  const [by, setBy] = useState<'model' | 'day' | 'key'>('model')
  const { reply, fault } = useReply<{ usage: (Counts & { name: string })[]; total: Counts }>(
    `api/usage?by=${by}&since=30d`
  )
  const names = { model: t.model, day: t.day, key: t.keyField }
  return (
    <>
      <Choices label={t.groupBy} names={names} chosen={by} onChoose={setBy}>
        <span class="quiet">{fill(t.lastDays, { days: 30 })}</span>
      </Choices>
      <Fault text={fault?.message} />
      {reply && (
        <Table
          head={[names[by], t.requestCount, t.tokensIn, t.tokensCached, t.tokensOut]}
          rows={reply.usage.map(row => [row.name, ...countsIn(row)])}
          total={[t.total, ...countsIn(reply.total)]}
        />
      )}
    </>
  )
}

/** The fields of an audit entry that are shown. */
interface AuditEntry
  extends Partial<Record<'key' | 'address' | 'method' | 'route' | 'event' | 'model' | 'target', string>> {
  time: string
  status?: number
  /** For requests to models, which have no route here. */
  operation?: string
  /** The API of the operation. */
  surface?: string
}

/** The audit log, newest first. */
function AuditTab() {
  const t = texts.value
  const { reply, fault, again } = useReply<{ entries: AuditEntry[] }>('api/audit?limit=200')
  const rows = reply?.entries
    .toReversed()
    .map(entry => [
      new Date(entry.time).toLocaleString(),
      entry.key ?? entry.address,
      actionIn(entry),
      entry.model ?? entry.target,
      entry.status
    ])
  return (
    <>
      <div class="row">
        <Button onClick={again} text={t.refresh} />
      </div>
      <Fault text={fault?.message} />
      {rows?.length === 0 && <p class="quiet">{t.nothingYet}</p>}
      {rows && rows.length > 0 && <Table head={[t.time, t.who, t.what, t.model, t.result]} rows={rows} />}
    </>
  )
}

function actionIn({ event, method, route, operation, surface }: AuditEntry): string {
  if (event) return event
  return (route ? [method, route] : [operation, surface && `(${surface})`]).filter(Boolean).join(' ')
}

const TABS = [
  { id: 'overview', role: 'user', view: OverviewTab },
  { id: 'logs', role: 'admin', view: LogsTab },
  { id: 'usage', role: 'user', view: UsageTab },
  { id: 'machines', role: 'operator', view: MachinesTab },
  { id: 'keys', role: 'admin', view: KeysTab },
  { id: 'sessions', role: 'user', view: SessionsTab },
  { id: 'audit', role: 'admin', view: AuditTab },
  { id: 'hostedTools', role: 'user', view: ToolsTab },
  { id: 'plugins', role: 'operator', view: PluginsTab }
] as const

export function ServerView({ path }: { path: string[] }) {
  const t = texts.value
  const hasTools = toolServers.value.length > 0
  const tab = TABS.find(({ id }) => id === (path[0] ?? 'overview'))
  const allowed = TABS.filter(({ id, role }) => may(role) && (hasTools || id !== 'hostedTools'))
  const current = allowed.find(({ id }) => id === tab?.id)
  const tabs = allowed.map(({ id }) => ({ text: t[id], href: linkTo('server', id), isCurrent: id === tab?.id }))
  return (
    <PageView title={t.server} tabs={tabs}>
      {current ? <current.view /> : <p class="quiet">{(tab && me.value?.more) || t.noSuchView}</p>}
    </PageView>
  )
}
