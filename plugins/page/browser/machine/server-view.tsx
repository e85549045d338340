import type { ComponentType } from 'preact'
import { may } from '../state/me.ts'
import { linkTo } from '../state/route.ts'
import type { Texts } from '../texts/en.ts'
import { texts } from '../texts/texts.ts'
import { AuditTab } from './audit-tab.tsx'
import { KeysTab } from './keys-tab.tsx'
import { LogsTab } from './logs-tab.tsx'
import { OverviewTab } from './overview-tab.tsx'
import { PluginsTab } from './plugins-tab.tsx'
import { UsageTab } from './usage-tab.tsx'

/** The tabs about the server, with the role that each requires. */
const TABS: { id: string; title: keyof Texts & string; role: 'user' | 'operator' | 'admin'; view: ComponentType }[] = [
  { id: 'overview', title: 'overview', role: 'user', view: OverviewTab },
  { id: 'logs', title: 'logs', role: 'admin', view: LogsTab },
  { id: 'usage', title: 'usage', role: 'user', view: UsageTab },
  { id: 'keys', title: 'keys', role: 'admin', view: KeysTab },
  { id: 'audit', title: 'audit', role: 'admin', view: AuditTab },
  { id: 'plugins', title: 'plugins', role: 'operator', view: PluginsTab }
]

export function ServerView({ path }: { path: string[] }) {
  const t = texts.value
  const allowed = TABS.filter(({ role }) => may(role))
  const current = allowed.find(({ id }) => id === (path[0] ?? 'overview'))
  return (
    <main class="view page-view">
      <div class="page-column">
        <header class="page-head">
          <h1>{t.server}</h1>
        </header>
        <nav class="tabs" aria-label={t.server}>
          {allowed.map(({ id, title }) => (
            <a key={id} href={linkTo('server', id)} aria-current={id === current?.id ? 'page' : undefined}>
              {t[title] as string}
            </a>
          ))}
        </nav>
        {current ? <current.view /> : <p class="quiet">{t.noSuchView}</p>}
      </div>
    </main>
  )
}
