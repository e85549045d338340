import { Button } from '../parts/forms.tsx'
import { Fault, Table } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { texts } from '../texts/texts.ts'

/** The fields of an audit entry that are shown. */
interface AuditEntry {
  time: string
  key?: string
  address?: string
  method?: string
  route?: string
  /** For requests to models, which have no route here: the operation and API. */
  operation?: string
  surface?: string
  event?: string
  model?: string
  target?: string
  status?: number
}

/** The audit log, newest first. */
export function AuditTab() {
  const t = texts.value
  const { reply, fault, again } = useReply<{ entries: AuditEntry[] }>('api/audit?limit=200')
  const rows = reply?.entries
    .toReversed()
    .map(entry => [
      new Date(entry.time).toLocaleString(),
      entry.key ?? entry.address,
      actionIn(entry),
      entry.model ?? entry.target,
      entry.status
    ])
  return (
    <>
      <div class="row">
        <Button onClick={again} text={t.refresh} />
      </div>
      <Fault text={fault?.message} />
      {rows?.length === 0 && <p class="quiet">{t.nothingYet}</p>}
      {rows && rows.length > 0 && <Table head={[t.time, t.who, t.what, t.model, t.result]} rows={rows} />}
    </>
  )
}

function actionIn({ event, method, route, operation, surface }: AuditEntry): string {
  if (event) return event
  return (route ? [method, route] : [operation, surface && `(${surface})`]).filter(Boolean).join(' ')
}
