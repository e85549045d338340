import type { Role } from '../../../../core/http/roles.ts'
import { attempt, CopyButton, confirm, openDialog } from '../parts/controls.tsx'
import { formatAgo } from '../parts/formats.ts'
import { Actions, Button, Field, type FieldText, Form, Select, wordsIn } from '../parts/forms.tsx'
import { Card, Fault } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import { fill, texts } from '../texts/texts.ts'

interface KeyRecord {
  name: string
  role: Role
  created: string
  expires?: string
  last_used_at?: string
  last_address?: string
  models?: string[]
  limits?: { requests_per_minute?: number }
}
interface MadeKey {
  key: string
  record: KeyRecord
}

export function KeysTab() {
  const t = texts.value
  const { reply, fault, again, change } = useReply<{ required: boolean; keys: KeyRecord[] }>('api/keys')
  if (fault) return <Fault text={fault.message} />
  if (!reply) return null
  const pathOf = (name: string) => `api/keys/${encodeURIComponent(name)}`
  const show = ({ key, record }: MadeKey) =>
    openDialog(
      record.name,
      () => (
        <>
          <p>{t.keyOnce}</p>
          <p class="row">
            <code class="grow">{key}</code>
            <CopyButton text={() => key} />
          </p>
        </>
      ),
      'dialog-small'
    )
  const make = () => {
    const body = (close: () => void) => (
      <NewKey
        onMade={key => {
          close()
          show(key)
          again()
        }}
      />
    )
    openDialog(t.newKey, body, 'dialog-small')
  }
  return (
    <>
      <div class="row">
        <p class="grow quiet">{reply.required ? t.keysRequired : t.keysOpen}</p>
        <Button kind="main" onClick={make} text={t.newKey} />
      </div>
      <ul class="plain-list">
        {reply.keys.map(({ name, role, created, expires, models, limits, last_used_at: used, last_address }) => {
          const facts = [
            t.roles[role],
            fill(t.createdAt, { time: formatAgo(Date.parse(created)) }),
            used ? fill(t.lastUsed, { time: formatAgo(Date.parse(used)) }) : t.neverUsed,
            used && last_address,
            expires && fill(t.expires, { time: new Date(expires).toLocaleString() }),
            models?.join(', '),
            limits?.requests_per_minute && fill(t.perMinute, { count: limits.requests_per_minute })
          ]
          const revoke = () =>
            confirm(fill(t.revokeTitle, { name }), t.revokeText, t.revoke, () =>
              change(() => ask('DELETE', pathOf(name)))
            )
          const replace = async () => show(await ask<MadeKey>('POST', `${pathOf(name)}/rotate`))
          const actions = (
            <>
              <Button onClick={() => change(replace)} text={t.replaceKey} />
              <Button kind="danger" onClick={revoke} text={t.revoke} />
            </>
          )
          return <Card key={name} title={name} facts={facts} actions={actions} />
        })}
      </ul>
    </>
  )
}

function NewKey({ onMade }: { onMade: (key: MadeKey) => void }) {
  const t = texts.value
  const make = (text: FieldText) => {
    const models = wordsIn(text('models'))
    const body = {
      name: text('name'),
      role: text('role'),
      ...(models.length > 0 && { models }),
      ...(text('requests') && { limits: { requests_per_minute: Number(text('requests')) } })
    }
    return attempt(async () => onMade(await ask<MadeKey>('POST', 'api/keys', { body })))
  }
  return (
    <Form class="form" onSubmit={make}>
      <Field label={t.name} name="name" required autocomplete="off" />
      <Select label={t.role} name="role" options={Object.entries(t.roles)} />
      <Field label={t.onlyModels} name="models" autocomplete="off" />
      <Field label={t.requestsPerMinute} name="requests" type="number" min="1" />
      <Actions>
        <Button kind="main" type="submit" text={t.newKey} />
      </Actions>
    </Form>
  )
}
