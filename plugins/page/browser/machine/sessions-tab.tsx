import { formatAgo } from '../parts/formats.ts'
import { Button } from '../parts/forms.tsx'
import { Card, Fault } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import { me, signOut } from '../state/me.ts'
import { fill, texts } from '../texts/texts.ts'

interface SessionRecord {
  id: string
  key?: string
  address: string
  user_agent?: string
  last_used_at: string
  expires_at: string
}

/** The browsers that are signed in: those of the user's key, or all for admins. */
export function SessionsTab() {
  const t = texts.value
  const { reply, fault, change } = useReply<{ sessions: SessionRecord[] }>('api/sessions')
  const current = me.value?.session?.id
  const end = (id: string) => change(id === current ? signOut : () => ask('DELETE', `api/sessions/${id}`))
  return (
    <>
      <p class="quiet">{t.sessionsText}</p>
      <Fault text={fault?.message} />
      {reply?.sessions.length === 0 && <p class="quiet">{t.nothingYet}</p>}
      <ul class="plain-list">
        {reply?.sessions.map(({ id, key, address, user_agent: agent, last_used_at: used, expires_at: expires }) => (
          <Card
            key={id}
            title={`${key ?? t.roles.admin}${id === current ? ` (${t.thisBrowser})` : ''}`}
            facts={[
              address,
              agent,
              fill(t.lastUsed, { time: formatAgo(Date.parse(used)) }),
              fill(t.expires, { time: new Date(expires).toLocaleString() })
            ]}
            actions={<Button kind="danger" onClick={() => end(id)} text={t.signOut} />}
          />
        ))}
      </ul>
    </>
  )
}
