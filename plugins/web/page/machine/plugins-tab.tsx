import type { PluginReport } from '../../../../core/plugins/plugin-report.ts'
import { texts } from '../texts/texts.ts'
import { useReply } from './use-reply.ts'

/** The plugins with their states. */
export function PluginsTab() {
  const t = texts.value
  const { reply, fault } = useReply<{ plugins: PluginReport[] }>('api/plugins')
  if (fault) return <p class="is-error">{fault}</p>
  return (
    <ul class="plain-list">
      {reply?.plugins.map(({ name, description, state, reason, routes }) => (
        <li key={name} class="card">
          <div class="row">
            <div class="grow">
              <h2>{name}</h2>
              <p class="quiet">{description}</p>
              {reason && <p class="is-error">{reason}</p>}
            </div>
            <span class={`chip ${state === 'active' ? 'is-good' : ''}`}>{t.pluginStates[state] ?? state}</span>
          </div>
          {routes.length > 0 && (
            <details>
              <summary class="quiet">{t.routes(routes.length)}</summary>
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
  )
}
