import { useEffect } from 'preact/hooks'
import type { PlanReply, ShownModel } from '../../../../core/contracts/native-records.ts'
import { attempt, notify } from '../parts/controls.tsx'
import { formatNumber, formatSize } from '../parts/formats.ts'
import { Button } from '../parts/forms.tsx'
import { Facts, Fault, More } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import { may } from '../state/me.ts'
import { noteRevision, updateOf } from '../state/revisions.ts'
import { engineOf } from '../state/server-state.ts'
import { fill, labelFor, texts } from '../texts/texts.ts'

export function ModelDetails({ name, onDone }: { name: string; onDone: () => void }) {
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
      {origin.kind === 'hub' && may('operator') && <Revision name={name} onDone={onDone} />}
      {files.length > 0 && (
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
      )}
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

/** Whether the hub has a newer revision, and its download. */
function Revision({ name, onDone }: { name: string; onDone: () => void }) {
  const t = texts.value
  const { reply, fault } = useReply<PlanReply>('api/pull', { ...updateOf(name), dry_run: true })
  useEffect(() => {
    if (reply) noteRevision(name, !reply.present)
  }, [reply])
  if (fault) return <p class="quiet">{fill(t.notChecked, { reason: fault.message })}</p>
  if (!reply) return <p class="quiet">{t.loading}</p>
  if (reply.present) return <p class="quiet">{t.newestRevision}</p>
  const update = async () => {
    if (!(await attempt(() => ask('POST', 'api/pull', { body: { ...updateOf(name), detach: true } })))) return
    noteRevision(name, false)
    notify(fill(t.downloadBegun, { model: name }))
    onDone()
  }
  return (
    <div class="row">
      <p class="grow">{fill(t.newerRevision, { revision: reply.repository.revision.slice(0, 12) })}</p>
      <Button kind="main" onClick={update} text={t.update} />
    </div>
  )
}
