import { useState } from 'preact/hooks'
import type { PluginReport } from '../../../../core/plugins/plugin-report.ts'
import { Dialog } from '../parts/controls.tsx'
import { base } from '../state/api.ts'
import { labelFor, plural, texts } from '../texts/texts.ts'
import { useReply } from './use-reply.ts'

export function PluginsTab() {
  const t = texts.value
  const { reply, fault } = useReply<{ plugins: PluginReport[] }>('api/plugins')
  const [shown, setShown] = useState<PluginReport['web']>(undefined)
  if (fault) return <p class="is-error">{fault}</p>
  return (
    <>
      <ul class="plain-list">
        {reply?.plugins.map(({ name, description, state, reason, routes, web }) => (
          <li key={name} class="card">
            <div class="row">
              <div class="grow">
                <h2>{name}</h2>
                <p class="quiet">{description}</p>
                {reason && <p class="is-error">{reason}</p>}
              </div>
              {web && state === 'active' && (
                <button type="button" class="button" onClick={() => setShown(web)}>
                  {web.title}
                </button>
              )}
              <span class={`chip ${state === 'active' ? 'is-good' : ''}`}>{labelFor(t.pluginStates, state)}</span>
            </div>
            {routes.length > 0 && (
              <details>
                <summary class="quiet">{plural(t.routes, routes.length)}</summary>
                <ul class="plain-list mono">
                  {routes.map(route => (
                    <li key={route}>{route}</li>
                  ))}
                </ul>
              </details>
            )}
          </li>
        ))}
      </ul>
      {shown && (
        <Dialog title={shown.title} onClose={() => setShown(undefined)} class="dialog-large">
          {/* Without allow-same-origin it can read nothing of this page: neither chats nor the key. */}
          <iframe
            class="plugin-frame"
            sandbox="allow-scripts allow-forms"
            title={shown.title}
            src={base + shown.path.replace(/^\//, '')}
          />
        </Dialog>
      )}
    </>
  )
}
