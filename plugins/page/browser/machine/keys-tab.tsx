import { useState } from 'preact/hooks'
import { attempt, ConfirmDialog, CopyButton, Dialog } from '../parts/controls.tsx'
import { formatAgo } from '../parts/formats.ts'
import { ask } from '../state/api.ts'
import { fill, texts } from '../texts/texts.ts'
import { useReply } from './use-reply.ts'

interface KeyRecord {
  name: string
  role: 'user' | 'operator' | 'admin'
  created: string
  expires?: string
  models?: string[]
  limits?: { requests_per_minute?: number }
}
interface MadeKey {
  key: string
  record: KeyRecord
}

/** Creates, replaces and revokes the keys of the server. */
export function KeysTab() {
  const t = texts.value
  const { reply, fault, again } = useReply<{ required: boolean; keys: KeyRecord[] }>('api/keys')
  const [made, setMade] = useState<MadeKey | undefined>(undefined)
  const [isNew, setNew] = useState(false)
  const [revoked, setRevoked] = useState('')
  if (fault) return <p class="is-error">{fault}</p>
  if (!reply) return null
  return (
    <>
      <div class="row">
        <p class="grow quiet">{reply.required ? t.keysRequired : t.keysOpen}</p>
        <button type="button" class="button is-main" onClick={() => setNew(true)}>
          {t.newKey}
        </button>
      </div>
      <ul class="plain-list">
        {reply.keys.map(record => (
          <li key={record.name} class="card">
            <div class="row">
              <div class="grow">
                <h2>{record.name}</h2>
                <p class="quiet">
                  {[
                    t.roles[record.role],
                    formatAgo(Date.parse(record.created)),
                    record.expires && fill(t.expires, { time: new Date(record.expires).toLocaleString() }),
                    record.models?.join(', '),
                    record.limits?.requests_per_minute &&
                      fill(t.perMinute, { count: record.limits.requests_per_minute })
                  ]
                    .filter(Boolean)
                    .join(' · ')}
                </p>
              </div>
              <button
                type="button"
                class="button"
                onClick={() =>
                  void attempt(async () => {
                    setMade(await ask<MadeKey>('POST', `api/keys/${encodeURIComponent(record.name)}/rotate`))
                    again()
                  })
                }
              >
                {t.replaceKey}
              </button>
              <button type="button" class="button is-danger" onClick={() => setRevoked(record.name)}>
                {t.revoke}
              </button>
            </div>
          </li>
        ))}
      </ul>
      {isNew && (
        <Dialog title={t.newKey} onClose={() => setNew(false)} class="dialog-small">
          <NewKey
            onMade={key => {
              setMade(key)
              setNew(false)
              again()
            }}
          />
        </Dialog>
      )}
      {made && (
        <Dialog title={made.record.name} onClose={() => setMade(undefined)} class="dialog-small">
          <p>{t.keyOnce}</p>
          <p class="row">
            <code class="grow">{made.key}</code>
            <CopyButton text={() => made.key} />
          </p>
        </Dialog>
      )}
      {revoked !== '' && (
        <ConfirmDialog
          title={fill(t.revokeTitle, { name: revoked })}
          text={t.revokeText}
          action={t.revoke}
          onClose={() => setRevoked('')}
          onConfirm={() =>
            void attempt(async () => {
              await ask('DELETE', `api/keys/${encodeURIComponent(revoked)}`)
              again()
            })
          }
        />
      )}
    </>
  )
}

function NewKey({ onMade }: { onMade: (key: MadeKey) => void }) {
  const t = texts.value
  return (
    <form
      class="form"
      onSubmit={event => {
        event.preventDefault()
        const form = new FormData(event.currentTarget)
        const text = (name: string) => String(form.get(name)).trim()
        const models = text('models')
          .split(/[\s,]+/)
          .filter(Boolean)
        const body = {
          name: text('name'),
          role: text('role'),
          ...(models.length > 0 && { models }),
          ...(text('requests') && { limits: { requests_per_minute: Number(text('requests')) } })
        }
        void attempt(async () => onMade(await ask<MadeKey>('POST', 'api/keys', { body })))
      }}
    >
      <label>
        {t.name}
        <input class="field" name="name" required autocomplete="off" />
      </label>
      <label>
        {t.role}
        <select class="field" name="role">
          {(['user', 'operator', 'admin'] as const).map(role => (
            <option key={role} value={role}>
              {t.roles[role]}
            </option>
          ))}
        </select>
      </label>
      <label>
        {t.onlyModels}
        <input class="field" name="models" autocomplete="off" />
      </label>
      <label>
        {t.requestsPerMinute}
        <input class="field" name="requests" type="number" min="1" />
      </label>
      <footer class="dialog-foot">
        <button type="submit" class="button is-main">
          {t.newKey}
        </button>
      </footer>
    </form>
  )
}
