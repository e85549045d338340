import { PageView } from '../parts/layout.tsx'
import { may } from '../state/me.ts'
import { linkTo } from '../state/route.ts'
import { texts } from '../texts/texts.ts'
import { AuditTab } from './audit-tab.tsx'
import { KeysTab } from './keys-tab.tsx'
import { LogsTab } from './logs-tab.tsx'
import { OverviewTab } from './overview-tab.tsx'
import { PluginsTab } from './plugins-tab.tsx'
import { UsageTab } from './usage-tab.tsx'

/** The tabs about the server, with the role that each requires. */
const TABS = [
  { id: 'overview', role: 'user', view: OverviewTab },
  { id: 'logs', role: 'admin', view: LogsTab },
  { id: 'usage', role: 'user', view: UsageTab },
  { id: 'keys', role: 'admin', view: KeysTab },
  { id: 'audit', role: 'admin', view: AuditTab },
  { id: 'plugins', role: 'operator', view: PluginsTab }
] as const

export function ServerView({ path }: { path: string[] }) {
  const t = texts.value
  const allowed = TABS.filter(({ role }) => may(role))
  const current = allowed.find(({ id }) => id === (path[0] ?? 'overview'))
  const tabs = allowed.map(tab => ({ text: t[tab.id], href: linkTo('server', tab.id), isCurrent: tab === current }))
  return (
    <PageView title={t.server} tabs={tabs}>
      {current ? <current.view /> : <p class="quiet">{t.noSuchView}</p>}
    </PageView>
  )
}
