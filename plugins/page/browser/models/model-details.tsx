import type { ShownModel } from '../../../../core/contracts/native-records.ts'
import { formatNumber, formatSize } from '../parts/formats.ts'
import { Facts, Fault, More } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { engineOf } from '../state/server-state.ts'
import { labelFor, texts } from '../texts/texts.ts'

export function ModelDetails({ name }: { name: string }) {
  const t = texts.value
  const { reply, fault } = useReply<ShownModel>('api/show', { model: name })
  if (fault) return <Fault text={fault.message} />
  if (!reply) return <p class="quiet">{t.loading}</p>
  const { details, origin, files, capabilities } = reply
  const engine = engineOf(name)
  const facts = [
    [t.memory, engine?.state === 'loaded' && engine.memory && formatSize(engine.size)],
    [t.origin, [origin.from, origin.revision?.slice(0, 12)].filter(Boolean).join(' @ ')],
    [t.architecture, details.family],
    [t.parameters, details.parameter_size],
    [t.quantization, details.quantization_level],
    [t.trainedContext, details.context_length !== undefined && formatNumber(details.context_length)],
    [t.abilities, capabilities.map(each => labelFor(t.capabilities, each)).join(', ')],
    [t.settings, reply.parameters],
    [t.system, reply.system]
  ] as const
  const documents = [
    [t.template, reply.template],
    [t.licence, reply.license]
  ] as const
  return (
    <div class="details">
      <Facts facts={facts} />
      <More title={t.files}>
        <ul class="plain-list">
          {files.map(({ path, size, sha256 }) => (
            <li key={path}>
              {path} <small>{formatSize(size)}</small>
              <br />
              <small class="mono">{sha256}</small>
            </li>
          ))}
        </ul>
      </More>
      <More title={t.metadata}>
        <table class="data-table">
          <tbody>
            {Object.entries(reply.model_info).map(([field, value]) => (
              <tr key={field}>
                <th scope="row">{field}</th>
                <td>{String(value).slice(0, 500)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </More>
      {documents.map(
        ([title, text]) =>
          text && (
            <More key={title} title={title}>
              <pre tabIndex={0}>{text}</pre>
            </More>
          )
      )}
    </div>
  )
}
