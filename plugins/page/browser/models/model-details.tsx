import { useEffect, useState } from 'preact/hooks'
import type { ShownModel } from '../../../../core/contracts/native-records.ts'
import { formatNumber, formatSize } from '../parts/formats.ts'
import { ask } from '../state/api.ts'
import { engineOf } from '../state/server-state.ts'
import { labelFor, texts } from '../texts/texts.ts'

/** Details of a model: its source, files, metadata, template and license. */
export function ModelDetails({ name }: { name: string }) {
  const t = texts.value
  const [shown, setShown] = useState<ShownModel | undefined>(undefined)
  const [fault, setFault] = useState('')
  useEffect(() => {
    ask<ShownModel>('POST', 'api/show', { body: { model: name } }).then(setShown, error => setFault(error.message))
  }, [name])
  if (fault) return <p class="is-error">{fault}</p>
  if (!shown) return <p class="quiet">{t.loading}</p>
  const { details, origin, files, capabilities } = shown
  const engine = engineOf(name)
  const facts: [string, string | undefined][] = [
    [t.memory, engine?.state === 'loaded' && engine.memory ? formatSize(engine.size) : undefined],
    [t.origin, [origin.from, origin.revision?.slice(0, 12)].filter(Boolean).join(' @ ')],
    [t.architecture, details.family],
    [t.parameters, details.parameter_size],
    [t.quantization, details.quantization_level],
    [t.trainedContext, details.context_length === undefined ? undefined : formatNumber(details.context_length)],
    [t.abilities, capabilities.map(each => labelFor(t.capabilities, each)).join(', ')],
    [t.settings, shown.parameters || undefined],
    [t.system, shown.system]
  ]
  return (
    <div class="details">
      <dl class="facts">
        {facts.map(
          ([term, value]) =>
            value && (
              <>
                <dt>{term}</dt>
                <dd>{value}</dd>
              </>
            )
        )}
      </dl>
      <Part title={t.files}>
        <ul class="plain-list">
          {files.map(({ path, size, sha256 }) => (
            <li key={path}>
              {path} <small>{formatSize(size)}</small>
              <br />
              <small class="mono">{sha256}</small>
            </li>
          ))}
        </ul>
      </Part>
      <Part title={t.metadata}>
        <table class="data-table">
          <tbody>
            {Object.entries(shown.model_info).map(([field, value]) => (
              <tr key={field}>
                <th scope="row">{field}</th>
                <td>{String(value).slice(0, 500)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Part>
      {shown.template && (
        <Part title={t.template}>
          <pre tabIndex={0}>{shown.template}</pre>
        </Part>
      )}
      {shown.license && (
        <Part title={t.licence}>
          <pre tabIndex={0}>{shown.license}</pre>
        </Part>
      )}
    </div>
  )
}

function Part({ title, children }: { title: string; children: preact.ComponentChildren }) {
  return (
    <details>
      <summary>{title}</summary>
      {children}
    </details>
  )
}
