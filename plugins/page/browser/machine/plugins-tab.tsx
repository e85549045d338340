import type { PluginReport } from '../../../../core/plugins/plugin-report.ts'
import { openDialog } from '../parts/controls.tsx'
import { Button } from '../parts/forms.tsx'
import { Card, Fault, More } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { base } from '../state/api.ts'
import { labelFor, plural, texts } from '../texts/texts.ts'

export function PluginsTab() {
  const t = texts.value
  const { reply, fault } = useReply<{ plugins: PluginReport[] }>('api/plugins')
  if (fault) return <Fault text={fault.message} />
  return (
    <ul class="plain-list">
      {reply?.plugins.map(({ name, description, state, reason, routes, web }) => {
        const actions = (
          <>
            {web && state === 'active' && (
              <Button
                onClick={() => openDialog(web.title, () => <PluginPage {...web} />, 'dialog-large')}
                text={web.title}
              />
            )}
            <span class={`chip ${state === 'active' ? 'is-good' : ''}`}>{labelFor(t.pluginStates, state)}</span>
          </>
        )
        return (
          <Card key={name} title={name} facts={[description]} fault={reason} actions={actions}>
            {routes.length > 0 && (
              <More title={plural(t.routes, routes.length)} class="quiet">
                <ul class="plain-list mono">
                  {routes.map(route => (
                    <li key={route}>{route}</li>
                  ))}
                </ul>
              </More>
            )}
          </Card>
        )
      })}
    </ul>
  )
}

/** Without allow-same-origin it can read nothing of this page: neither chats nor the key. */
const PluginPage = ({ title, path }: NonNullable<PluginReport['web']>) => (
  <iframe class="plugin-frame" sandbox="allow-scripts allow-forms" title={title} src={base + path.replace(/^\//, '')} />
)
